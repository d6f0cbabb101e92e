"""From a URL, or a configuration, to a log.

Drivers are entry points of the namespace ``heliograph.log_driver``, found by stevedore and by nothing else.  The scheme
of the URL names the driver.  Options of ``[log]``, and of the driver, may stand in
the URL: ``sqlite:///dir/log.db?shards=4``.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import SplitResult

from oslo_config import cfg

from durable_log import config
from durable_log.errors import LogNotFound
from durable_log.log_api import LogApi
from pubsub_api.config import check_group, new_conf
from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime.plugins import Plugins, register_options, split_url, without_password

NAMESPACE = "heliograph.log_driver"

_PLUGINS = Plugins(NAMESPACE, LogApi, "log driver")  # type: ignore[type-abstract]  # only its subclasses are made
_NOT_IN_URL = {"url"}


def open_log(
    url: str | None = None,
    *,
    conf: cfg.ConfigOpts | None = None,
    config_files: Iterable[str | os.PathLike[str]] = (),
    must_exist: bool = False,
    ignores_shards: bool = False,
) -> LogApi:
    """A log, connected and ready; made when there is none yet.  Close it when done.

    ``conf`` may be any parsed oslo.config object: what it lacks is registered on it.  ``url`` None takes ``[log] url``.
    ``must_exist`` is for readers: a path with a typing error shall not become an empty log.  ``ignores_shards`` is
    for who gives a log more: ``[log] shards`` may say already what it is to have.  Raises what
    `build_log` and `LogApi.initialize` raise, and LogNotFound.
    """
    log = build_log(url, conf=new_conf(config_files) if conf is None else conf)
    try:
        if ignores_shards:
            log.conf.set_override("shards", None, group=config.GROUP)
        if must_exist and not log.exists():
            place = without_password(f"{log.url.scheme}://{log.url.netloc}{log.url.path}")
            raise LogNotFound(
                f"there is no log at {place}, and reading does not make one. If it was lost and its sealed segments "
                "are left, 'heliograph log repair' makes it anew from them"
            )
        log.initialize()
    except BaseException:
        log.close()
        raise
    return log


def build_log(url: str | None = None, *, conf: cfg.ConfigOpts | None = None) -> LogApi:
    """The same, constructed and not yet connected.

    Raises what `load_log_driver` raises, and InvalidConfig when the URL or an option cannot be used.
    """
    conf = new_conf() if conf is None else conf
    driver_class, parts = _find_driver(url, conf)
    parts = _take_options(conf, parts, {name: group for group, name in _options(driver_class)}, driver_class.url_words)
    for group, options in driver_class.options.items():
        check_group(conf, group, options)
    return driver_class(conf, parts)


def portable_url(url: str | None, *, conf: cfg.ConfigOpts) -> str:
    """The URL under which a process without this configuration opens the same log: what ``conf`` sets of ``[log]`` and
    of the driver's options, a password too, stands in it, unless ``url`` says otherwise.

    Opens nothing.  Raises what `build_log` raises.
    """
    driver_class, parts = _find_driver(url, conf)
    said = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
    defaults = new_conf()
    _register(defaults, driver_class)
    for group, name in _options(driver_class):
        value = conf[group][name]
        if name not in _NOT_IN_URL and name not in dict(said) and value != defaults[group][name]:
            said.append((name, ",".join(map(str, value)) if isinstance(value, list) else str(value)))
    # Not put together from its parts: a path that begins with two slashes would lose them.
    place = str(conf[config.GROUP].url if url is None else url).partition("?")[0]
    return f"{place}?{urllib.parse.urlencode(said)}" if said else place


def load_log_driver(name: str) -> type[LogApi]:
    """The driver class installed under ``name``.  Imports its module and the library behind it.

    Raises DriverNotFound with the names that exist, DriverDependencyMissing with the pip extra when the library is
    missing or cannot be imported, and DriverError when the driver itself is broken.
    """
    return _PLUGINS.load(name)


def _find_driver(url: str | None, conf: cfg.ConfigOpts) -> tuple[type[LogApi], SplitResult]:
    """The driver, whose options are registered on ``conf``, and the URL."""
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    check_group(conf, config.GROUP, config.OPTIONS)
    given = conf[config.GROUP].url if url is None else url
    parts = split_url(given, what="log", example="sqlite:///path/log.db", has_hosts=True)
    driver_class = load_log_driver(parts.scheme)
    _register(conf, driver_class)
    return driver_class, parts


def _register(conf: cfg.ConfigOpts, driver_class: type[LogApi]) -> None:
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    register_options(conf, driver_class, driver_class.options)


def _options(driver_class: type[LogApi]) -> list[tuple[str, str]]:
    """Group and name of every option that may stand in a URL."""
    groups = {config.GROUP: config.OPTIONS, **driver_class.options}
    return [(group, option.name) for group, options in groups.items() for option in options]


def _take_options(
    conf: cfg.ConfigOpts, url: SplitResult, groups: Mapping[str, str], words: Collection[str]
) -> SplitResult:
    """Set overrides from the URL's query; ``groups`` is option -> its group.  Returns the URL, whose query is what the
    driver takes itself."""
    try:
        given = urllib.parse.parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
    except ValueError:
        # It may hold a secret: it is not shown, and what says it neither.
        raise InvalidConfig("the query of a log's URL must be option=value pairs") from None
    kept = [(name, value) for name, value in given if name in words]
    for name, value in (pair for pair in given if pair not in kept):
        if name not in groups or name in _NOT_IN_URL:
            known = ", ".join(sorted((groups.keys() - _NOT_IN_URL) | set(words)))
            raise InvalidConfig(f"log URL: {name!r} is no option; options are {known}")
        try:
            conf.set_override(name, value, group=groups[name])
        except ValueError as error:
            raise InvalidConfig(f"log URL: {name}={value}: {error}") from error
    return url._replace(query=urllib.parse.urlencode(kept, quote_via=urllib.parse.quote))
