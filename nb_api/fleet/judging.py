"""Which members of the fleet are silent, deaf, behind or old.  No I/O, no clock.

No member's clock is believed.  That a member lives is seen by its reports, which change; how long they have been the
same is counted on the observer's clock.  A copy is *behind* when a change was in the database before the report was
told, and the copy had not heard of it then; both moments are the observer's own looks.
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
"""How a member is, worst first.

``silent``: it has told nothing for more than two of its intervals.  ``clash``: another process has its name.
``deaf``: it refuses all that it hears on the bus.  ``behind``: its copy lacks changes.  ``slow``: its callbacks do not
keep up.  ``incomplete``: its copy does not count as complete, by its own word.  ``unlinked``: it cannot reach a
publisher, or the bus.  ``refusing``: it refuses some frames.  ``trouble``: it has a problem of its own.  ``unknown``:
its report cannot be read here.  ``old``: others have a newer release.
"""
STATES: tuple[FleetState, ...] = get_args(FleetState)

BEHIND_S = 2.0
"""A copy that lacks a change for this long is behind, and callbacks are slow for which so much waits."""
_GRACE_S = 1.0
_PASSED_S_MIN = 0.001
"""Two reports that are nearer to each other tell no rate."""
_WHY_MAX = 1000
"""Characters of a sentence: any program that can write to the database can write a report."""
_GAP_MAX_S = 3.0
"""A time without a look counts as this at most: an observer that stood still knows nothing of that time."""
_REFUSED_SHOWN_S = 30.0
"""So long it is told that a member refused frames."""
_CHANGES_KEPT = 2000
"""Of each selection of tables and topics: the newest that the observer has seen."""
_MATCHES_MAX = 100_000
"""Changes times selections that are compared at a look.  When there are more, the newest changes are compared."""


class FleetMember(msgspec.Struct, frozen=True):
    key: str
    """Of its report: its name, or for one of a clash its name and its incarnation."""
    report: FleetReport | None
    """The newest; None when it cannot be read here."""
    states: tuple[FleetState, ...]
    """All that apply, worst first; only ``ok`` when none does."""
    why: tuple[str, ...]
    """A sentence for each."""
    silent_s: float
    """How long nothing new was seen of it."""
    behind: int
    """Changes that its copies lack, at least."""
    behind_s: float
    """For how long, at least."""
    received_per_s: float | None
    """None until two reports were seen."""
    published_per_s: float | None
    clock_offset_s: float
    """How far its clock is ahead of the observer's, more or less: the time between two looks is not known."""

    @property
    def name(self) -> str:
        return self.key if self.report is None else self.report.name

    @property
    def state(self) -> FleetState:
        return self.states[0]


class _Seen(msgspec.Struct):
    """What an observer remembers of a member."""

    mark: int
    report: FleetReport | None
    before: FleetReport | None
    """An earlier one of the same incarnation."""
    told_after: float
    """The look before the newest report was seen first: it was told later than that."""
    offset_s: float
    refused_at: float
    """When it was last seen to have refused further frames."""


class _Selection:
    """Which changes concern a copy, and those that were seen."""

    def __init__(self, copy: CopyReport) -> None:
        self._tables = None if copy.tables is None else frozenset(copy.tables)
        self._topics = FilterSet(copy.topics)
        self.revisions: list[int] = []
        self.seen_at: list[float] = []

    def see(self, changes: Iterable[Change], now: float) -> None:
        for change in changes:
            is_wanted = not is_own(change.table) if self._tables is None else change.table in self._tables
            is_left = change.left_topic is not None and self._topics.match(change.left_topic)
            if is_wanted and (self._topics.match(change.topic) or is_left):
                self.revisions.append(change.revision)
                self.seen_at.append(now)
        del self.revisions[:-_CHANGES_KEPT], self.seen_at[:-_CHANGES_KEPT]


class FleetJudge:
    """Not thread-safe.  ``own_release`` is the observer's: a member with an older one is old."""

    def __init__(self, *, own_release: str = "", behind_s: float = BEHIND_S) -> None:
        self._own_release = own_release
        self._behind_s = behind_s
        self._seen: dict[str, _Seen] = {}
        self._progress = LeaseProgress(gap_max_s=_GAP_MAX_S)
        self._selections: dict[tuple[object, ...], _Selection] = {}
        self._last = 0.0

    def observe(
        self, found: Mapping[str, bytes], changes: Sequence[Change], now: float, wall: float
    ) -> list[FleetMember]:
        """All reports there are, and the changes that are new since the last look; read before ``now``.

        The members, worst first.  ``wall`` is the observer's clock in seconds since 1970.
        """
        marks = {key: mark_of(data) for key, data in found.items()}
        self._progress.observe(marks, now)
        self._seen = {key: self._see(key, marks[key], data, now, wall) for key, data in found.items()}
        self._see_changes(changes, now)
        self._last = now
        living: dict[str, list[str]] = {}
        for key, seen in self._seen.items():
            if seen.report is not None and not self._is_silent(key, seen.report):
                living.setdefault(seen.report.name, []).append(key)
        releases = [seen.report.release for seen in self._seen.values() if seen.report is not None]
        newest = max([self._own_release, *releases], key=_release_order)
        members = [self._judge(key, seen, living, newest) for key, seen in self._seen.items()]
        return sorted(members, key=lambda one: (STATES.index(one.state), one.name, one.key))

    def _see(self, key: str, mark: int, data: bytes, now: float, wall: float) -> _Seen:
        seen = self._seen.get(key)
        if seen is not None and seen.mark == mark:
            return seen
        report = read(data)
        offset_s = 0.0 if report is None else report.told_at - wall
        if seen is None or seen.report is None or report is None or seen.report.incarnation != report.incarnation:
            return _Seen(mark, report, None, now if seen is None else self._last, offset_s, -math.inf)
        refused_at = now if report.refused > seen.report.refused else seen.refused_at
        return _Seen(mark, report, seen.report, self._last, offset_s, refused_at)

    def _see_changes(self, changes: Sequence[Change], now: float) -> None:
        wanted: dict[tuple[object, ...], _Selection] = {}
        for seen in self._seen.values():
            for copy in seen.report.copies if seen.report is not None else ():
                key = _selection_key(copy)
                if not copy.is_cut and key not in wanted:
                    try:
                        wanted[key] = self._selections.get(key) or _Selection(copy)
                    except InvalidTopic:  # not of our making: any program that can write to the database can write one
                        continue
        self._selections = wanted
        compared = changes[-max(1, _MATCHES_MAX // max(1, len(wanted))) :]
        for selection in wanted.values():
            selection.see(compared, now)

    # -- one member

    def _is_silent(self, key: str, report: FleetReport) -> bool:
        return self._progress.idle_s(key) > 2 * report.interval_s + _GRACE_S

    def _judge(self, key: str, seen: _Seen, living: Mapping[str, Sequence[str]], newest: str) -> FleetMember:
        report = seen.report
        if report is None:
            why = "its report cannot be read by this release, or is damaged"
            return FleetMember(key, None, ("unknown",), (why,), self._progress.idle_s(key), 0, 0.0, None, None, 0.0)
        behind, behind_s = self._behind(report, seen.told_after)
        found: dict[FleetState, str] = {}
        if self._is_silent(key, report):
            found["silent"] = f"nothing was heard of it for {self._progress.idle_s(key):.0f} s"
        others = [self._seen[other].report for other in living.get(report.name, ()) if other != key]
        if others and "silent" not in found:
            places = ", ".join(f"{one.host} ({one.pid})" for one in others if one is not None)
            found["clash"] = f"another process has this name: on {places}"
        if behind_s >= self._behind_s:
            found["behind"] = f"its copy lacks {behind} changes or more for {behind_s:.0f} s or longer"
        if slow := _slow(seen.before, report, self._behind_s):
            found["slow"] = slow
        found |= _own_words(report, is_refusing=self._last - seen.refused_at < _REFUSED_SHOWN_S)
        if _release_order(report.release) < _release_order(newest):
            found["old"] = f"it has release {report.release or '?'}, others {newest}"
        states = tuple(sorted(found, key=STATES.index)) or ("ok",)
        received, published = _rates(seen.before, report)
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
            round(seen.offset_s, 1),
        )

    def _behind(self, report: FleetReport, told_after: float) -> tuple[int, float]:
        """How many changes its copies lack, and for how long: of the one that lacks most."""
        worst = (0, 0.0)
        for copy in report.copies:
            selection = None if copy.is_cut else self._selections.get(_selection_key(copy))
            if selection is None:
                continue
            first = bisect_right(selection.revisions, copy.newest)
            seen_at = selection.seen_at[first:]
            lacking = sum(at < told_after for at in seen_at)
            if lacking:
                worst = max(worst, (lacking, told_after - seen_at[0]))
        return worst


def _own_words(report: FleetReport, *, is_refusing: bool) -> dict[FleetState, str]:
    """What a member says of itself that is not as it should be."""
    found: dict[FleetState, str] = {}
    if report.refused and not report.publishers and (is_refusing or not report.received):
        found["deaf"] = f"it hears no publisher and has refused {report.refused} frames: compare hmac_key and releases"
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
    """Why its callbacks are slow; empty when they are not, or when it is not known."""
    passed_s = _passed_s(before, now)
    if before is None or passed_s is None or not before.waiting or not now.waiting:
        return ""
    handled_per_s = max(0, now.handled - before.handled) / passed_s
    if now.waiting < handled_per_s * behind_s:
        return ""
    return f"{now.waiting} events wait for its callbacks, which handle {handled_per_s:.0f} a second"


def _rates(before: FleetReport | None, now: FleetReport) -> tuple[float | None, float | None]:
    """Events received and published per second, on the member's own clock, of which only differences are used."""
    passed_s = _passed_s(before, now)
    if before is None or passed_s is None:
        return None, None
    return (
        round(max(0, now.received - before.received) / passed_s, 1),
        round(max(0, now.published - before.published) / passed_s, 1),
    )


def _passed_s(before: FleetReport | None, now: FleetReport) -> float | None:
    """Between two reports, on the member's own clock; None when that tells no rate."""
    passed_s = 0.0 if before is None else now.up_s - before.up_s
    return passed_s if passed_s >= _PASSED_S_MIN else None


def _cut(sentence: str) -> str:
    return sentence if len(sentence) <= _WHY_MAX else f"{sentence[:_WHY_MAX]} ..."


def _selection_key(copy: CopyReport) -> tuple[object, ...]:
    return (None if copy.tables is None else tuple(copy.tables), tuple(copy.topics))


def _release_order(release: str) -> tuple[int, ...]:
    """``0.10.1`` comes after ``0.9``.  What follows the numbers, or is no number of a release, is left out."""
    numbers = re.match(r"[0-9]{1,9}(\.[0-9]{1,9})*(?![0-9])", release)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()
