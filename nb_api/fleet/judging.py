"""Which members of the fleet are silent, deaf, behind or old.  No I/O, no clock.

The clocks of members are not used.  A member is alive as long as its reports change; the observer measures with its own
clock for how long they have not.  A copy is *behind* when a change was in the database before the report was made, and
the copy did not have it then.  For both times the observer takes those of its own looks.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from nb_api.core.changes import Change
from nb_api.core.own_tables import is_own
from nb_api.fleet.report import CopyReport, FleetReport, mark_of, read
from pubsub_api.core.leases import LeaseProgress
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import InvalidTopic

FleetState = Literal[
    "silent", "clash", "deaf", "behind", "slow", "incomplete", "unlinked", "refusing", "trouble", "unknown", "old", "ok"
]
"""States of a member, the worst first.

``silent``: no report for more than two of its intervals.  ``clash``: another process has the same name.  ``deaf``: it
refuses all frames that it receives.  ``behind``: its copy lacks changes.  ``slow``: its callbacks are too slow.
``incomplete``: it reports that its copy is not complete.  ``unlinked``: it cannot reach a publisher, or the bus.
``refusing``: it refuses some frames.  ``trouble``: it reports a problem.  ``unknown``: this release cannot read its
report.  ``old``: other members have a newer release.
"""
STATES: tuple[FleetState, ...] = get_args(FleetState)

BEHIND_S = 2.0
"""A copy that lacks a change for this long is behind; callbacks that would need this long for what waits are slow."""
_GRACE_S = 1.0
_PASSED_S_MIN = 0.001
"""No rate is computed from two reports that are closer to each other."""
_WHY_MAX = 1000
"""Characters of a sentence: any program that can write to the database can write a report."""
_GAP_MAX_S = 3.0
"""The time between two looks counts for at most this: an observer that was stopped does not know what happened."""
_REFUSED_SHOWN_S = 30.0
"""How long it is shown that a member has refused frames."""
_CHANGES_KEPT = 2000
"""Changes that are kept for each selection of tables and topics, the newest."""
_MATCHES_MAX = 100_000
"""Changes times selections that are compared at a look.  When there are more, only the newest changes are compared."""


class FleetMember(msgspec.Struct, frozen=True):
    key: str
    """The key of its report: its name; after a clash its name and its incarnation."""
    report: FleetReport | None
    """The newest report; None when this release cannot read it."""
    states: tuple[FleetState, ...]
    """All states that apply, the worst first; ``ok`` when none applies."""
    why: tuple[str, ...]
    """A sentence for each state."""
    silent_s: float
    """For how long its report has not changed."""
    behind: int
    """Changes that its copies lack, at least."""
    behind_s: float
    """For how long they have lacked them, at least."""
    received_per_s: float | None
    """None until two reports were read."""
    published_per_s: float | None
    clock_offset_s: float
    """How far its clock is ahead of the observer's, with an error of the time between two looks."""

    @property
    def name(self) -> str:
        return self.key if self.report is None else self.report.name

    @property
    def state(self) -> FleetState:
        return self.states[0]


class _Observed(msgspec.Struct):
    """What an observer remembers of a member."""

    mark: int
    report: FleetReport | None
    before: FleetReport | None
    """An earlier report of the same incarnation."""
    made_after: float
    """The time of the last look without the newest report: the report was made later."""
    offset_s: float
    refused_at: float
    """The time of the last look that showed further refused frames."""


class _Selection:
    """A selection of tables and topics, and the observed changes that belong to it."""

    def __init__(self, copy: CopyReport) -> None:
        self._tables = None if copy.tables is None else frozenset(copy.tables)
        self._topics = FilterSet(copy.topics)
        self.revisions: list[int] = []
        self.observed_at: list[float] = []

    def add(self, changes: Iterable[Change], now: float) -> None:
        for change in changes:
            is_wanted = not is_own(change.table) if self._tables is None else change.table in self._tables
            is_left = change.left_topic is not None and self._topics.match(change.left_topic)
            if is_wanted and (self._topics.match(change.topic) or is_left):
                self.revisions.append(change.revision)
                self.observed_at.append(now)
        del self.revisions[:-_CHANGES_KEPT], self.observed_at[:-_CHANGES_KEPT]


class FleetJudge:
    """Not thread-safe.  ``own_release`` is that of the observer: a member with an older one is old."""

    def __init__(self, *, own_release: str = "", behind_s: float = BEHIND_S) -> None:
        self._own_release = own_release
        self._behind_s = behind_s
        self._members: dict[str, _Observed] = {}
        self._progress = LeaseProgress(gap_max_s=_GAP_MAX_S)
        self._selections: dict[tuple[object, ...], _Selection] = {}
        self._last = 0.0

    def observe(
        self, found: Mapping[str, bytes], changes: Sequence[Change], now: float, wall: float
    ) -> list[FleetMember]:
        """All reports, and the changes since the last look; both read before ``now``.  Returns the members, the worst
        first.

        ``wall`` is the observer's clock in seconds since 1970.
        """
        marks = {key: mark_of(data) for key, data in found.items()}
        self._progress.observe(marks, now)
        self._members = {key: self._observe_report(key, marks[key], data, now, wall) for key, data in found.items()}
        self._observe_changes(changes, now)
        self._last = now
        living: dict[str, list[str]] = {}
        for key, member in self._members.items():
            if member.report is not None and not self._is_silent(key, member.report):
                living.setdefault(member.report.name, []).append(key)
        releases = [member.report.release for member in self._members.values() if member.report is not None]
        newest = max([self._own_release, *releases], key=_release_order)
        members = [self._judge(key, member, living, newest) for key, member in self._members.items()]
        return sorted(members, key=lambda one: (STATES.index(one.state), one.name, one.key))

    def _observe_report(self, key: str, mark: int, data: bytes, now: float, wall: float) -> _Observed:
        member = self._members.get(key)
        if member is not None and member.mark == mark:
            return member
        report = read(data)
        offset_s = 0.0 if report is None else report.told_at - wall
        if member is None or member.report is None or report is None or member.report.incarnation != report.incarnation:
            return _Observed(mark, report, None, now if member is None else self._last, offset_s, -math.inf)
        refused_at = now if report.refused > member.report.refused else member.refused_at
        return _Observed(mark, report, member.report, self._last, offset_s, refused_at)

    def _observe_changes(self, changes: Sequence[Change], now: float) -> None:
        wanted: dict[tuple[object, ...], _Selection] = {}
        for member in self._members.values():
            for copy in member.report.copies if member.report is not None else ():
                key = _selection_key(copy)
                if not copy.is_cut and key not in wanted:
                    try:
                        wanted[key] = self._selections.get(key) or _Selection(copy)
                    except InvalidTopic:  # another program has written the report
                        continue
        self._selections = wanted
        compared = changes[-max(1, _MATCHES_MAX // max(1, len(wanted))) :]
        for selection in wanted.values():
            selection.add(compared, now)

    # -- one member

    def _is_silent(self, key: str, report: FleetReport) -> bool:
        return self._progress.idle_s(key) > 2 * report.interval_s + _GRACE_S

    def _judge(self, key: str, member: _Observed, living: Mapping[str, Sequence[str]], newest: str) -> FleetMember:
        report = member.report
        if report is None:
            why = "its report cannot be read by this release, or is damaged"
            return FleetMember(key, None, ("unknown",), (why,), self._progress.idle_s(key), 0, 0.0, None, None, 0.0)
        behind, behind_s = self._behind(report, member.made_after)
        found: dict[FleetState, str] = {}
        if self._is_silent(key, report):
            found["silent"] = f"it has not reported for {self._progress.idle_s(key):.0f} s"
        others = [self._members[other].report for other in living.get(report.name, ()) if other != key]
        if others and "silent" not in found:
            places = ", ".join(f"{one.host} ({one.pid})" for one in others if one is not None)
            found["clash"] = f"another process has this name: on {places}"
        if behind_s >= self._behind_s:
            found["behind"] = f"its copy lacks {behind} changes or more for {behind_s:.0f} s or longer"
        if slow := _slow(member.before, report, self._behind_s):
            found["slow"] = slow
        found |= _reported_states(report, is_refusing=self._last - member.refused_at < _REFUSED_SHOWN_S)
        if _release_order(report.release) < _release_order(newest):
            found["old"] = f"it has release {report.release or '?'}, others {newest}"
        states = tuple(sorted(found, key=STATES.index)) or ("ok",)
        received, published = _rates(member.before, report)
        return FleetMember(
            key,
            report,
            states,
            tuple(_cut(found[state]) for state in states if state in found),
            self._progress.idle_s(key),
            behind,
            behind_s,
            received,
            published,
            round(member.offset_s, 1),
        )

    def _behind(self, report: FleetReport, made_after: float) -> tuple[int, float]:
        """How many changes a copy lacks, and for how long; for the copy that lacks most."""
        worst = (0, 0.0)
        for copy in report.copies:
            selection = None if copy.is_cut else self._selections.get(_selection_key(copy))
            if selection is None:
                continue
            first = bisect_right(selection.revisions, copy.newest)
            observed_at = selection.observed_at[first:]
            lacking = sum(at < made_after for at in observed_at)
            if lacking:
                worst = max(worst, (lacking, made_after - observed_at[0]))
        return worst


def _reported_states(report: FleetReport, *, is_refusing: bool) -> dict[FleetState, str]:
    """The bad states that follow from the report alone, each with a sentence."""
    found: dict[FleetState, str] = {}
    if report.refused and not report.publishers and (is_refusing or not report.received):
        found["deaf"] = f"it knows no publisher and has refused {report.refused} frames: compare hmac_key and releases"
    elif is_refusing:
        found["refusing"] = f"it refuses frames, {report.refused} so far: compare hmac_key and releases"
    if not all(copy.is_complete for copy in report.copies):
        found["incomplete"] = "its copy is not complete"
    if report.has_bus and (report.links_down or not report.links_up):
        found["unlinked"] = f"it reaches {report.links_up} of {report.links_up + report.links_down} addresses"
    if report.problems:
        found["trouble"] = "; ".join(report.problems)
    return found


def _slow(before: FleetReport | None, now: FleetReport, behind_s: float) -> str:
    """Why its callbacks are slow; empty when they are not slow, or when this is not known."""
    passed_s = _passed_s(before, now)
    if before is None or passed_s is None or not before.waiting or not now.waiting:
        return ""
    handled_per_s = max(0, now.handled - before.handled) / passed_s
    if now.waiting < handled_per_s * behind_s:
        return ""
    return f"{now.waiting} events wait for its callbacks, which handle {handled_per_s:.0f} a second"


def _rates(before: FleetReport | None, now: FleetReport) -> tuple[float | None, float | None]:
    """Events received and published per second, by differences of the member's own clock."""
    passed_s = _passed_s(before, now)
    if before is None or passed_s is None:
        return None, None
    return (
        round(max(0, now.received - before.received) / passed_s, 1),
        round(max(0, now.published - before.published) / passed_s, 1),
    )


def _passed_s(before: FleetReport | None, now: FleetReport) -> float | None:
    """The time between two reports, by the member's own clock; None when it is too short for a rate."""
    passed_s = 0.0 if before is None else now.up_s - before.up_s
    return passed_s if passed_s >= _PASSED_S_MIN else None


def _cut(sentence: str) -> str:
    return sentence if len(sentence) <= _WHY_MAX else f"{sentence[:_WHY_MAX]} ..."


def _selection_key(copy: CopyReport) -> tuple[object, ...]:
    return (None if copy.tables is None else tuple(copy.tables), tuple(copy.topics))


def _release_order(release: str) -> tuple[int, ...]:
    """A key for sorting: ``0.10.1`` comes after ``0.9``.  Anything that follows the numbers is ignored."""
    numbers = re.match(r"[0-9]{1,9}(\.[0-9]{1,9})*(?![0-9])", release)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()
