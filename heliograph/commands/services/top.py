"""``heliograph top``: the fleet, live."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from heliograph import exits, options
from heliograph.commands.services.fleet import watch
from heliograph.output import Output, make_table
from heliograph.terminal.fleet_view import (
    LOOK_INTERVAL_S,
    NO_MEMBERS,
    STATE_STYLES,
    add_view,
    fit_columns,
    open_fleet_db,
    print_view,
    record,
    selected,
    summary,
)

if TYPE_CHECKING:
    from rich.console import Group

    from nb_api import DbApi
    from nb_api.fleet import FleetMember, FleetView

DESCRIPTION = """\
Show the processes that report to a database (see `heliograph fleet`) as a table that changes in its place, with rates;
worst first.  Ctrl-C ends it.

Without a terminal, and with --json, it prints a view at every interval.  --once prints one, after a time in which every
member has reported.  The exit code is 0.
"""
EXAMPLES = """\
  heliograph top --db postgresql://127.0.0.1/objects
  heliograph top --role controller --sort rate --limit 20
  heliograph top --once --json
"""
_ROWS_AROUND = 6
"""Lines of the screen that show no member."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", metavar="TIME", type=options.seconds, default=2.0, help="between two views (default: 2s)"
    )
    parser.add_argument("--once", action="store_true", help="print one view and end")
    options.add_timeout(parser)
    add_view(parser)
    options.add_json(parser, "one JSON object per view, as `heliograph fleet --json` has it")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises DbNotFound, NotSupported, UsageError, and at the start DbUnavailable, which is shown later on."""
    with contextlib.closing(open_fleet_db(args)) as db:
        if args.once:
            _print(args, output, watch(db, None))
        elif output.is_json or not output.can_redraw:
            with contextlib.suppress(KeyboardInterrupt):
                for view, _ in _views(args, db):
                    if view is not None:
                        _print(args, output, view)
                        output.flush()
        else:
            _show(args, output, db)
    return exits.OK


def _views(args: argparse.Namespace, db: DbApi) -> Iterator[tuple[FleetView | None, str]]:
    """At every interval until ``--timeout``: the last view, and the problem that makes it old, or an empty string."""
    from nb_api.errors import DbUnavailable
    from nb_api.fleet import FleetObserver

    observer = FleetObserver(db)
    view, problem = observer.look(), ""
    ends_at = None if args.timeout is None else time.monotonic() + args.timeout
    while True:
        yield view, problem
        shown_at = time.monotonic()
        while (left_s := shown_at + args.interval - time.monotonic()) > 0:
            if ends_at is not None and time.monotonic() >= ends_at:
                return
            time.sleep(min(left_s, LOOK_INTERVAL_S))  # looks are more frequent than views, so that ages are exact
            try:
                view, problem = observer.look(), ""
            except DbUnavailable as error:
                problem = str(error)
        if ends_at is not None and time.monotonic() >= ends_at:
            return


def _print(args: argparse.Namespace, output: Output, view: FleetView) -> None:
    members = selected(args, view)
    if output.is_json:
        output.record(record(view, members, args.limit))
    else:
        print_view(output, view, members[: args.limit], len(members))


def _show(args: argparse.Namespace, output: Output, db: DbApi) -> None:
    from rich.live import Live

    console = output.console
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        for view, problem in _views(args, db):
            if view is not None:
                rows = args.limit or max(1, console.height - _ROWS_AROUND)
                live.update(_screen(view, selected(args, view), rows, problem, console.width), refresh=True)


def _screen(view: FleetView, members: list[FleetMember], rows: int, problem: str, width: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    columns, fitting, left_out = fit_columns(members[:rows], width)
    table = make_table("", columns, fitting)
    for one, row in zip(members, table.rows, strict=False):
        row.style = STATE_STYLES.get(one.state, "bold red")
    below = "; ".join(filter(None, (f"{len(members) - rows} more" if len(members) > rows else "", left_out)))
    trouble = f"the database does not answer, this is old: {problem}" if problem else ""
    lines = [summary(view, len(members)), NO_MEMBERS if not view.members else "", trouble, below]
    return Group(Text(lines[0]), *(Text(line, style="bold red") for line in lines[1:3] if line), table, Text(below))
