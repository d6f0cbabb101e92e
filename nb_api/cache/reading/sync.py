"""Reading the database into a local cache: everything, the topics that are new, or the changes that were missed.

Everything may also come from a resync source (`nb_api.cache.snapshot_source`), which spares the database all but the
changes after the revision that the source proves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from nb_api.api import NbApi
from nb_api.cache.reading.history_marks import HistoryMarks
from nb_api.cache.snapshot_source import Doubt, SnapshotSource, SourceSnapshot
from nb_api.config import GROUP, SNAPSHOT_PORTION
from nb_api.coordination import watch_note
from nb_api.coordination.snapshot_limit import NoTurn, SnapshotLimit, SnapshotLimitCounters, SnapshotLimitSettings
from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import Difference, Resynced
from nb_api.core.copy.resync_schedule import SyncTask
from nb_api.core.copy.snapshot_merge import EVERYTHING, SnapshotMerge
from nb_api.db_api import Snapshot
from nb_api.errors import InvalidObject, ObjectNotFound, RevisionGone, RevisionUnknown, SourceUnavailable
from nb_api.notify_config import (
    CACHE_GROUP,
    DELTA_CHANGES_MAX,
    DELTA_PORTION,
    SLOT_LEASE_S,
    SLOT_WAIT_MAX_S,
    SOURCE_REPAIRS_MAX,
    sweep_interval,
)
from pubsub_api.core.events import ENCODING_ERRORS, Event, encode_fields

LOG = logging.getLogger(__name__)

_AFTER_REPLACING = "a new history"
_DETAIL = re.compile(r"'[^']*'|\d+")
"""In a reason: which object, which revision."""
_REASONS_MAX = 30
"""That are counted apart; programs may give reasons of their own."""


@dataclasses.dataclass
class SyncCounters:
    """How often the database was read, and why not."""

    snapshots: int = 0
    topics: int = 0
    deltas: int = 0
    replaced: int = 0
    """Snapshots because the database had lost its history, or could not prove it: what was held counted for nothing."""
    unproven: int = 0
    """How often it could not, because what the copy had seen was compacted away."""
    escalated: int = 0
    """Deltas that could not be done, so that a snapshot was asked for."""
    waits: int = 0
    """How often a delta, a read of topics or a look at the history waited for those of other caches of the process."""
    rows: int = 0
    missed_changes: int = 0
    """Changes read one by one."""
    failures: int = 0
    """Attempts that ended because the database could not be read; each is made again."""
    from_source: int = 0
    """Snapshots whose objects came from the resync source."""
    source_failures: int = 0
    """How often the source could not give what was wanted, so that the database was read, or tried again."""
    source_repairs: int = 0
    """Objects that the source had not, or not new enough, read from the database one by one."""
    stand_ins: int = 0
    """How often the source stood in for a database that was away."""
    stand_in_doubts: int = 0
    """Objects that were missing or old in what it had, until the database could be asked."""
    slots: SnapshotLimitCounters = dataclasses.field(default_factory=SnapshotLimitCounters)
    reasons: dict[str, int] = dataclasses.field(default_factory=dict)
    """Snapshots, reads of topics and deltas, by why they were made; details are left out."""

    def done(self, told: Sequence[Resynced]) -> None:
        """These were made."""
        for one in told:
            reason = _DETAIL.sub("N", re.split("[:,;]", one.reason, maxsplit=1)[0])
            if reason not in self.reasons and len(self.reasons) >= _REASONS_MAX:
                reason = "others"
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def copy(self) -> SyncCounters:
        return dataclasses.replace(self, reasons=self.reasons.copy())


class CopyOwner(Protocol):
    """The cache that is read into."""

    def change(self, work: Callable[[], list[Difference]]) -> None:
        """Change the copy and tell of it.  Raises Closed."""

    def filters(self) -> tuple[str, ...]:
        """The filters that are followed now."""

    def need_snapshot(self, reason: str, *, is_awaited: bool = False, is_replacing: bool = False) -> None: ...

    def need_delta(self, reason: str) -> None: ...

    def pause(self, seconds: float) -> None:
        """Sleep.  Raises Closed."""

    def wake(self) -> None:
        """Have what is due done now."""


class CacheSync:
    """For one thread."""

    def __init__(
        self,
        nb: NbApi,
        core: CacheCore,
        owner: CopyOwner,
        marks: HistoryMarks,
        *,
        tables: Sequence[str] | None,
        source: SnapshotSource | None,
    ) -> None:
        """``source`` None: the database itself."""
        self._marks = marks
        options = nb.conf[CACHE_GROUP]
        self._source = source
        self._repairs_max: int = SOURCE_REPAIRS_MAX
        self._db = nb.db
        self._core = core
        self._owner = owner
        self._tables = tables
        self._portion = SNAPSHOT_PORTION
        self._delta_portion: int = DELTA_PORTION
        self._delta_max: int = DELTA_CHANGES_MAX
        self.behind_s = None if nb.session is None else 2 * (nb.conf[GROUP].outbox_age + sweep_interval(nb.conf))
        """How long a change may be on its way; None: no bus is followed."""
        self.slot_settings = SnapshotLimitSettings(options.snapshot_slots, SLOT_LEASE_S, SLOT_WAIT_MAX_S)
        self._limit = SnapshotLimit(self.slot_settings, nb.db, owner.pause)
        self._snapshot_turns, self._delta_turns = nb.snapshot_turns, nb.delta_turns
        self.counters = SyncCounters(slots=self._limit.counters)
        self._told = (0, 0, 0)
        """Objects created, updated and deleted by what is being read."""
        self._has_waited = False
        """For its turn to read, which has not come yet."""
        self._must_replace = False
        """The history is lost, and no snapshot could be read to its end since."""

    def perform(self, task: SyncTask) -> list[Resynced]:
        """What was done.  A delta that cannot be done asks for a snapshot.  Raises DbError, Closed, NoTurn."""
        told = self._perform(task)
        self.counters.done(told)
        return told

    def _perform(self, task: SyncTask) -> list[Resynced]:
        turns = self._snapshot_turns if task.is_snapshot else self._delta_turns
        try:
            with turns.take(self._owner.wake):
                self._has_waited = False
                return self._snapshot(task, loss=self._examine()[1]) if task.is_snapshot else self._read_missed(task)
        except NoTurn:
            if not self._has_waited:
                self._has_waited = True
                self._count_wait(task)
            raise

    def _count_wait(self, task: SyncTask) -> None:
        if task.is_snapshot:
            self._limit.counters.waits += 1
        else:
            self.counters.waits += 1

    def _read_missed(self, task: SyncTask) -> list[Resynced]:
        """Topics that are new, and changes."""
        revision, loss = self._examine()
        if loss is not None:
            self._escalate(loss, is_replacing=True)
            return []
        told: list[Resynced] = []
        if task.topics:
            told.append(self._read_topics(task.reason, tuple(sorted(task.topics))))
        if task.is_delta:
            told += self._delta(task.reason, revision)
        elif not task.topics and (untold := self._untold()):
            told += self._delta(untold, revision)
        return told

    def _untold(self) -> str:
        """What the bus did not tell and no publisher will; empty when that is nothing."""
        if self.behind_s is None:
            return ""
        if self._db.unpublished(older_than_s=self.behind_s, limit=1):  # a sweeper that works leaves nothing so long
            return "changes that were not published in time"
        note = watch_note.read(self._db)
        if note is not None and note.untold > self._core.position:
            return "changes of watched tables that were not published"
        return ""

    def _examine(self) -> tuple[int, str | None]:
        """The database's newest revision, and why its history is not the one that the copy belongs to, if it is not."""
        asked = self._marks.pending(self._core.newest)
        check = self._db.check_history(asked)
        loss: str | None = None
        if check.lost is not None:
            loss = f"the database has lost its history: revision {check.lost} is not part of it"
        elif self._marks.is_unproven(check):
            self.counters.unproven += 1
            loss = "the database cannot prove its history: what was seen of it is compacted away"
        else:
            self._marks.proved(asked, check.newest)
        return check.newest, loss

    def _snapshot(self, task: SyncTask, *, loss: str | None) -> list[Resynced]:
        self._must_replace |= loss is not None or task.is_replacing
        if self._source is not None and not self._must_replace:  # a source has what the database was before that
            try:
                return self._from_source(self._source, task)
            except (SourceUnavailable, RevisionGone) as error:
                self.counters.source_failures += 1
                LOG.warning("LocalCache: the resync source cannot be used, reading the database instead: %s", error)
            loss = self._examine()[1]
            self._must_replace = loss is not None
        if loss is not None:
            LOG.warning("LocalCache: %s. All objects are read, and count whatever is held.", loss)
        with self._limit.hold() as show_progress:
            filters = self._owner.filters()
            # Without filters no row has to be matched.
            with self._db.snapshot(self._tables, None if EVERYTHING in filters else filters) as snapshot:
                self._read(snapshot, filters, self._must_replace, show_progress)
        self.counters.snapshots += 1
        if self._must_replace:
            self.counters.replaced += 1
            self._must_replace = False
            # What was heard of the new history before the merge began was undone by it: it is in the feed.
            self._owner.need_delta(_AFTER_REPLACING)
        reason = task.reason if loss is None or loss in task.reason else f"{task.reason}, {loss}"
        return [Resynced("snapshot", reason, snapshot.revision, *self._told)]

    # -- the resync source

    def _from_source(self, source: SnapshotSource, task: SyncTask) -> list[Resynced]:
        """Raises SourceUnavailable and RevisionGone when the database has to be read; DbError, Closed."""
        told: list[Resynced] = []
        with (
            self._limit.hold() if source.needs_slot else contextlib.nullcontext(_no_progress) as show_progress,
            source.open(self._tables, filters := self._owner.filters()) as snapshot,
        ):
            revision = snapshot.revision
            if not revision:
                raise SourceUnavailable("it does not prove up to which revision it is complete")
            if revision < self._core.position and task.topics:
                raise SourceUnavailable(f"it proves revision {revision}, and the copy is at {self._core.position}")
            if revision >= self._core.position:  # else what is held is newer, and the changes after it are enough
                self._db.changes(revision, limit=1)  # whether what comes after can be had at all
                self._merge(revision, filters, False, partial(self._fill, snapshot, show_progress))
                told.append(Resynced("snapshot", task.reason, revision, *self._told))
        self._told = (0, 0, 0)
        now, loss = self._examine()
        if loss is not None:
            raise SourceUnavailable(loss)
        position = self._catch_up(now)
        self.counters.from_source += len(told)
        return [*told, Resynced("delta", task.reason, position, *self._told)]

    def _fill(self, snapshot: SourceSnapshot, show_progress: Callable[[], None], merge: SnapshotMerge) -> None:
        def put(events: Sequence[Event]) -> list[Difference]:
            # A tombstone is a row that is not there; those of later than the proof are in the feed as well.
            rows = [event for event in events if event.action != "delete"]
            _check_values(rows)
            self._core.newest = max(self._core.newest, *(event.version for event in rows), 0)
            return merge.rows(rows)

        def take(events: Sequence[Event]) -> None:
            self._take(partial(put, events), len(events))
            show_progress()

        doubts = snapshot.read(take)
        self._check_doubts(doubts)
        for doubt in doubts:
            self._repair(doubt, merge)

    def _check_doubts(self, doubts: Sequence[Doubt]) -> None:
        """Raises SourceUnavailable."""
        if len(doubts) > self._repairs_max:
            raise SourceUnavailable(f"{len(doubts)} objects are missing or old in it, more than {self._repairs_max}")

    def _repair(self, doubt: Doubt, merge: SnapshotMerge) -> None:
        with contextlib.suppress(ObjectNotFound, InvalidObject):  # deleted since: the feed says so; or never there
            found = self._db.get(doubt.table, doubt.key)
            self._change(lambda: merge.rows([found]))
        self.counters.source_repairs += 1

    def _take(self, work: Callable[[], list[Difference]], rows: int) -> None:
        self.counters.rows += rows
        self._change(work)

    def stand_in(self, reason: str) -> Resynced | None:
        """The database is away: apply what the source has, by version.  None when it cannot.  Raises Closed."""
        source = self._source
        if source is None or not source.has_tail:
            return None
        self._told = (0, 0, 0)

        def apply(events: Sequence[Event]) -> None:
            _check_values(events)
            self._take(partial(self._core.apply, events), len(events))

        try:
            with source.open(self._tables, self._owner.filters()) as snapshot:
                doubts = snapshot.read(apply)
                self._check_doubts(doubts)
                apply([doubt.known for doubt in doubts if doubt.known is not None])
        except SourceUnavailable as error:
            self.counters.source_failures += 1
            LOG.warning("LocalCache: the resync source cannot stand in for the database: %s", error)
            return None
        self.counters.stand_ins += 1
        self.counters.stand_in_doubts += len(doubts)
        if doubts:
            LOG.warning("LocalCache: of %d objects the resync source has not the right version", len(doubts))
        return Resynced("provisional", reason, snapshot.revision, *self._told)

    # -- the database

    def _read_topics(self, reason: str, topics: tuple[str, ...]) -> Resynced:
        with self._db.snapshot(self._tables, topics) as snapshot:
            self._read(snapshot, topics, False, _no_progress)
        self.counters.topics += 1
        return Resynced("topics", reason, snapshot.revision, *self._told, topics)

    def _read(
        self, snapshot: Snapshot, filters: tuple[str, ...], is_replacing: bool, show_progress: Callable[[], None]
    ) -> None:
        def fill(merge: SnapshotMerge) -> None:
            rows = iter(snapshot)
            while portion := list(itertools.islice(rows, self._portion)):
                self._take(partial(merge.rows, portion), len(portion))
                show_progress()

        self._merge(snapshot.revision, filters, is_replacing, fill)

    def _merge(
        self, revision: int, filters: tuple[str, ...], is_replacing: bool, fill: Callable[[SnapshotMerge], None]
    ) -> None:
        """Make the copy what ``fill`` gives; when that fails, nothing is removed."""
        merges: list[SnapshotMerge] = []

        def begin() -> list[Difference]:
            if is_replacing:
                self._marks.forget()
            merges.append(self._core.merge(revision, filters, replaces=is_replacing))
            return []

        self._told = (0, 0, 0)
        self._change(begin)
        (merge,) = merges
        try:
            fill(merge)
            self._change(merge.finish)
        except BaseException:
            merge.abandon()
            raise

    def _delta(self, reason: str, revision: int) -> list[Resynced]:
        self._told = (0, 0, 0)
        try:
            position = self._catch_up(revision)
        except RevisionGone as error:
            self._escalate(f"{reason}, {error}", is_replacing=isinstance(error, RevisionUnknown))
            return []
        self.counters.deltas += 1
        return [Resynced("delta", reason, position, *self._told)]

    def _catch_up(self, revision: int) -> int:
        """Apply the changes after the position, at least up to ``revision``.  Returns the position then.

        Raises RevisionGone when they are gone or too many.
        """
        position = self._core.position
        missed = 0
        while position < revision and (changes := self._db.changes(position, limit=self._delta_portion)):
            position = changes[-1].revision
            missed += len(changes)  # counted, because revisions may skip numbers
            self.counters.missed_changes += len(changes)
            self._change(partial(self._core.apply_changes, changes))
            if missed > self._delta_max:
                raise RevisionGone(f"more than {self._delta_max} changes missed")
        position = max(position, revision)
        self._change(partial(self._advance, position))
        return position

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


def log_resynced(told: Sequence[Resynced]) -> None:
    for one in told:
        LOG.info(
            "LocalCache: resynced by %s (%s) at revision %d: %d created, %d updated, %d deleted.",
            one.kind, one.reason, one.revision, one.created, one.updated, one.deleted,
        )  # fmt: skip


def _no_progress() -> None:
    """There is no slot to renew."""


def _check_values(events: Sequence[Event]) -> None:
    """Before any of them changes the copy.  Raises SourceUnavailable for a value that nobody could read."""
    for event in events:
        try:
            encode_fields(event.value)
        except ENCODING_ERRORS as error:
            raise SourceUnavailable(
                f"the value of {event.table} {event.key} has no form as msgpack: {error}"
            ) from error
