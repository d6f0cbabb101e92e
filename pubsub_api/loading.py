"""From a driver's name, or a URL, to the driver.

Drivers are entry points of the namespace ``heliograph.pubsub_driver``, and stevedore finds them: a driver of a third
party is installed, named in the configuration and used in the same way as the shipped drivers.  Nothing here opens a
connection.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable

from oslo_config import cfg

from pubsub_api import config
from pubsub_api.driver import PubSubApi
from pubsub_api.errors import DriverError, HeliographError, InvalidConfig
from pubsub_api.runtime.options import refuse_tls
from pubsub_api.runtime.plugins import Plugins, register_options, split_url, without_password

NAMESPACE = "heliograph.pubsub_driver"

_PLUGINS = Plugins(NAMESPACE, PubSubApi, "driver")  # type: ignore[type-abstract]  # only subclasses are instantiated


@dataclasses.dataclass(frozen=True)
class DriverStatus:
    """An installed driver: its class when it can be used, the problem when it cannot."""

    target: str
    """``module:class`` of the entry point.  Names with the same target are aliases."""
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
    return _PLUGINS.load(name)


def available_drivers() -> dict[str, DriverStatus]:
    """Every installed driver name, sorted, with its class or its problem.  Imports all of them and raises for none."""
    statuses: dict[str, DriverStatus] = {}
    for entry in sorted(_PLUGINS.entry_points(), key=lambda entry: entry.name):
        target = f"{entry.module}:{entry.attr}"
        try:
            statuses[entry.name] = DriverStatus(target, driver_class=load_driver(entry.name))
        except DriverError as problem:
            statuses[entry.name] = DriverStatus(target, problem=problem)
    return statuses


def build_driver(conf: cfg.ConfigOpts, name: str | None = None) -> PubSubApi:
    """Construct the driver that ``conf`` selects, or the one named, with its options registered and checked.

    ``conf`` may be any parsed oslo.config object: options that it lacks are registered on it.  Raises what
    `load_driver` raises, and InvalidConfig when a value is out of bounds or options contradict each other.
    """
    conf.register_opts(config.PUBSUB_OPTIONS, group=config.GROUP)
    config.check_group(conf, config.GROUP, config.PUBSUB_OPTIONS)
    name = name or conf[config.GROUP].pub_sub_driver
    driver_class = load_driver(name)
    register_options(conf, driver_class, driver_class.options)
    for group, options in driver_class.options.items():
        config.check_group(conf, group, options)
    config.check_combinations(conf)
    if not driver_class.uses_tls:
        refuse_tls(conf, config.GROUP, name)
    return driver_class(conf)


def conf_from_url(url: str, *, config_files: Iterable[str | os.PathLike[str]] = ()) -> cfg.ConfigOpts:
    """A new ``conf`` for the driver that the scheme of ``url`` names, for example ``zmq://127.0.0.1:8866``.

    The URL takes precedence over the files.  Raises InvalidConfig when it cannot be understood, and what `load_driver`
    raises.
    """
    conf = config.new_conf(config_files)
    configure_from_url(conf, url)
    return conf


def configure_from_url(conf: cfg.ConfigOpts, url: str) -> None:
    """Set the driver and the address that a URL names in a ``conf`` that has the ``[pubsub]`` group.

    Raises as `conf_from_url`.
    """
    parts = split_url(url, what="driver", example="zmq://127.0.0.1:8866")
    driver_class = load_driver(parts.scheme)
    register_options(conf, driver_class, driver_class.options)
    conf.set_override("pub_sub_driver", parts.scheme, group=config.GROUP)
    try:
        driver_class.configure_from_url(conf, parts)
    except HeliographError:
        raise
    except (ValueError, cfg.Error) as error:  # oslo.config: an override is out of bounds
        raise InvalidConfig(f"URL {without_password(url)!r} cannot be used: {error}") from error
