"""Compares a local cache with its database at one revision, while both go on changing, and repairs differences.

1. The copy begins a journal (`nb_api.core.copy.journal`): from then on it knows its state at any later revision.
2. The database computes its digests, at one revision.  They are compared with those of the copy at that revision.
   Changes that were committed before may not have arrived yet, so this waits for a while.
3. If digests still differ, the digests of buckets show in which buckets.
4. The objects of these buckets, and of further buckets in order to compare values, are read and compared one by one.
   Tables of which the copy has a selection by fields are read completely: no database has digests of a selection.
5. An object that differs is a *suspect* until no change of it can arrive any more: until the copy has followed the feed
   beyond the revision, or, on a bus, for some time after its changes have left the outbox.  Then the object is read
   again, and if it still differs, it is a difference.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from nb_api.api import NbApi
from nb_api.cache.reading.history_marks import HistoryMarks
from nb_api.coordination.snapshot_limit import SnapshotLimit
from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import CachedObject, Difference
from nb_api.core.copy.journal import ChangeJournal
from nb_api.core.copy.snapshot_merge import EVERYTHING
from nb_api.core.digests import BUCKET_SHIFT, BUCKETS, NO_OBJECTS, TableDigest, add_up, bucket_of
from nb_api.db_api import DbObject
from nb_api.errors import CopyUnsettled, InvalidObject, ObjectNotFound
from nb_api.verifying.verification import (
    DifferenceKind,
    ObjectDifference,
    TableProof,
    Verification,
    VerifyCounters,
    kind_of,
)
from pubsub_api.errors import WaitTimeout
from pubsub_api.runtime.backoff import Backoff

LOG = logging.getLogger(__name__)

VALUES_MAX = 20_000
"""Objects whose values are compared in one verification, about: a smaller copy is compared completely each time."""
REPAIRS_MAX = 1000
"""Objects that are read and repaired one by one.  When more differ, all objects are read again."""
_GRACE_S = 1.0
"""How long digests may differ on a bus before objects are compared: changes arrive within a few milliseconds."""
_SHOWN_MAX = 10
"""Objects that one log message names."""
_PAUSE_S, _PAUSE_MAX_S = 0.002, 0.25
_PORTION = 1000
_UNPUBLISHED_MAX = 100_000

Buckets = Collection[int] | None
"""None: all."""
_Versions = collections.defaultdict[str, dict[str, int]]
"""Table -> key -> version."""


class CopyAccess(Protocol):
    """The cache that is verified."""

    def begin_journal(self) -> ChangeJournal:
        """Begin to record changes of the copy.  Raises Closed."""

    def change(self, work: Callable[[], list[Difference]]) -> None:
        """Change the copy and deliver the differences to consumers.  Raises Closed."""

    def filters(self) -> tuple[str, ...]:
        """The filters that are followed now."""

    def unsettled(self, *, has_doubts: bool) -> str:
        """Why the copy cannot be compared now, or empty.  With doubts: also why it may lack published changes."""

    def need_snapshot(self, reason: str, *, is_awaited: bool = False, is_replacing: bool = False) -> None: ...

    def wait(self, seconds: float) -> None:
        """Block until the copy may have changed, or the time is over.  Raises Closed."""


class Suspect(NamedTuple):
    """An object that was different in the copy and in the database at ``revision``."""

    table: str
    key: str
    stored: DbObject | None
    revision: int


class Verifier:
    """Verifies one copy.  `verify` may be called from any thread; one verification runs at a time."""

    def __init__(
        self,
        copy: CopyAccess,
        core: CacheCore,
        nb: NbApi,
        marks: HistoryMarks,
        *,
        tables: Sequence[str] | None,
        behind_s: float | None,
        limit: SnapshotLimit,
    ) -> None:
        """``behind_s``: how long a change may take to arrive; None: the copy follows the feed, and its position shows
        what has arrived."""
        self.copy = copy
        self.core = core
        self.db = nb.db
        self.turns = nb.snapshot_turns
        self.marks = marks
        self.behind_s = behind_s
        self.limit = limit
        self.counters = VerifyCounters()
        self._tables = tables
        self._lock = threading.Lock()
        self._next_bucket = 0

    def verify(self, *, timeout_s: float, is_thorough: bool) -> Verification:
        """Raises CopyUnsettled, WaitTimeout, DbError, Closed."""
        deadline = time.monotonic() + timeout_s
        while not self._lock.acquire(timeout=_PAUSE_MAX_S):
            self.copy.wait(0.0)
            check_time(deadline, "another verification of this copy is running")
        try:
            found = self._verify(deadline, is_thorough)
        except CopyUnsettled:
            self.counters.unsettled += 1
            raise
        finally:
            self._lock.release()
        self.counters.verifications += 1
        self.counters.values += found.values
        self.counters.late += found.late
        self.counters.differences += len(found.differences)
        self.counters.repaired += sum(one.is_repaired for one in found.differences)
        if found.differences:
            _log(found)
        return found

    def _verify(self, deadline: float, is_thorough: bool) -> Verification:
        self.check_settled(has_doubts=False)
        self._check_history()
        journal = self.copy.begin_journal()
        try:
            with self.turns.wait(self.copy.wait, self.limit.counters):
                run = _Run(self, journal, deadline)
                run.compare(*self._split_tables(), self._value_buckets(is_thorough))
            return run.finish()
        finally:
            self.core.end_journal()

    def check_settled(self, *, has_doubts: bool) -> None:
        """Raises CopyUnsettled."""
        if why := self.copy.unsettled(has_doubts=has_doubts):
            raise CopyUnsettled(f"the local cache cannot be verified now, try again later: {why}")

    def _check_history(self) -> None:
        """Raises CopyUnsettled when the database has lost its history: then versions prove nothing, and all objects are
        read again."""
        check = self.db.check_history(self.marks.pending(self.core.newest))
        if check.lost is not None:
            loss = f"the database has lost its history: revision {check.lost} is not part of it"
            LOG.error("LocalCache: verification: %s. All objects are read again.", loss)
            self.copy.need_snapshot(loss, is_awaited=True, is_replacing=True)
            raise CopyUnsettled(f"{loss}; all objects are being read, try again later")

    def _split_tables(self) -> tuple[Sequence[str] | None, Sequence[str] | None]:
        """The tables whose digests can be compared, and those that must be read completely; None: all tables."""
        if self._tables is None:
            return ([], None) if self.core.where_of("") else (None, [])
        selected = [table for table in self._tables if self.core.where_of(table)]
        return [table for table in self._tables if table not in selected], selected

    def _value_buckets(self, is_thorough: bool) -> Buckets:
        """The buckets whose values are compared this time.  The next verification compares those that follow."""
        count = -(-BUCKETS * VALUES_MAX // max(self.core.objects, 1))
        if is_thorough or count >= BUCKETS:
            return None
        first = self._next_bucket
        self._next_bucket = (first + count) % BUCKETS
        return frozenset(number % BUCKETS for number in range(first, first + count))


class _Run:
    """One verification."""

    def __init__(self, verifier: Verifier, journal: ChangeJournal, deadline: float) -> None:
        self._copy, self._core, self._db = verifier.copy, verifier.core, verifier.db
        self._verifier = verifier
        self._journal = journal
        self._deadline = deadline
        filters = self._copy.filters()
        self._topics = None if EVERYTHING in filters else filters
        self._revision = 0
        self._proofs: list[TableProof] = []
        self._values = 0
        self._suspects: list[Suspect] = []
        self._selected: dict[tuple[str, str], bool] = {}
        """Table and topic -> whether the copy should have their objects, for tables without a selection by fields."""

    def compare(self, by_digest: Sequence[str] | None, by_object: Sequence[str] | None, buckets: Buckets) -> None:
        """Compare the tables ``by_digest``, with the values of ``buckets``, and all objects of the others."""
        if by_digest is None or by_digest:
            differing = self._compare_digests(by_digest)
            self._compare_objects(by_digest, None if buckets is None else differing | frozenset(buckets))
        if by_object is None or by_object:
            self._proofs += self._compare_all_objects(by_object)

    # -- digests

    def _compare_digests(self, tables: Sequence[str] | None) -> frozenset[int]:
        """The buckets that differ."""
        stored = self._db.digests(tables, self._topics)
        self._revision = stored.revision
        found = {table: digest for (table, _), digest in stored.parts.items() if self._core.is_followed(table)}

        def proofs() -> list[TableProof]:
            held = self._journal.digests(stored.revision)
            names = sorted(table for table in found.keys() | held.keys() if tables is None or table in tables)
            return [TableProof(name, held.get(name, NO_OBJECTS), found.get(name, NO_OBJECTS)) for name in names]

        def are_equal() -> bool:
            self._proofs = proofs()
            return all(proof.held == proof.stored for proof in self._proofs)

        grace_s = None if self._verifier.behind_s is None else min(_GRACE_S, self._verifier.behind_s)
        if self._wait(are_equal, stored.revision, grace_s):
            return frozenset()
        return self._differing_buckets(tables)

    def _differing_buckets(self, tables: Sequence[str] | None) -> frozenset[int]:
        stored = self._db.digests(tables, self._topics, by_bucket=True)
        held = add_up(
            ((table, entry.version) for table, _, entry in self._held(tables, stored.revision)), by_bucket=True
        )
        names = {name for name in stored.parts.keys() | held.keys() if self._core.is_followed(name[0])}
        return frozenset(bucket for name in names if stored.parts.get(name) != held.get(name) for bucket in name[1:])

    def _held(self, tables: Sequence[str] | None, revision: int) -> Iterator[tuple[str, str, CachedObject]]:
        """The objects that the copy had at a revision."""
        changed = self._journal.names()
        for table, entries in list(self._core.tables.items()):
            if tables is None or table in tables:
                for key, entry in entries.copy().items():  # dict.copy() is atomic; other threads change the dict
                    if (table, key) not in changed:
                        yield table, key, entry
        for table, key in changed:
            if tables is None or table in tables:
                then = self._journal.as_of(table, key, revision)
                if then is not None:
                    yield table, key, then

    # -- objects

    def _compare_objects(self, tables: Sequence[str] | None, buckets: Buckets) -> tuple[int, _Versions]:
        """Read and compare the objects of buckets.  Returns the revision at which they were read, and the versions of
        those that the copy should have."""
        stored: _Versions = collections.defaultdict(dict)
        if buckets is not None and not buckets:
            return 0, stored
        is_large = buckets is None and self._core.objects > VALUES_MAX
        with (
            self._verifier.limit.hold() if is_large else contextlib.nullcontext(_no_progress) as show_progress,
            self._db.snapshot(tables, self._topics, buckets=buckets) as snapshot,
        ):
            rows = iter(snapshot)
            while portion := list(itertools.islice(rows, _PORTION)):
                self._check()
                show_progress()
                self._compare_portion(portion, snapshot.revision, stored)
        self._find_surplus(tables, buckets, snapshot.revision, stored)
        return snapshot.revision, stored

    def _compare_portion(self, rows: Sequence[DbObject], revision: int, stored: _Versions) -> None:
        """Adds to ``stored``."""
        for row in rows:
            if self._is_selected(row):
                stored[row.table][row.key] = row.version
                self._values += 1
                if kind_of(self._entry(row.table, row.key), row) is not None:
                    self._suspect(Suspect(row.table, row.key, row, revision))

    def _is_selected(self, row: DbObject) -> bool:
        """Whether the copy should have the object."""
        name = (row.table, row.topic)
        is_selected = self._selected.get(name)
        if is_selected is None:
            is_selected = self._core.selects(row)
            if not self._core.where_of(row.table):
                self._selected[name] = is_selected
        return is_selected

    def _find_surplus(self, tables: Sequence[str] | None, buckets: Buckets, revision: int, stored: _Versions) -> None:
        """Add suspects for objects of these buckets that the copy had and the database did not."""
        changed = self._journal.names()
        wanted = frozenset(range(BUCKETS) if buckets is None else buckets)
        for table, entries in list(self._core.tables.items()):
            if tables is None or table in tables:
                known = stored[table]
                # dict.copy() is atomic; other threads change the dict.  No call per object: that would take too long.
                for key in [
                    key
                    for key, entry in entries.copy().items()
                    if entry.version >> BUCKET_SHIFT & BUCKETS - 1 in wanted
                ]:
                    if key not in known and (table, key) not in changed:
                        self._suspect(Suspect(table, key, None, revision))
        for table, key in changed:
            then = self._journal.as_of(table, key, revision)
            is_wanted = then is not None and bucket_of(then.version) in wanted
            if is_wanted and (tables is None or table in tables) and key not in stored[table]:
                self._suspect(Suspect(table, key, None, revision))

    def _compare_all_objects(self, tables: Sequence[str] | None) -> list[TableProof]:
        """Compare tables of which the copy has a selection by fields: no database has digests of a selection."""
        revision, stored = self._compare_objects(tables, None)
        self._revision = self._revision or revision
        held: dict[str, list[int]] = collections.defaultdict(list)
        for table, _, entry in self._held(tables, revision):
            held[table].append(entry.version)
        return [
            TableProof(table, _digest(held[table]), _digest(stored[table].values()))
            for table in sorted(held.keys() | stored.keys())
        ]

    # -- suspects

    def finish(self) -> Verification:
        """Wait for changes that may still arrive, repair what differs then, and return the result."""
        differing = self._wait_for_suspects()
        if differing:
            self._verifier.check_settled(has_doubts=True)
            self._check()
        differences = self._repair(differing)
        late = len(self._suspects) - len(differing)
        objects = sum(proof.held.objects for proof in self._proofs)
        return Verification(self._revision, tuple(self._proofs), tuple(differences), objects, self._values, late)

    def _wait_for_suspects(self) -> list[Suspect]:
        """The suspects that still differ when no change of them can arrive any more.

        On a bus, that is ``behind_s`` after their changes have left the outbox.  When changes leave the outbox during
        that time, because a publisher that was stopped goes on, it begins again for them.
        """
        differing: list[Suspect] = []
        waiting, unpublished = self._suspects, self._unpublished()
        while waiting:
            self._wait_decided(waiting)
            excused: list[Suspect] = []
            for one in waiting:
                is_excused = not self._is_decided(one) and (one.table, one.key) in unpublished
                if not self._is_right(one):
                    (excused if is_excused else differing).append(one)
            unpublished = self._unpublished() if excused else set()
            waiting = [one for one in excused if (one.table, one.key) not in unpublished]
        return differing

    def _wait_decided(self, suspects: Sequence[Suspect]) -> None:
        revision = max(suspect.revision for suspect in suspects)
        self._wait(lambda: all(map(self._is_decided, suspects)), revision, self._verifier.behind_s)

    def _unpublished(self) -> set[tuple[str, str]]:
        """Objects with a change in the outbox: no copy can have it before it is published."""
        if self._verifier.behind_s is None or all(map(self._is_decided, self._suspects)):
            return set()
        found = self._db.unpublished(limit=_UNPUBLISHED_MAX)
        if len(found) == _UNPUBLISHED_MAX:
            raise CopyUnsettled("the local cache cannot be verified now, try again later: too much is not published")
        return {(change.table, change.key) for change in found}

    def _suspect(self, suspect: Suspect) -> None:
        if not self._is_right(suspect):
            self._suspects.append(suspect)

    def _is_right(self, suspect: Suspect) -> bool:
        """Whether the copy has the object as the database had it, or a newer version."""
        return self._kind(suspect) is None or self._journal.newest(suspect.table, suspect.key) > suspect.revision

    def _is_decided(self, suspect: Suspect) -> bool:
        """Whether the copy is right, or no change that may arrive can make it right."""
        return self._is_right(suspect) or self._kind(suspect) in ("ahead", "topic", "value")

    def _kind(self, suspect: Suspect) -> DifferenceKind | None:
        """The difference between the copy now and the database at the revision of the suspect."""
        return kind_of(self._entry(suspect.table, suspect.key), suspect.stored)

    def _entry(self, table: str, key: str) -> CachedObject | None:
        return self._core.tables.get(table, {}).get(key)

    def _repair(self, suspects: Sequence[Suspect]) -> list[ObjectDifference]:
        found: list[ObjectDifference] = []
        for suspect in suspects[:REPAIRS_MAX]:
            found += self._repair_one(suspect)
        if len(suspects) > REPAIRS_MAX:
            found += [
                ObjectDifference(table, key, kind, self._core.find(table, key), stored, False)
                for table, key, stored, _ in suspects[REPAIRS_MAX:]
                if (kind := kind_of(self._entry(table, key), stored)) is not None
            ]
            reason = f"verification: {len(suspects)} objects differ from the database"
            self._copy.need_snapshot(reason, is_awaited=True, is_replacing=True)
        return found

    def _repair_one(self, suspect: Suspect) -> list[ObjectDifference]:
        """Read the object again and repair it in the copy.  Returns nothing if it is right by now."""
        table, key = suspect.table, suspect.key
        entry = self._entry(table, key)
        held = None if entry is None else entry.named(table, key)
        stored = self._read(table, key)
        kind = kind_of(entry, stored)
        if kind is None or self._is_right(suspect):
            return []
        repaired: list[bool] = []

        def repair() -> list[Difference]:
            out: list[Difference] = []
            repaired.append(self._core.repair(table, key, entry, stored, out))
            return out

        self._copy.change(repair)
        return [ObjectDifference(table, key, kind, held, stored, repaired[0])]

    def _read(self, table: str, key: str) -> DbObject | None:
        try:
            found = self._db.get(table, key)
        except (ObjectNotFound, InvalidObject):  # no name: a foreign publisher told of it
            return None
        return found if self._core.selects(found) else None

    # -- waiting

    def _wait(self, is_done: Callable[[], bool], revision: int, patience_s: float | None) -> bool:
        """Block until ``is_done()``; False when no change up to ``revision`` can arrive.  Raises WaitTimeout."""
        began, pauses = time.monotonic(), Backoff(_PAUSE_S, _PAUSE_MAX_S)
        while True:
            has_arrived = self._core.position >= revision  # before is_done(), which must see these changes
            if is_done():
                return True
            if has_arrived or (patience_s is not None and time.monotonic() - began >= patience_s):
                return False
            self._check()
            self._copy.wait(pauses.next_s())

    def _check(self) -> None:
        """Raises CopyUnsettled, WaitTimeout, Closed."""
        if self._journal.broken:
            raise CopyUnsettled(f"the local cache cannot be verified now, try again later: {self._journal.broken}")
        self._copy.wait(0.0)
        check_time(self._deadline, "changes have not arrived yet, or the database is slow")


def _no_progress() -> None:
    """Instead of the renewal of a slot, where none is needed."""


def check_time(deadline: float, why: str) -> None:
    """Raises WaitTimeout."""
    if time.monotonic() > deadline:
        raise WaitTimeout(f"the local cache was not verified in time: {why}")


def _digest(versions: Collection[int]) -> TableDigest:
    return TableDigest(len(versions), sum(versions))


def _log(found: Verification) -> None:
    names = [f"{one.table} {one.key!r} ({one.kind})" for one in found.differences[:_SHOWN_MAX]]
    if len(found.differences) > _SHOWN_MAX:
        names.append(f"and {len(found.differences) - _SHOWN_MAX} more")
    LOG.error(
        "LocalCache: %d of %d objects differed from the database at revision %d, %d were repaired: %s.",
        len(found.differences), found.objects, found.revision, sum(one.is_repaired for one in found.differences),
        ", ".join(names),
    )  # fmt: skip
