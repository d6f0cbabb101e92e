"""``heliograph fleet``: the processes of the fleet, and which of them are behind, deaf, silent or old."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING

from heliograph import exits, options
from heliograph.output import Output, counted, note
from heliograph.terminal.confirming import is_confirmed
from heliograph.terminal.fleet_view import (
    LOOK_INTERVAL_S,
    add_view,
    open_fleet_db,
    print_view,
    record,
    selected,
)

if TYPE_CHECKING:
    from nb_api import DbApi
    from nb_api.fleet import FleetView

DESCRIPTION = """\
List the processes that report to a database (--fleet of a daemon, nb_api.fleet.report in a program): name, state,
release, how far each copy is behind, waiting events, resyncs, links.  The worst come first.

The clocks of the processes are not trusted: the command sees that a process is silent by watching.  So it takes a few
seconds, by default as long as the slowest process needs for two reports, and at most a minute.  --watch 0 shows the
last reports at once.

The exit code is 0 when all selected processes are ok, 1 when one is not, or there are fewer than --expect.
"""
EXAMPLES = """\
  heliograph fleet --db postgresql://127.0.0.1/objects
  heliograph fleet --state behind --state silent --json | jq '.members[].name'
  heliograph fleet --role controller --sort resyncs --limit 20 --expect 500
"""
_WATCH_S_MAX = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch", metavar="TIME", type=options.seconds, help="how long to watch (default: as long as needed)"
    )
    parser.add_argument("--expect", metavar="N", type=options.positive_int, help="fewer members than N are a problem")
    parser.add_argument(
        "--forget-silent",
        action="store_true",
        help="remove the reports of silent members from the database",
    )
    options.add_confirmation(parser)
    add_view(parser)
    options.add_json(parser, 'one JSON object: {"members": [...], "total": ..., "states": {...}, ...}')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises DbNotFound, DbUnavailable, NotSupported, UsageError."""
    with contextlib.closing(open_fleet_db(args)) as db:
        view = watch(db, args.watch)
        members = selected(args, view)
        missing = max(0, (args.expect or 0) - len(members))
        if args.forget_silent:
            _forget(args, output, db, [one.key for one in members if "silent" in one.states])
            return exits.OK
    if output.is_json:
        output.record({**record(view, members, args.limit), "missing": missing})
    else:
        print_view(output, view, members[: args.limit], len(members), shows_reasons=True)
        if missing:
            output.line(f"{counted(missing, 'member')} missing of {args.expect}", style="bold red")
    return exits.FAILED if missing or any(one.state != "ok" for one in members) else exits.OK


def watch(db: DbApi, watch_s: float | None) -> FleetView:
    """The view after watching for ``watch_s``.  Without it, after a time in which every member has reported twice.

    Blocks for that long.  Raises DbUnavailable.
    """
    from nb_api.fleet import FleetObserver
    from nb_api.fleet.judging import BEHIND_S

    observer = FleetObserver(db)
    view = observer.look()
    while True:
        intervals = [one.report.interval_s for one in view.members if one.report is not None]
        # A member is silent after two intervals and a second, and behind when a change is missing for `BEHIND_S`.
        needed_s = 0.0 if not intervals else 2 * max(intervals) + BEHIND_S
        wanted_s = min(needed_s, _WATCH_S_MAX) if watch_s is None else watch_s
        if view.observed_s >= wanted_s:
            return view
        time.sleep(min(LOOK_INTERVAL_S, wanted_s))
        view = observer.look()


def _forget(args: argparse.Namespace, output: Output, db: DbApi, keys: list[str]) -> None:
    """Remove the reports of these members.  A member that lives reports again."""
    if not keys:
        note("heliograph fleet: none of them is silent")
        return
    if is_confirmed(args, output, f"forget {counted(len(keys), 'member')}: {', '.join(keys[:10])}"):
        db.forget_reports(keys)
        output.result({"forgotten": keys}, f"forgot {counted(len(keys), 'member')}")
