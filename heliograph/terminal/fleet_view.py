"""What ``heliograph fleet`` and ``heliograph top`` share: the options, the database, and the rows."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from heliograph import options
from heliograph.opening.databases import add_db
from heliograph.output import Output, counted

if TYPE_CHECKING:
    from nb_api import DbApi
    from nb_api.fleet import FleetMember, FleetView

LOOK_INTERVAL_S = 0.5
COLUMNS = (
    "member", "state", "role", "host", "release", "behind", "queue", "events/s", "resyncs", "links", "objects",
    "digest", "clock", "seen",
)  # fmt: skip
_LEAST_USEFUL = ("digest", "clock", "objects", "links", "host", "role", "resyncs", "release")
"""Columns that are left out, in this order, on a terminal that is too narrow for all."""
_CELL_FRAME = 3
STATE_STYLES = {"ok": "green", "old": "yellow", "incomplete": "yellow", "refusing": "yellow", "unknown": "yellow"}
"""The style of a row; other states are red."""

NO_MEMBERS = (
    "no process reports to this database: start daemons with --fleet, or call nb_api.fleet.report() in programs "
    "(docs/fleet.md)"
)

_SORTS: dict[str, Callable[[FleetMember], Any]] = {
    "state": lambda _: 0,  # the view is sorted by state already, worst first
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
    """Options: which members are shown, in which order, and from which database."""
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


def open_fleet_db(args: argparse.Namespace) -> DbApi:
    """The database of the fleet.  Raises DbNotFound, DbUnavailable, InvalidConfig, UsageError, DriverNotFound,
    DriverDependencyMissing."""
    from nb_api.fleet.judging import STATES
    from nb_api.loading import open_db
    from pubsub_api.config import new_conf
    from pubsub_api.errors import UsageError

    for state in args.state:
        if state not in (*STATES, "bad"):
            raise UsageError(f"there is no state {state!r}; there are: bad, {', '.join(STATES)}")
    return open_db(args.db, new_conf(args.config_file), with_outbox=False, must_exist=True)


def selected(args: argparse.Namespace, view: FleetView) -> list[FleetMember]:
    """All members that the options select, in the order of ``--sort``."""
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
    """A member's row under `COLUMNS`.  An unknown number is empty, never 0."""
    report = member.report
    if report is None:
        return [member.name, member.state, *[""] * (len(COLUMNS) - 3), f"{member.silent_s:.0f}s"]
    rates = [rate for rate in (member.received_per_s, member.published_per_s) if rate is not None]
    is_silent = "silent" in member.states  # lag and clock of its last report are no longer true
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


def fit_columns(members: Sequence[FleetMember], width: int) -> tuple[list[str], list[list[object]], str]:
    """The columns and rows that fit on a terminal of ``width``, and a sentence about the columns left out."""
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
    remark = f"no room for {', '.join(left_out)}: see --json, or a wider terminal" if left_out else ""
    return list(sizes), [[row[place] for place in kept] for row in rows], remark


def record(view: FleetView, members: Sequence[FleetMember], limit: int | None) -> dict[str, Any]:
    """The view for scripts.  ``total`` and ``states`` count all members, not only those that are shown."""
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


def print_view(
    output: Output, view: FleetView, shown: Sequence[FleetMember], selected_count: int, *, shows_reasons: bool = False
) -> None:
    """Print members as a table, perhaps the reasons of their states, and the totals of the view."""
    if not view.members:
        output.line(NO_MEMBERS)
        return
    columns, rows, left_out = fit_columns(shown, output.console.width)
    output.table("", columns, rows)
    for one in shown if shows_reasons else ():
        style = "bold red" if one.state in ("silent", "deaf", "behind", "slow") else ""
        for why in one.why:
            output.line(f"{one.name}: {why}", style=style)
    output.line(summary(view, selected_count))
    if left_out:
        output.line(left_out)


def summary(view: FleetView, selected_count: int) -> str:
    """One line: how many members there are, and how many are in each state."""
    states = ", ".join(f"{count} {state}" for state, count in view.states().items())
    shown = "" if selected_count == len(view.members) else f", {selected_count} selected"
    rate = sum((one.received_per_s or 0) + (one.published_per_s or 0) for one in view.members)
    return f"{counted(len(view.members), 'member')}{shown}: {states or 'none'}; {rate:,.0f} events/s"
