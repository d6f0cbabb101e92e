"""What ``heliograph fleet`` and ``heliograph top`` share: the options, the database, and the rows."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from heliograph import options
from heliograph.opening.databases import add_db
from heliograph.output import counted

if TYPE_CHECKING:
    from nb_api import DbApi
    from nb_api.fleet import FleetMember, FleetView

LOOK_INTERVAL_S = 0.5
COLUMNS = (
    "member", "state", "role", "host", "release", "behind", "queue", "events/s", "resyncs", "links", "objects",
    "digest", "clock", "seen",
)  # fmt: skip
_LEAST_USEFUL = ("digest", "clock", "objects", "links", "host", "role", "resyncs", "release")
"""Columns that are left out, one after the other, where there is no room for all."""
_CELL_FRAME = 3
STATE_STYLES = {"ok": "green", "old": "yellow", "incomplete": "yellow", "refusing": "yellow", "unknown": "yellow"}
"""All other states are bad."""

_SORTS: dict[str, Callable[[FleetMember], Any]] = {
    "state": lambda _: 0,  # the order of the view: worst first
    "name": lambda one: one.name,
    "host": lambda one: one.report.host if one.report else "",
    "release": lambda one: one.report.release if one.report else "",
    "behind": lambda one: -one.behind,
    "queue": lambda one: -one.report.lag if one.report else 0,
    "rate": lambda one: -((one.received_per_s or 0) + (one.published_per_s or 0)),
    "resyncs": lambda one: -sum(one.report.resyncs.values()) if one.report else 0,
    "silent": lambda one: -one.silent_s,
}


def add_view(parser: argparse.ArgumentParser) -> None:
    """Which members are shown, and in what order; which database they are in."""
    which = parser.add_argument_group("which members")
    which.add_argument("--name", metavar="PATTERN", help="only these, as in 'host-7/*'")
    which.add_argument("--host", metavar="PATTERN", help="only those of these hosts")
    which.add_argument("--role", metavar="PATTERN", help="only those of this role, as in controller")
    which.add_argument(
        "--state", metavar="STATE", action="append", default=[],
        help="only those in this state, or with `bad` all that are not ok; may be repeated",
    )  # fmt: skip
    which.add_argument(
        "--sort", choices=list(_SORTS), default="state", help="order (default: state, which is worst first)"
    )
    which.add_argument("--limit", metavar="N", type=options.positive_int, help="show at most N; totals are of all")
    group = parser.add_argument_group("the database")
    add_db(group)
    options.add_config_file(group, "read the configuration from FILE; may be repeated, later files win")
    options.add_context(group)


def open_reports(args: argparse.Namespace) -> DbApi:
    """Raises DbNotFound, DbUnavailable, InvalidConfig, UsageError, and what loading a driver may raise."""
    from nb_api.fleet.judging import STATES
    from nb_api.loading import open_db
    from pubsub_api.config import new_conf
    from pubsub_api.errors import UsageError

    for state in args.state:
        if state not in (*STATES, "bad"):
            raise UsageError(f"there is no state {state!r}; there are: bad, {', '.join(STATES)}")
    return open_db(args.db, new_conf(args.config_file), with_outbox=False, must_exist=True)


def selected(args: argparse.Namespace, view: FleetView) -> list[FleetMember]:
    """In the order that is asked for, all of them."""
    found = [one for one in view.members if _is_wanted(args, one)]
    return sorted(found, key=_SORTS[args.sort])


def _is_wanted(args: argparse.Namespace, member: FleetMember) -> bool:
    texts = {
        "name": member.name,
        "host": member.report.host if member.report else "",
        "role": member.report.role if member.report else "",
    }
    patterns = ((text, getattr(args, option)) for option, text in texts.items())
    if not all(pattern is None or fnmatch.fnmatchcase(text, pattern) for text, pattern in patterns):
        return False
    states = {*member.states, *(() if member.state == "ok" else ("bad",))}
    return not args.state or not states.isdisjoint(args.state)


def cells(member: FleetMember) -> list[object]:
    """A member's row under `COLUMNS`.  What is not known is empty, and never 0."""
    report = member.report
    if report is None:
        return [member.name, member.state, *[""] * (len(COLUMNS) - 3), f"{member.silent_s:.0f}s"]
    rates = [rate for rate in (member.received_per_s, member.published_per_s) if rate is not None]
    is_silent = "silent" in member.states  # what it lacked, and its clock, when it told last say nothing of now
    is_clock_off = abs(member.clock_offset_s) >= 1 + report.interval_s and not is_silent
    total = report.links_up + report.links_down
    return [
        member.name,
        ", ".join(member.states),
        report.role,
        report.host,
        " ".join(filter(None, (report.release, report.program_release))),
        member.behind if report.copies and (member.behind or not is_silent) else "",
        report.lag,
        f"{sum(rates):g}" if rates else "",
        sum(report.resyncs.values()) if report.copies or report.has_bus else "",
        f"{report.links_up}/{total}" if report.has_bus else "",
        sum(copy.objects for copy in report.copies) if report.copies else "",
        " ".join(copy.digest[:8] for copy in report.copies if copy.digest),
        f"{member.clock_offset_s:+.0f}s" if is_clock_off else "",
        f"{member.silent_s:.0f}s",
    ]


def fitted(members: Sequence[FleetMember], width: int) -> tuple[list[str], list[list[object]], str]:
    """Columns and rows for a terminal of that width, and what to say of columns for which there is no room."""
    rows = [cells(one) for one in members]
    sizes = {
        name: _CELL_FRAME + max([len(name), *(len(str(row[place])) for row in rows)])
        for place, name in enumerate(COLUMNS)
    }
    left_out: list[str] = []
    for name in _LEAST_USEFUL:
        if sum(sizes.values()) < width:
            break
        del sizes[name]
        left_out.append(name)
    kept = [COLUMNS.index(name) for name in sizes]
    said = f"no room for {', '.join(left_out)}: see --json, or a wider terminal" if left_out else ""
    return list(sizes), [[row[place] for place in kept] for row in rows], said


def record(view: FleetView, members: Sequence[FleetMember], limit: int | None) -> dict[str, Any]:
    """The view for scripts.  Totals are of all members, whatever is shown."""
    import msgspec

    return {
        "members": [{"name": one.name, "state": one.state, **msgspec.to_builtins(one)} for one in members[:limit]],
        "total": len(view.members),
        "selected": len(members),
        "states": view.states(),
        "revision": view.revision,
        "observed_s": round(view.observed_s, 1),
        "looks_with_changes_left_out": view.left_out,
    }


def summary(view: FleetView, members: Sequence[FleetMember]) -> str:
    """One line: how many there are, and how they are."""
    states = ", ".join(f"{count} {state}" for state, count in view.states().items())
    shown = "" if len(members) == len(view.members) else f", {len(members)} selected"
    rate = sum((one.received_per_s or 0) + (one.published_per_s or 0) for one in view.members)
    return f"{counted(len(view.members), 'member')}{shown}: {states or 'none'}; {rate:,.0f} events/s"


EMPTY = (
    "no member has told of itself: start daemons with --fleet, or call nb_api.fleet.report() in programs "
    "(docs/fleet.md)"
)
