"""What the arguments of `NbApi.open` amount to: which database, and which configuration."""

from __future__ import annotations

import os
from collections.abc import Iterable

from oslo_config import cfg

from nb_api import config
from nb_api.errors import NoDatabase
from pubsub_api import opening
from pubsub_api.config import GROUP
from pubsub_api.errors import UsageError


def settle(
    url: str | None,
    bus: str | None,
    config_files: Iterable[str | os.PathLike[str]] | None,
    conf: cfg.ConfigOpts | None,
) -> tuple[str | None, cfg.ConfigOpts]:
    """The URL of the database, None when the configuration has it, and the configuration.

    Raises NoDatabase, InvalidConfig, UsageError, and what loading the driver of the bus raises.
    """
    if conf is not None:
        if bus is not None or config_files is not None:
            raise UsageError("give conf, or bus and config_files: a conf says itself what they say")
        return url, conf
    log = None
    is_from_around = url is bus is config_files is None
    if is_from_around:
        found = opening.surroundings()
        url, bus, log, config_files = found.db, found.bus, found.log, found.config_files
    # One file instead of a list is refused where the files are read.
    files = config_files if isinstance(config_files, str | os.PathLike) else list(config_files or ())
    conf = opening.conf_of(bus=bus, log=log, config_files=files)
    if bus is not None:
        _publish(conf)
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    if url is None and not files and opening.is_default(conf, "url", config.GROUP):
        raise NoDatabase(_unnamed(is_from_around))
    return url, conf


def _unnamed(is_from_around: bool) -> str:
    """What to do about it.  Says only of places that were looked at that nothing is there."""
    give = 'give NbApi.open a URL, as in NbApi.open("sqlite:///path/file.db")'
    if is_from_around:
        return (
            f"nothing names a database: {give}, or set {opening.DB}, or name a configuration file by config_files or "
            f"{opening.CONFIG}; there is no {opening.SYSTEM_FILE}"
        )
    return (
        f"no argument names a database: {give}, or a configuration file by config_files; with arguments only these "
        f"count, and {opening.DB}, {opening.CONFIG} and {opening.SYSTEM_FILE} are not looked at"
    )


def _publish(conf: cfg.ConfigOpts) -> None:
    """A program that names a bus wants to publish on it, and by itself: a publisher service is there when the site says
    so."""
    conf.set_override("enable_df_pub_sub", True, group=GROUP)
    if opening.is_default(conf, "pub_sub_use_multiproc", GROUP):
        conf.set_override("pub_sub_use_multiproc", False, group=GROUP)
