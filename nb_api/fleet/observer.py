"""Looking at the fleet: reads the reports and the newest changes, and lets the judge decide."""

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
"""Changes that one look reads."""


class FleetView(msgspec.Struct, frozen=True):
    members: tuple[FleetMember, ...]
    """Worst first."""
    revision: int
    """The newest of the database."""
    observed_s: float
    """How long the observer has been looking: what is not older than that cannot be judged."""
    left_out: int
    """Changes that the observer was too slow to compare with."""

    def states(self) -> dict[FleetState, int]:
        """How many members are so; one may be counted several times."""
        counts = Counter(state for member in self.members for state in member.states)
        return {state: counts[state] for state in STATES if counts[state]}


class FleetObserver:
    """For one thread.  Reads and writes nothing else in ``db``, which is the caller's."""

    def __init__(self, db: DbApi) -> None:
        self._db = db
        self._judge = FleetJudge(own_release=release(), behind_s=BEHIND_S)
        self._began: float | None = None
        self._after: int | None = None
        self._left_out = 0

    def look(self) -> FleetView:
        """Ask the database once.  Raises DbUnavailable, NotSupported, Closed."""
        found = self._db.reports()
        changes = self._read_back(found) if self._after is None else self._follow()
        now = lease_clock()
        if self._began is None:
            self._began = now
        members = self._judge.observe(found, changes, now, time.time())
        return FleetView(tuple(members), self._after or 0, now - self._began, self._left_out)

    def _read_back(self, found: Mapping[str, bytes]) -> Sequence[Change]:
        """The changes that some copy may lack; the newest of them when there are too many."""
        self._after = self._db.revision()
        told = [report for report in map(read, found.values()) if report is not None]
        starts = sorted({copy.newest for report in told for copy in report.copies if copy.newest})
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
