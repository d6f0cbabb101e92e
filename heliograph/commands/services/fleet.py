"""``heliograph fleet``: who is in the fleet, and who is behind, deaf, silent or old."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING

from heliograph import exits, options
from heliograph.output import Output, counted, note
from heliograph.terminal.asking import may_go_on
from heliograph.terminal.fleet_view import (
    EMPTY,
    LOOK_INTERVAL_S,
    add_view,
    fitted,
    open_reports,
    record,
    selected,
    summary,
)

if TYPE_CHECKING:
    from nb_api import DbApi
    from nb_api.fleet import FleetView

DESCRIPTION = """\
List the processes that tell of themselves in a database (--fleet of a daemon, nb_api.fleet.report in a program): name,
state, release, how far each copy is behind, events that wait, resyncs, links.  The worst come first.

No clock of a process is believed: that one is silent is seen by watching.  So this takes a few seconds, by default as
long as the slowest of them needs to tell something twice, and at most a minute.  --watch 0 only shows what was told.

The exit code is 0 when all that are shown are ok, 1 when one is not, or there are fewer than --expect.
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
        help="take those of them that are silent out of the database",
    )
    options.add_confirmation(parser)
    add_view(parser)
    options.add_json(parser, 'one JSON object: {"members": [...], "total": ..., "states": {...}, ...}')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises DbNotFound, DbUnavailable, NotSupported, UsageError."""
    with contextlib.closing(open_reports(args)) as db:
        view = watched(db, args.watch)
        members = selected(args, view)
        missing = max(0, (args.expect or 0) - len(members))
        if args.forget_silent:
            _forget(args, output, db, [one.key for one in members if "silent" in one.states])
            return exits.OK
    if output.is_json:
        output.record({**record(view, members, args.limit), "missing": missing})
    else:
        _print(args, output, view)
        if missing:
            output.line(f"{counted(missing, 'member')} missing of {args.expect}", style="bold red")
    return exits.FAILED if missing or any(one.state != "ok" for one in members) else exits.OK


def watched(db: DbApi, watch_s: float | None) -> FleetView:
    """What is seen in that time.  None: until every member had the time to tell something that could be judged."""
    from nb_api.fleet import FleetObserver
    from nb_api.fleet.judging import BEHIND_S

    observer = FleetObserver(db)
    view = observer.look()
    while True:
        intervals = [one.report.interval_s for one in view.members if one.report is not None]
        # Two intervals and a second are silence; and a change must be missing for a while.
        needed_s = 0.0 if not intervals else 2 * max(intervals) + BEHIND_S
        wanted_s = min(needed_s, _WATCH_S_MAX) if watch_s is None else watch_s
        if view.observed_s >= wanted_s:
            return view
        time.sleep(min(LOOK_INTERVAL_S, wanted_s))
        view = observer.look()


def _print(args: argparse.Namespace, output: Output, view: FleetView) -> None:
    members = selected(args, view)
    if not view.members:
        output.line(EMPTY)
        return
    columns, rows, left_out = fitted(members[: args.limit], output.console.width)
    output.table("", columns, rows)
    for one in members[: args.limit]:
        for why in one.why:
            output.line(
                f"{one.name}: {why}", style="bold red" if one.state in ("silent", "deaf", "behind", "slow") else ""
            )
    output.line(summary(view, members))
    if left_out:
        output.line(left_out)


def _forget(args: argparse.Namespace, output: Output, db: DbApi, keys: list[str]) -> None:
    """A member that lives after all tells of itself again."""
    if not keys:
        note("heliograph fleet: none of them is silent")
        return
    if may_go_on(args, output, f"forget {counted(len(keys), 'member')}: {', '.join(keys[:10])}"):
        db.forget_reports(keys)
        output.result({"forgotten": keys}, f"forgot {counted(len(keys), 'member')}")
