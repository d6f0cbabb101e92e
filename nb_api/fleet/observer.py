"""Reads the reports of the fleet and the newest changes, and gives them to the `FleetJudge`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from nb_api.coordination.leases import lease_clock
from nb_api.db_api import Change, DbApi
from nb_api.errors import RevisionGone
from nb_api.fleet.judging import BEHIND_S, STATES, FleetJudge, FleetMember, FleetState
from nb_api.fleet.report import read
from nb_api.fleet.reporter import release

_PORTION = 1000
_LOOK_MAX = 5000
"""Changes that one `FleetObserver.look` reads at most."""


class FleetView(msgspec.Struct, frozen=True):
    members: tuple[FleetMember, ...]
    """Worst first."""
    revision: int
    """The newest revision of the database."""
    observed_s: float
    """For how long the observer has been running: it cannot see that a member has been silent for longer."""
    left_out: int
    """How often the observer was too slow to read all changes."""

    def states(self) -> dict[FleetState, int]:
        """State -> number of members in it; a member may be in several."""
        counts = Counter(state for member in self.members for state in member.states)
        return {state: counts[state] for state in STATES if counts[state]}


class FleetObserver:
    """Not thread-safe.  Only reads ``db``, and does not close it."""

    def __init__(self, db: DbApi) -> None:
        self._db = db
        self._judge = FleetJudge(own_release=release(), behind_s=BEHIND_S)
        self._began: float | None = None
        self._after: int | None = None
        self._left_out = 0

    def look(self) -> FleetView:
        """Read the database once, and judge all members.  Blocks.  Raises DbUnavailable, NotSupported, Closed."""
        found = self._db.reports()
        changes = self._read_back(found) if self._after is None else self._follow()
        now = lease_clock()
        if self._began is None:
            self._began = now
        members = self._judge.observe(found, changes, now, time.time())
        return FleetView(tuple(members), self._after or 0, now - self._began, self._left_out)

    def _read_back(self, found: Mapping[str, bytes]) -> Sequence[Change]:
        """At the first look: the changes that some copy may lack, or the newest of them if there are too many."""
        self._after = self._db.revision()
        reports = [report for report in map(read, found.values()) if report is not None]
        starts = sorted({copy.newest for report in reports for copy in report.copies if copy.newest})
        while starts:
            try:
                changes = self._db.changes(starts[0], limit=_LOOK_MAX)
            except RevisionGone:
                changes = None
            if changes is not None and len(changes) < _LOOK_MAX:
                self._after = changes[-1].revision if changes else self._after
                return changes
            starts = starts[(len(starts) + 1) // 2 :]
        return ()

    def _follow(self) -> Sequence[Change]:
        """The changes since the last look."""
        changes: list[Change] = []
        try:
            while len(changes) < _LOOK_MAX:
                portion = self._db.changes(self._after or 0, limit=_PORTION)
                changes += portion
                if portion:
                    self._after = portion[-1].revision
                if len(portion) < _PORTION:
                    return changes
        except RevisionGone:
            pass
        self._after = self._db.revision()
        self._left_out += 1
        return changes
