"""From a driver's name, or a URL, to the driver.

Drivers are entry points of the namespace ``heliograph.pubsub_driver``, found by stevedore and by nothing else: a driver
of a third party is installed, named in the configuration, and used like the shipped ones.  An entry point may state the
pip extra that brings its library, ``zenoh = drivers.pubsub.zenoh:ZenohPubSub [zenoh]``; the error for a missing library
then says what to install.

Nothing here opens a connection.  Whatever goes wrong while a driver is found, imported or configured is raised as one
typed error with the cause attached, and nothing is logged instead.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from oslo_config import cfg
from stevedore.named import NamedExtensionManager

from pubsub_api import config
from pubsub_api.driver import PubSubApi
from pubsub_api.errors import (
    DriverDependencyMissing,
    DriverError,
    DriverNotFound,
    HeliographError,
    InvalidConfig,
)

NAMESPACE = "heliograph.pubsub_driver"

_OWN_PACKAGE = __name__.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class DriverStatus:
    """What is behind one driver name: the class when it can be used, the problem when it cannot."""

    target: str
    """The entry point's ``module:class``.  Names with the same target are aliases."""
    driver_class: type[PubSubApi] | None = None
    problem: DriverError | None = None

    @property
    def usable(self) -> bool:
        return self.problem is None


def load_driver(name: str) -> type[PubSubApi]:
    """The driver class installed under ``name``.  Imports its module and the library behind it.

    Raises DriverNotFound with the names that exist, DriverDependencyMissing with the pip extra when the library is
    missing or cannot be imported, and DriverError when the driver itself is broken.
    """
    found = [entry for entry in _entry_points() if entry.name == name]
    if not found:
        names = ", ".join(sorted({entry.name for entry in _entry_points()})) or "none"
        raise DriverNotFound(f"no driver is installed under the name {name!r}; available: {names}")
    if len(found) > 1:
        targets = " and ".join(sorted(entry.value for entry in found))
        raise DriverError(f"several drivers are installed under the name {name!r}: {targets}; uninstall all but one")
    return _import_class(found[0])


def available_drivers() -> dict[str, DriverStatus]:
    """Every installed driver name, sorted, with its class or its problem.  Imports all of them and raises for none."""
    statuses: dict[str, DriverStatus] = {}
    for entry in sorted(_entry_points(), key=lambda entry: entry.name):
        target = f"{entry.module}:{entry.attr}"
        try:
            statuses[entry.name] = DriverStatus(target, driver_class=load_driver(entry.name))
        except DriverError as problem:
            statuses[entry.name] = DriverStatus(target, problem=problem)
    return statuses


def build_driver(conf: cfg.ConfigOpts, name: str | None = None) -> PubSubApi:
    """Construct the driver that ``conf`` selects, or the one named, with its options registered and checked.

    ``conf`` may be any parsed oslo.config object: what it lacks is registered on it.  Raises what `load_driver` raises,
    and InvalidConfig when a value is out of bounds or options contradict each other.
    """
    conf.register_opts(config.PUBSUB_OPTIONS, group=config.GROUP)
    config.check_group(conf, config.GROUP, config.PUBSUB_OPTIONS)
    driver_class = load_driver(name or conf[config.GROUP].pub_sub_driver)
    _register_options(conf, driver_class)
    for group, options in driver_class.options.items():
        config.check_group(conf, group, options)
    config.check_combinations(conf)
    return driver_class(conf)


def conf_from_url(url: str) -> cfg.ConfigOpts:
    """A new ``conf`` for the driver that the scheme of ``url`` names, for example ``zmq://127.0.0.1:8866``.

    Raises InvalidConfig when the URL cannot be understood, and what `load_driver` raises.
    """
    parts = _split(url)
    driver_class = load_driver(parts.scheme)
    conf = config.new_conf()
    _register_options(conf, driver_class)
    conf.set_override("pub_sub_driver", parts.scheme, group=config.GROUP)
    try:
        driver_class.configure_from_url(conf, parts)
    except HeliographError:
        raise
    except (ValueError, cfg.Error) as error:  # what oslo.config raises when an override is out of bounds
        raise InvalidConfig(f"URL {_without_password(url)!r} cannot be used: {error}") from error
    return conf


def _entry_points() -> Sequence[importlib.metadata.EntryPoint]:
    manager: NamedExtensionManager[Any] = NamedExtensionManager(NAMESPACE, names=[])  # loads nothing, only lists
    return manager.list_entry_points()


def _import_class(entry: importlib.metadata.EntryPoint) -> type[PubSubApi]:
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
    if not (isinstance(driver_class, type) and issubclass(driver_class, PubSubApi)):
        raise DriverError(f"driver {entry.name!r}: {entry.value} is not a subclass of PubSubApi")
    return driver_class


def _load_error(entry: importlib.metadata.EntryPoint, error: BaseException) -> DriverError:
    library = _foreign_library(entry, error)
    if library is None:
        return DriverError(f"driver {entry.name!r} is broken: {entry.value}: {type(error).__name__}: {error}")
    problem = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
    return DriverDependencyMissing(
        f"driver {entry.name!r} needs the Python library {library!r}, which {problem}: {_remedy(entry, library)}"
    )


def _foreign_library(entry: importlib.metadata.EntryPoint, error: BaseException) -> str | None:
    """The library whose import failed, or None when the failure lies in the driver or in Heliograph itself."""
    if not isinstance(error, ImportError) or not error.name:
        return None
    library = error.name.partition(".")[0]
    return None if library in (entry.module.partition(".")[0], _OWN_PACKAGE) else library


def _remedy(entry: importlib.metadata.EntryPoint, library: str) -> str:
    if not entry.extras:
        return f"install {library!r}"
    # stevedore's cache drops the distribution an entry point came from, so it is looked up again.
    known = importlib.metadata.entry_points(group=NAMESPACE, name=entry.name)
    package = next((found.dist.name for found in known if found.dist is not None), "heliograph")
    return f"pip install '{package}[{','.join(entry.extras)}]'"


def _register_options(conf: cfg.ConfigOpts, driver_class: type[PubSubApi]) -> None:
    for group, options in driver_class.options.items():
        try:
            conf.register_opts(options, group=group)
        except cfg.DuplicateOptError as error:
            raise DriverError(f"{driver_class.__name__} redefines an option of group [{group}]: {error}") from error


def _split(url: str) -> SplitResult:
    shown = _without_password(url)
    try:
        parts = urlsplit(url)
        _ = parts.port  # computed on access: an impossible port is refused here, for every driver alike
    except ValueError as error:
        raise InvalidConfig(f"URL {shown!r} cannot be understood: {error}") from error
    if not parts.scheme or "://" not in url:
        raise InvalidConfig(f"URL {shown!r} does not name a driver: write driver://..., as in zmq://127.0.0.1:8866")
    return parts


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", url)
