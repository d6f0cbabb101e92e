"""Options of commands that use a database, and the way from them to an `NbApi`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heliograph.options import add_config_file

if TYPE_CHECKING:
    from nb_api import DbObject, NbApi


def add_database(parser: argparse.ArgumentParser) -> None:
    """``--db``, ``--bus`` and ``--config-file``: which database, and on which bus its changes are published."""
    group = parser.add_argument_group("the database and the bus")
    group.add_argument(
        "--db", metavar="URL", help="the database, as in sqlite:///tmp/objects.db (default: [db] url of the file)"
    )  # fmt: skip
    group.add_argument(
        "--bus", metavar="URL",
        help="driver and address of the bus (default: none, unless the configuration has enable_df_pub_sub)",
    )  # fmt: skip
    add_config_file(group, "read the configuration from FILE; may be repeated, later files win")


def open_nb(args: argparse.Namespace, cache_options: Mapping[str, str] | None = None) -> NbApi:
    """``cache_options`` are options of ``[local_cache]`` that the command line has.

    Raises UsageError, InvalidConfig, DbUnavailable, and what loading a driver may raise.
    """
    from nb_api import NbApi, notify_config
    from pubsub_api import loading
    from pubsub_api.config import GROUP, new_conf
    from pubsub_api.errors import UsageError

    if args.bus is not None and args.config_file:
        raise UsageError("give --bus or --config-file, not both")
    if args.bus is None:
        conf = new_conf(args.config_file)
    else:
        conf = loading.conf_from_url(args.bus)
        conf.set_override("enable_df_pub_sub", True, group=GROUP)
    notify_config.register(conf)
    for name, value in (cache_options or {}).items():
        conf.set_override(name, value, group=notify_config.CACHE_GROUP)
    return NbApi.open(conf=conf, url=args.db)


def object_record(found: DbObject) -> dict[str, Any]:
    return {
        "table": found.table,
        "key": found.key,
        "topic": found.topic,
        "version": found.version,
        "value": found.value,
    }


def object_line(found: DbObject) -> str:
    from heliograph.output import compact

    return f"{found.table}/{found.key} v{found.version} {found.topic} {compact(found.value)}"
