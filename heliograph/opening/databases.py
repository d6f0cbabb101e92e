"""Options of commands that use a database, and how they become an open `NbApi`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heliograph.options import add_bus, add_config_file, add_context, read_conf
from heliograph.output import Payload, compact

if TYPE_CHECKING:
    from oslo_config import cfg

    from nb_api import DbObject, NbApi


def add_database(parser: argparse.ArgumentParser) -> None:
    """``--db``, ``--bus``, ``--config-file`` and ``--context``: which database, and where its changes are published."""
    group = parser.add_argument_group("the database and the bus")
    add_db(group)
    add_bus(
        group,
        "driver and address of the bus (default: none, unless the configuration has enable_df_pub_sub); also "
        "HELIOGRAPH_BUS",
    )
    add_config_file(group, "read the configuration from FILE; may be repeated, later files win")
    add_context(group)


def add_db(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--db", metavar="URL",
        help="the database, as in sqlite:///tmp/objects.db (default: [db] url of the file); also HELIOGRAPH_DB",
    )  # fmt: skip


def read_service_conf(args: argparse.Namespace) -> cfg.ConfigOpts:
    """The configuration of a publisher service; with ``--db`` the service works for that database, too.

    Raises InvalidConfig.
    """
    from nb_api import config
    from pubsub_api.config import GROUP

    conf = read_conf(args)
    if args.db is not None:
        conf.register_opts(config.OPTIONS, config.GROUP)
        conf.set_override("url", args.db, group=config.GROUP)
        conf.set_override("enable_df_pub_sub", True, group=GROUP)
    return conf


def open_nb(
    args: argparse.Namespace, cache_options: Mapping[str, str] | None = None, *, must_exist: bool = True
) -> NbApi:
    """An open `NbApi`.  ``cache_options`` override options of ``[local_cache]``.

    ``must_exist`` is for commands that only read.  Raises InvalidConfig, DbNotFound, DbUnavailable, DriverNotFound,
    DriverDependencyMissing.
    """
    from nb_api import NbApi, notify_config
    from nb_api.errors import DbNotFound, DbUnavailable
    from nb_api.loading import build_db, check_exists
    from pubsub_api.config import GROUP

    conf = read_conf(args)
    if args.bus is not None:
        conf.set_override("enable_df_pub_sub", True, group=GROUP)
    notify_config.register(conf)
    for name, value in (cache_options or {}).items():
        conf.set_override(name, value, group=notify_config.CACHE_GROUP)
    if must_exist:
        # When it cannot be reached, opening may find another server of it below.
        with contextlib.closing(build_db(args.db, conf)) as db, contextlib.suppress(DbUnavailable):
            try:
                check_exists(db)
            except DbNotFound as error:
                hint = "" if args.db else "; name another with --db, --config-file or HELIOGRAPH_DB"
                raise DbNotFound(f"{error}{hint}") from None
    return NbApi.open(conf=conf, url=args.db)


def object_record(found: DbObject) -> dict[str, Any]:
    return {
        "table": found.table,
        "key": found.key,
        "topic": found.topic,
        "version": found.version,
        "value": Payload(found.value),
    }


def object_line(found: DbObject) -> str:
    return f"{found.table}/{found.key} v{found.version} {found.topic} {compact(found.value)}"
