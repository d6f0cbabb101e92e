"""From a URL, or a configuration, to a database.

Drivers are entry points of the namespace ``heliograph.db_driver``, found by stevedore and by nothing else.  The scheme
of the URL names the driver, unless ``[db] driver`` does.  An entry point may state the pip extra that brings its
library; the error for a missing library then says what to install.

Whatever goes wrong is raised as one typed error with the cause attached, and no password is shown.
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

from oslo_config import cfg
from stevedore.named import NamedExtensionManager

from nb_api import config
from nb_api.db_api import DbApi
from pubsub_api.config import check_group, new_conf
from pubsub_api.errors import DriverDependencyMissing, DriverError, DriverNotFound, InvalidConfig

NAMESPACE = "heliograph.db_driver"

_OWN_PACKAGES = ("nb_api", "pubsub_api", "drivers")


def open_db(url: str | None = None, conf: cfg.ConfigOpts | None = None, *, with_outbox: bool = True) -> DbApi:
    """A database, connected and ready.  Close it when done.

    ``conf`` may be any parsed oslo.config object: what it lacks is registered on it.  ``url`` None takes ``[db] url``.
    Raises what `build_db` and `DbApi.initialize` raise.
    """
    db = build_db(url, conf, with_outbox=with_outbox)
    try:
        db.initialize()
    except BaseException:
        db.close()
        raise
    return db


def build_db(url: str | None = None, conf: cfg.ConfigOpts | None = None, *, with_outbox: bool = True) -> DbApi:
    """The same, constructed and not yet connected.

    Raises what `load_db_driver` raises, and InvalidConfig when the URL or an option cannot be used.
    """
    conf = new_conf() if conf is None else conf
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    check_group(conf, config.GROUP, config.OPTIONS)
    parts = _split(conf[config.GROUP].url if url is None else url)
    # A URL given by the caller speaks for itself; the option belongs to the option ``url``.
    configured = conf[config.GROUP].driver if url is None else ""
    driver_class = load_db_driver(configured or parts.scheme)
    for group, options in driver_class.options.items():
        try:
            conf.register_opts(options, group=group)
        except cfg.DuplicateOptError as error:
            raise DriverError(f"{driver_class.__name__} redefines an option of group [{group}]: {error}") from error
        check_group(conf, group, options)
    db = driver_class(conf, parts)
    db.with_outbox = with_outbox
    return db


def load_db_driver(name: str) -> type[DbApi]:
    """The driver class installed under ``name``.  Imports its module and the library behind it.

    Raises DriverNotFound with the names that exist, DriverDependencyMissing with the pip extra when the library is
    missing or cannot be imported, and DriverError when the driver itself is broken.
    """
    listing: NamedExtensionManager[Any] = NamedExtensionManager(NAMESPACE, names=[])  # loads nothing, only lists
    entries = listing.list_entry_points()
    found = [entry for entry in entries if entry.name == name]
    if not found:
        names = ", ".join(sorted({entry.name for entry in entries})) or "none"
        raise DriverNotFound(f"no database driver is installed under the name {name!r}; available: {names}")
    if len(found) > 1:
        targets = " and ".join(sorted(entry.value for entry in found))
        raise DriverError(f"several database drivers are named {name!r}: {targets}; uninstall all but one")
    return _import_class(found[0])


def _import_class(entry: importlib.metadata.EntryPoint) -> type[DbApi]:
    failures: list[BaseException] = []
    manager: NamedExtensionManager[Any] = NamedExtensionManager(
        NAMESPACE,
        names=[entry.name],
        on_load_failure_callback=lambda _manager, _entry, error: failures.append(error),
        on_missing_entrypoints_callback=lambda _names: None,  # without it a failure is logged as well as raised
    )
    if failures:
        raise _load_error(entry, failures[0]) from failures[0]
    driver_class = manager[entry.name].plugin
    if not (isinstance(driver_class, type) and issubclass(driver_class, DbApi)):
        raise DriverError(f"database driver {entry.name!r}: {entry.value} is not a subclass of DbApi")
    return driver_class


def _load_error(entry: importlib.metadata.EntryPoint, error: BaseException) -> DriverError:
    library = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if not library or library in (*_OWN_PACKAGES, entry.module.partition(".")[0]):
        return DriverError(f"database driver {entry.name!r} is broken: {entry.value}: {type(error).__name__}: {error}")
    problem = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
    # stevedore's cache drops the distribution an entry point came from, so it is looked up again.
    known = importlib.metadata.entry_points(group=NAMESPACE, name=entry.name)
    package = next((found.dist.name for found in known if found.dist is not None), "heliograph")
    remedy = f"pip install '{package}[{','.join(entry.extras)}]'" if entry.extras else f"install {library!r}"
    return DriverDependencyMissing(
        f"database driver {entry.name!r} needs the Python library {library!r}, which {problem}: {remedy}"
    )


def _split(url: str) -> SplitResult:
    shown = re.sub(r"//[^/@]*@", "//***@", url)
    try:
        parts = urlsplit(url)
        _ = parts.port  # computed on access: an impossible port is refused here, for every driver alike
    except ValueError as error:
        raise InvalidConfig(f"URL {shown!r} cannot be understood: {error}") from error
    if not parts.scheme or "://" not in url:
        raise InvalidConfig(f"URL {shown!r} does not name a database: write driver://..., as in sqlite:///path/file.db")
    return parts
