"""Reading the database into a local cache: everything, the topics that are new, or the changes that were missed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from nb_api.api import NbApi
from nb_api.cache_changes import Difference, Resynced, SyncKind
from nb_api.cache_core import CacheCore, Merge
from nb_api.config import GROUP
from nb_api.db_api import Snapshot
from nb_api.errors import RevisionGone, RevisionUnknown
from nb_api.notify_config import CACHE_GROUP
from nb_api.resync import SyncTask
from nb_api.slots import SlotCounters, Slots, SlotSettings

EVERYTHING = "#"
"""The filter that selects every topic."""
_WENT_BACK = "the database went back"


@dataclasses.dataclass
class SyncCounters:
    """How often the database was read, and why not."""

    snapshots: int = 0
    topics: int = 0
    deltas: int = 0
    replaced: int = 0
    """Snapshots after the database went back."""
    escalated: int = 0
    """Deltas that could not be done, so that a snapshot was asked for."""
    rows: int = 0
    missed_changes: int = 0
    """Changes read one by one."""
    failures: int = 0
    """Attempts that ended because the database could not be read; each is made again."""
    slots: SlotCounters = dataclasses.field(default_factory=SlotCounters)


class Owner(Protocol):
    """The cache that is read into."""

    def change(self, work: Callable[[], list[Difference]]) -> None:
        """Change the copy and tell of it.  Raises Closed."""

    def filters(self) -> tuple[str, ...]:
        """The filters that are followed now."""

    def need_snapshot(self, reason: str, *, is_awaited: bool = False, is_replacing: bool = False) -> None: ...

    def pause(self, seconds: float) -> None:
        """Sleep.  Raises Closed."""


class CacheSync:
    """For one thread."""

    def __init__(self, nb: NbApi, core: CacheCore, owner: Owner, *, tables: Sequence[str] | None) -> None:
        options = nb.conf[CACHE_GROUP]
        self._db = nb.db
        self._core = core
        self._owner = owner
        self._tables = tables
        self._portion: int = nb.conf[GROUP].snapshot_portion
        self._delta_portion: int = options.delta_portion
        self._delta_max: int = options.delta_changes_max
        settings = SlotSettings(options.snapshot_slots, options.slot_lease, options.slot_wait_max)
        self._slots = Slots(settings, nb.db, owner.pause)
        self.counters = SyncCounters(slots=self._slots.counters)
        self._told = (0, 0, 0)
        """Objects created, updated and deleted by what is being read."""

    def perform(self, task: SyncTask) -> list[Resynced]:
        """What was done.  A delta that cannot be done asks the owner for a snapshot.  Raises DbError, Closed."""
        newest = self._core.newest  # before the database is asked, which can only have grown since
        revision = self._db.revision()
        went_back = revision < newest
        if task.is_snapshot:
            return [self._snapshot(task.reason, is_replacing=went_back or task.is_replacing)]
        if went_back:
            self._escalate(_WENT_BACK, is_replacing=True)
            return []
        told: list[Resynced] = []
        if task.topics:
            told.append(self._read_topics(task.reason, tuple(sorted(task.topics))))
        if task.is_delta:
            told += self._delta(task.reason, revision)
        return told

    def _snapshot(self, reason: str, *, is_replacing: bool) -> Resynced:
        with self._slots.hold() as show_progress:
            filters = self._owner.filters()
            # Without filters nobody has to match every row.
            with self._db.snapshot(self._tables, None if EVERYTHING in filters else filters) as snapshot:
                self._read(snapshot, filters, is_replacing, show_progress)
        self.counters.snapshots += 1
        self.counters.replaced += is_replacing
        return Resynced("snapshot", reason, snapshot.revision, *self._told)

    def _read_topics(self, reason: str, topics: tuple[str, ...]) -> Resynced:
        with self._db.snapshot(self._tables, topics) as snapshot:
            self._read(snapshot, topics, False, lambda: None)
        self.counters.topics += 1
        return Resynced("topics", reason, snapshot.revision, *self._told, topics)

    def _read(
        self, snapshot: Snapshot, filters: tuple[str, ...], is_replacing: bool, show_progress: Callable[[], None]
    ) -> None:
        merges: list[Merge] = []

        def begin() -> list[Difference]:
            merges.append(self._core.merge(snapshot.revision, filters, replaces=is_replacing))
            return []

        self._told = (0, 0, 0)
        self._change(begin)
        (merge,) = merges
        try:
            rows = iter(snapshot)
            while portion := list(itertools.islice(rows, self._portion)):
                self.counters.rows += len(portion)
                self._change(partial(merge.rows, portion))
                show_progress()
            self._change(merge.finish)
        except BaseException:
            merge.abandon()
            raise

    def _delta(self, reason: str, revision: int) -> list[Resynced]:
        self._told = (0, 0, 0)
        position = self._core.position
        missed = 0
        try:
            while position < revision and (changes := self._db.changes(position, limit=self._delta_portion)):
                position = changes[-1].revision
                missed += len(changes)  # counted, because revisions may skip numbers
                self.counters.missed_changes += len(changes)
                self._change(partial(self._core.apply_changes, changes))
                if missed > self._delta_max:
                    self._escalate(f"{reason}, more than {self._delta_max} changes missed", is_replacing=False)
                    return []
        except RevisionGone as error:
            self._escalate(f"{reason}, {error}", is_replacing=isinstance(error, RevisionUnknown))
            return []
        position = max(position, revision)
        self._change(partial(self._advance, position))
        self.counters.deltas += 1
        kind: SyncKind = "delta"
        return [Resynced(kind, reason, position, *self._told)]

    def _advance(self, position: int) -> list[Difference]:
        self._core.advance(position)
        return []

    def _escalate(self, reason: str, *, is_replacing: bool) -> None:
        self.counters.escalated += 1
        self._owner.need_snapshot(reason, is_replacing=is_replacing)

    def _change(self, work: Callable[[], list[Difference]]) -> None:
        """Change the copy, and count what that made of it, apart from what live events make of it meanwhile."""

        def counted() -> list[Difference]:
            before = self._counts()
            differences = work()
            created, updated, deleted = (
                told + after - earlier for told, earlier, after in zip(self._told, before, self._counts(), strict=True)
            )
            self._told = (created, updated, deleted)
            return differences

        self._owner.change(counted)

    def _counts(self) -> tuple[int, int, int]:
        counters = self._core.counters
        return counters.created, counters.updated, counters.deleted
