"""``heliograph status``: the state of the publisher service of this host, and of its database."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from heliograph import exits, options
from heliograph.opening import databases
from heliograph.output import Output
from pubsub_api.errors import HeliographError, TransportUnavailable

DESCRIPTION = """\
Show the state of the publisher service of this host.

The configuration says where it is: at the socket file beside [pubsub] publisher_multiproc_socket, or at the port
[publisher_service] health_port.  With a database (--db, or [pubsub] enable_df_pub_sub) the command shows the database's
revision and outbox, too; when no service answers, it reads them from the database itself.

The exit code is 0 without problems, 1 with one.
"""
EXAMPLES = """\
  heliograph status --config-file /etc/heliograph/heliograph.conf
  heliograph status --json | jq .service.workers
"""

_MAIN = (
    ("process", "pid"), ("up for, s", "uptime_s"), ("publisher", "name"), ("GUID", "guid"), ("address", "address"),
    ("socket", "socket"), ("workers", "workers"), ("streams", "streams"), ("events", "events"),
    ("last publish, s ago", "last_publish_s"), ("backlog, bytes", "backlog_bytes"), ("send failures", "send_failures"),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        type=options.seconds,
        default=15.0,
        help="how long to wait (default: 15s)",
    )
    options.add_session(parser)
    databases.add_db(parser)
    options.add_json(parser, 'one JSON object: {"ok": ..., "service": {...}, "database": {...}, "problems": [...]}')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises InvalidConfig.  A service that does not answer is a problem that is printed, not an error."""
    conf = databases.read_service_conf(args)
    problems: list[str] = []
    service: dict[str, Any] | None = None
    try:
        service = ask_service(conf, args.timeout)
    except HeliographError as error:
        problems.append(str(error))
    database = _look_at_database(conf, service, problems)
    if service is not None and not service["ok"]:
        problems.append("the service reports that it is not healthy")
    if database is not None and database.get("problem"):
        problems.append(f"the database: {database['problem']}")
    if database is not None and database.get("undone"):
        problems.append(f"upkeep that does not run in the elected service: {', '.join(database['undone'])}")
    if database is not None and database.get("refused"):
        count = database["sweeper"]["refused"]
        problems.append(f"{count} changes cannot be published and stay in the outbox, {database['refused'][0]}")
    if database is not None and database.get("refused_of_watched"):
        count, first = database["watcher"]["refused"], database["refused_of_watched"][0]
        problems.append(f"{count} changes of watched tables cannot be published, {first}")
    if output.is_json:
        output.record({"ok": not problems, "service": service, "database": database, "problems": problems})
    else:
        _print(output, service, database, problems)
    return exits.FAILED if problems else exits.OK


def ask_service(conf: Any, timeout_s: float) -> dict[str, Any]:
    """The report of the publisher service of this host.

    Blocks for ``timeout_s`` at most.  Raises TransportUnavailable, HeliographError.
    """
    from publisher_service import config, health, ownership

    config.register(conf)
    group = conf[config.GROUP]
    if group.health == "off":
        raise TransportUnavailable("[publisher_service] health is off, so the service does not answer")
    if group.health == "http":
        return health.ask_http(group.health_port, timeout_s=timeout_s)
    path = ownership.beside(ownership.socket_path(conf), ownership.HEALTH_SUFFIX)
    return health.ask(path, timeout_s=timeout_s)


def _look_at_database(conf: Any, service: dict[str, Any] | None, problems: list[str]) -> dict[str, Any] | None:
    """The state of the database as the service reports it; without a service, as this process reads it."""
    from publisher_service.upkeep import start

    if service is not None:
        known: dict[str, Any] | None = service.pop("database", None)
        return known
    if not start.are_wanted(conf):
        return None
    from nb_api.loading import open_db

    try:
        db = open_db(None, conf, with_outbox=False, must_exist=True)
    except HeliographError as error:
        problems.append(f"the database: {error}")
        return None
    with contextlib.closing(db):
        return start.look_at(db)


def _print(
    output: Output, service: dict[str, Any] | None, database: dict[str, Any] | None, problems: list[str]
) -> None:
    if service is not None:
        rows = [(name, service[key]) for name, key in _MAIN]
        rows += [(name.replace("_", " "), value) for name, value in {**service["hop"], **service["sequencer"]}.items()]
        rows += [(f"journal: {name.replace('_', ' ')}", value) for name, value in service["journal"].items()]
        output.table("publisher service", ("what", "value"), rows)
    if database is not None:
        outbox = database["outbox"]
        is_more = outbox is not None and outbox == database["outbox_shown_max"]
        rows = [("revision", database["revision"]), ("outbox", f"{outbox} or more" if is_more else outbox)]
        if "leader" in database:
            rows += [("elected", "this service" if database["leader"] else database["leader_name"] or "none"),
                     ("swept", database["sweeper"]["swept"]),
                     ("watched changes published", (database["watcher"] or {}).get("published", 0))]  # fmt: skip
        output.table("database", ("what", "value"), rows)
    for problem in problems:
        output.line(f"problem: {problem}", style="bold red")
    if not problems:
        output.line("ok", style="green")
