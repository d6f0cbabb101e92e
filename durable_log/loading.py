"""From a URL, or a configuration, to a log.

Drivers are entry points of the namespace ``heliograph.log_driver``, found by stevedore and by nothing else.  The scheme
of the URL names the driver, unless ``[log] driver`` does.  Options of ``[log]``, and of the driver, may stand in
the URL: ``sqlite:///dir/log.db?shards=4``.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult

from oslo_config import cfg

from durable_log import config
from durable_log.log_api import LogApi
from pubsub_api.config import check_group, new_conf
from pubsub_api.errors import InvalidConfig
from pubsub_api.plugins import Plugins, register_options, split_url

NAMESPACE = "heliograph.log_driver"

_PLUGINS = Plugins(NAMESPACE, LogApi, "log driver")  # type: ignore[type-abstract]  # only its subclasses are made
_NOT_IN_URL = {"url", "driver"}


def open_log(
    url: str | None = None,
    *,
    conf: cfg.ConfigOpts | None = None,
    config_files: Iterable[str | os.PathLike[str]] = (),
) -> LogApi:
    """A log, connected and ready; made when there is none yet.  Close it when done.

    ``conf`` may be any parsed oslo.config object: what it lacks is registered on it.  ``url`` None takes ``[log] url``.
    Raises what `build_log` and `LogApi.initialize` raise.
    """
    log = build_log(url, conf=new_conf(config_files) if conf is None else conf)
    try:
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
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    check_group(conf, config.GROUP, config.OPTIONS)
    given = conf[config.GROUP].url if url is None else url
    parts = split_url(given, what="log", example="sqlite:///path/log.db")
    # A URL given by the caller speaks for itself; the option belongs to the option ``url``.
    configured = conf[config.GROUP].driver if url is None else ""
    driver_class = load_log_driver(configured or parts.scheme)
    register_options(conf, driver_class, driver_class.options)
    groups = {config.GROUP: config.OPTIONS, **driver_class.options}
    parts = _take_options(conf, parts, {option.name: group for group, options in groups.items() for option in options})
    for group, options in driver_class.options.items():
        check_group(conf, group, options)
    return driver_class(conf, parts)


def load_log_driver(name: str) -> type[LogApi]:
    """The driver class installed under ``name``.  Imports its module and the library behind it.

    Raises DriverNotFound with the names that exist, DriverDependencyMissing with the pip extra when the library is
    missing or cannot be imported, and DriverError when the driver itself is broken.
    """
    return _PLUGINS.load(name)


def _take_options(conf: cfg.ConfigOpts, url: SplitResult, groups: Mapping[str, str]) -> SplitResult:
    """Set overrides from the URL's query; ``groups`` is option -> its group.  Returns the URL without the query."""
    try:
        given = urllib.parse.parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
    except ValueError as error:
        raise InvalidConfig(f"the query of a log's URL must be option=value pairs, not {url.query!r}") from error
    for name, value in given:
        if name not in groups or name in _NOT_IN_URL:
            known = ", ".join(sorted(groups.keys() - _NOT_IN_URL))
            raise InvalidConfig(f"log URL: {name!r} is no option; options are {known}")
        try:
            conf.set_override(name, value, group=groups[name])
        except ValueError as error:
            raise InvalidConfig(f"log URL: {name}={value}: {error}") from error
    return url._replace(query="")
