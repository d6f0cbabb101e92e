"""Where the configuration of a program comes from: its arguments, the environment, or a file of the host.

If the program gives arguments, only they count.  If it gives none, the files that ``HELIOGRAPH_CONFIG`` names are read,
or ``/etc/heliograph/heliograph.conf`` if it exists.  The URLs ``HELIOGRAPH_DB``, ``HELIOGRAPH_BUS`` and
``HELIOGRAPH_LOG`` take precedence over these files.
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
"""Read when neither the program nor the environment names files."""
DB, BUS, LOG, CONFIG = "HELIOGRAPH_DB", "HELIOGRAPH_BUS", "HELIOGRAPH_LOG", "HELIOGRAPH_CONFIG"

_LOG_DRIVERS = Plugins("heliograph.log_driver", object, "log driver")

Files = Iterable[str | os.PathLike[str]]


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """The configuration of a program that gives no arguments.  An empty variable counts as not set."""

    db: str | None
    bus: str | None
    log: str | None
    config_files: tuple[str, ...]


def surroundings() -> Surroundings:
    """From the environment of this process, and from the host.

    ``HELIOGRAPH_CONFIG`` lists files with ``:`` between them; later files take precedence.
    """
    files = [name for name in os.environ.get(CONFIG, "").split(os.pathsep) if name]
    if not files and SYSTEM_FILE.is_file():
        files = [str(SYSTEM_FILE)]
    db, bus, log = (os.environ.get(name) or None for name in (DB, BUS, LOG))
    return Surroundings(db, bus, log, tuple(files))


def conf_of(*, bus: str | None = None, log: str | None = None, config_files: Files = ()) -> cfg.ConfigOpts:
    """A new ``conf`` from files, and from URLs, which take precedence.

    The driver of ``log`` must be installed; it is not imported.  Raises InvalidConfig, UsageError, DriverNotFound, and
    what loading the driver of ``bus`` raises.
    """
    conf = config.new_conf(config_files)
    if bus is not None:
        loading.configure_from_url(conf, bus)
    if log is not None:
        parts = split_url(log, what="log driver", example="sqlite:///path/log.db", has_hosts=True)
        if not conf.config_file:  # a file may name the driver
            _LOG_DRIVERS.find(parts.scheme)
        conf.register_opts([config.LOG_URL], group=config.LOG_GROUP)
        conf.set_override(config.LOG_URL.name, log, group=config.LOG_GROUP)
    return conf


def is_default(conf: cfg.ConfigOpts, name: str, group: str) -> bool:
    """Whether no file, no environment variable and no program has set the option."""
    location = conf.get_location(name, group)
    return location is None or location.location is cfg.Locations.opt_default
