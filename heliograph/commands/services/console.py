"""``heliograph console``: a web page with the state of all parts."""

from __future__ import annotations

import argparse

from heliograph import exits, options
from heliograph.opening.databases import add_db
from heliograph.opening.logs import add_log
from heliograph.opening.targets import VARIABLES, as_options
from heliograph.output import Output
from heliograph.terminal.long_running import wait_until_end

DESCRIPTION = """\
Serve web pages on this host that show problems, controllers that are behind, deaf, silent or old, publishers and their
subscribers, groups with their lag and dead letters, durability services, and the log.  The pages update by themselves.

The console only reads, unless --admin-token-file names a token: then there are forms that pause, resume, drain and
destroy groups, redrive dead letters, seal the log and forget silent members.  Each form asks for the token; actions are
logged.

Reading needs no password, so the console listens on loopback only: from another host use ssh -L.
It shows what is named: --db for members and publishers, --log for groups and the log, --bus for durability services.
"""
EXAMPLES = """\
  heliograph console --db postgresql://127.0.0.1/objects
  heliograph console --db sqlite:///tmp/objects.db --log sqlite:///var/lib/heliograph/log.db --expect 500
  heliograph console --config-file /etc/heliograph/heliograph.conf --address 9200
"""
DEFAULT_ADDRESS = "127.0.0.1:8890"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", metavar="[HOST:]PORT", default=DEFAULT_ADDRESS,
        help="where to listen, on loopback (default: %(default)s); port 0 takes a free one",
    )  # fmt: skip
    parser.add_argument("--expect", metavar="N", type=options.positive_int, help="fewer members than N are a problem")
    parser.add_argument(
        "--admin-token-file", metavar="FILE",
        help="allow actions with the token in this file, which only its owner may be able to read",
    )  # fmt: skip
    parser.add_argument(
        "--tail", choices=("names", "values"),
        help="show events as they pass on the bus: without their values, or with them",
    )  # fmt: skip
    options.add_timeout(parser)
    options.add_session(parser)
    add_db(parser)
    add_log(parser)
    options.add_json(parser, 'one JSON object at the start: {"url": ...}')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises InvalidConfig, AddressInUse, LimitReached."""
    from heliograph.console.acting.guard import read_token
    from heliograph.console.server import ConsoleServer
    from heliograph.console.sources import ConsoleSources

    named = {name: getattr(args, name) for name in VARIABLES if getattr(args, name)}
    token = read_token(args.admin_token_file) if args.admin_token_file else None
    with (
        ConsoleSources(args) as sources,
        ConsoleServer(args.address, sources, target=as_options(named), token=token) as server,
    ):
        output.result({"url": server.url}, f"the console is at {server.url}; Ctrl-C ends it")
        output.flush()
        wait_until_end(args)
    return exits.OK
