"""Where a program's configuration comes from, when it is opened: arguments, the environment, or a file of the host.

What the program gives counts, and then nothing else is looked at.  A program that gives nothing is configured by its
surroundings: the files that ``HELIOGRAPH_CONFIG`` names, or else ``/etc/heliograph/heliograph.conf`` when it is there,
and above them ``HELIOGRAPH_DB``, ``HELIOGRAPH_BUS`` and ``HELIOGRAPH_LOG``, each a URL.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable

from oslo_config import cfg

from pubsub_api import config, loading
from pubsub_api.runtime.plugins import Plugins, split_url

SYSTEM_FILE = pathlib.Path("/etc/heliograph/heliograph.conf")
"""Read when neither the program nor the environment names another."""
DB, BUS, LOG, CONFIG = "HELIOGRAPH_DB", "HELIOGRAPH_BUS", "HELIOGRAPH_LOG", "HELIOGRAPH_CONFIG"

_LOG_DRIVERS = Plugins("heliograph.log_driver", object, "log driver")

Files = Iterable[str | os.PathLike[str]]


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a program is configured by that gives nothing itself.  A variable that is empty counts as not set."""

    db: str | None
    bus: str | None
    log: str | None
    config_files: tuple[str, ...]


def surroundings() -> Surroundings:
    """The environment of this process.  ``HELIOGRAPH_CONFIG`` has several files with ``:`` between; later ones win."""
    named = [name for name in os.environ.get(CONFIG, "").split(os.pathsep) if name]
    if not named and SYSTEM_FILE.is_file():
        named = [str(SYSTEM_FILE)]
    db, bus, log = (os.environ.get(name) or None for name in (DB, BUS, LOG))
    return Surroundings(db, bus, log, tuple(named))


def conf_of(*, bus: str | None = None, log: str | None = None, config_files: Files = ()) -> cfg.ConfigOpts:
    """A new ``conf``: the files, and above them the URLs.

    The driver of ``log`` is looked for and not imported.  Raises InvalidConfig, UsageError, DriverNotFound, and what
    loading the driver of ``bus`` raises.
    """
    conf = config.new_conf(config_files)
    if bus is not None:
        loading.configure_from_url(conf, bus)
    if log is not None:
        parts = split_url(log, what="log driver", example="sqlite:///path/log.db", has_hosts=True)
        if not conf.config_file:  # which may name the driver
            _LOG_DRIVERS.find(parts.scheme)
        conf.register_opts([config.LOG_URL], group=config.LOG_GROUP)
        conf.set_override(config.LOG_URL.name, log, group=config.LOG_GROUP)
    return conf


def is_default(conf: cfg.ConfigOpts, name: str, group: str) -> bool:
    """Whether neither a file, nor the environment, nor a program has given the option a value."""
    location = conf.get_location(name, group)
    return location is None or location.location is cfg.Locations.opt_default
