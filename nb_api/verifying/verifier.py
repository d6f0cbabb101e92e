"""Comparing a local cache with its database as of one revision, while both move on, and repairing what differs.

1. The copy begins a journal (`nb_api.core.copy.journal`): from then on it can be asked what it was as of any later
   revision.
2. The database is asked for its digests, which come with a revision.  They are compared with those of the copy as of
   that revision.  What was committed before may still be on its way, so this waits for a while.
3. Where they still differ, the digests of buckets say where to look.
4. The objects of these buckets, and of some more for the sake of their values, are read and compared one by one.
   Tables of which the copy has a selection by fields are read whole: no database can add those up.
5. What differs is a *suspect* until the copy has followed the feed beyond the revision, or, on a bus, until a change
   cannot be on its way any more: some time after it was seen to be out of the outbox.  Then the
   object is read again, and what differs still is a difference.
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

from nb_api.cache.reading.history_marks import HistoryMarks
from nb_api.coordination.snapshot_limit import ProcessTurns, SnapshotLimit
from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import CachedObject, Difference
from nb_api.core.copy.journal import ChangeJournal
from nb_api.core.copy.snapshot_merge import EVERYTHING
from nb_api.core.digests import BUCKET_SHIFT, BUCKETS, NO_OBJECTS, TableDigest, add_up, bucket_of
from nb_api.db_api import DbApi, DbObject
from nb_api.errors import CopyUnsettled, ObjectNotFound
from nb_api.verifying.verification import (
    DifferenceKind,
    ObjectDifference,
    TableProof,
    Verification,
    VerifyCounters,
    kind_of,
)
from pubsub_api.errors import WaitTimeout

LOG = logging.getLogger(__name__)

VALUES_MAX = 20_000
"""Objects whose values are compared in one verification, about: a smaller copy is compared whole each time."""
REPAIRS_MAX = 1000
"""Objects that are read and repaired one by one.  When more differ, all are read again."""
_GRACE_S = 1.0
"""How long digests may differ on a bus before the objects are looked at: live changes take a few milliseconds."""
_SHOWN_MAX = 10
"""Objects that are named in one message."""
_PAUSE_S, _PAUSE_MAX_S = 0.002, 0.25
_PORTION = 1000
_UNPUBLISHED_MAX = 100_000

Buckets = Collection[int] | None
"""None: all."""
_Seen = collections.defaultdict[str, dict[str, int]]
"""Versions by table and key."""


class CopyAccess(Protocol):
    """The cache that is verified."""

    def begin_journal(self) -> ChangeJournal:
        """From one moment on.  Raises Closed."""

    def change(self, work: Callable[[], list[Difference]]) -> None:
        """Change the copy and tell of it.  Raises Closed."""

    def filters(self) -> tuple[str, ...]:
        """The filters that are followed now."""

    def unsettled(self, *, has_doubts: bool) -> str:
        """Why the copy cannot be compared; with doubts, also why it may lack what was published.  Else empty."""

    def need_snapshot(self, reason: str, *, is_awaited: bool = False, is_replacing: bool = False) -> None: ...

    def wait(self, seconds: float) -> None:
        """Until the copy may have changed, or the time is over.  Raises Closed."""


class Suspect(NamedTuple):
    """An object that was otherwise in the copy than in the database as of ``revision``."""

    table: str
    key: str
    stored: DbObject | None
    revision: int


class Verifier:
    """`verify` may be called from any thread; one verification runs at a time."""

    def __init__(
        self,
        copy: CopyAccess,
        core: CacheCore,
        db: DbApi,
        marks: HistoryMarks,
        *,
        tables: Sequence[str] | None,
        behind_s: float | None,
        limit: SnapshotLimit,
        turns: ProcessTurns,
    ) -> None:
        """``behind_s``: how long a change may be on its way; None: the feed is followed, and the position tells."""
        self.copy = copy
        self.core = core
        self.db = db
        self.marks = marks
        self.behind_s = behind_s
        self.limit = limit
        self.turns = turns
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
        """Versions prove nothing when the database has lost its history: then all objects are read.

        Raises CopyUnsettled.
        """
        check = self.db.check_history(self.marks.pending(self.core.newest))
        if check.lost is not None:
            loss = f"the database has lost its history: revision {check.lost} is not part of it"
            LOG.error("LocalCache: verification: %s. All objects are read again.", loss)
            self.copy.need_snapshot(loss, is_awaited=True, is_replacing=True)
            raise CopyUnsettled(f"{loss}; all objects are being read, try again later")

    def _split_tables(self) -> tuple[Sequence[str] | None, Sequence[str] | None]:
        """The tables whose digests can be compared, and those that have to be read."""
        if self._tables is None:
            return ([], None) if self.core.where_of("") else (None, [])
        whole = [table for table in self._tables if self.core.where_of(table)]
        return [table for table in self._tables if table not in whole], whole

    def _value_buckets(self, is_thorough: bool) -> Buckets:
        """Whose values are compared this time.  What has its turn next is left to the next verification."""
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
        self._values = self._late = 0
        self._suspects: list[Suspect] = []
        self._selected: dict[tuple[str, str], bool] = {}
        """Whether the copy should have the objects of a table and topic, where that is all that decides."""

    def compare(self, added: Sequence[str] | None, whole: Sequence[str] | None, buckets: Buckets) -> None:
        """Tables that can be added up, tables that are read whole, and the buckets whose values are compared."""
        if added is None or added:
            suspicious = self._compare_digests(added)
            self._compare_objects(added, None if buckets is None else suspicious | frozenset(buckets))
        if whole is None or whole:
            self._proofs += self._prove_whole(whole)

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
        """What the copy had as of a revision."""
        changed = self._journal.names()
        for table, entries in list(self._core.tables.items()):
            if tables is None or table in tables:
                for key, entry in entries.copy().items():  # in one step: it is changed meanwhile
                    if (table, key) not in changed:
                        yield table, key, entry
        for table, key in changed:
            if tables is None or table in tables:
                then = self._journal.as_of(table, key, revision)
                if then is not None:
                    yield table, key, then

    # -- objects

    def _compare_objects(self, tables: Sequence[str] | None, buckets: Buckets) -> tuple[int, _Seen]:
        """The revision that they were read at, and the versions of those that the copy should have."""
        seen: _Seen = collections.defaultdict(dict)
        if buckets is not None and not buckets:
            return 0, seen
        is_large = buckets is None and self._core.objects > VALUES_MAX
        with (
            self._verifier.limit.hold() if is_large else contextlib.nullcontext(_no_progress) as show_progress,
            self._db.snapshot(tables, self._topics, buckets=buckets) as snapshot,
        ):
            rows = iter(snapshot)
            while portion := list(itertools.islice(rows, _PORTION)):
                self._check()
                show_progress()
                self._compare_portion(portion, snapshot.revision, seen)
        self._find_surplus(tables, buckets, snapshot.revision, seen)
        return snapshot.revision, seen

    def _compare_portion(self, rows: Sequence[DbObject], revision: int, seen: _Seen) -> None:
        for row in rows:
            if self._is_selected(row):
                seen[row.table][row.key] = row.version
                self._values += 1
                if kind_of(self._entry(row.table, row.key), row) is not None:
                    self._suspect(Suspect(row.table, row.key, row, revision))

    def _is_selected(self, row: DbObject) -> bool:
        """Whether the copy should have it.  What holds for a whole table and topic is found out once."""
        name = (row.table, row.topic)
        is_selected = self._selected.get(name)
        if is_selected is None:
            has_where = bool(self._core.where_of(row.table))
            is_selected = self._core.selects(row)
            if not has_where:
                self._selected[name] = is_selected
        return is_selected

    def _find_surplus(self, tables: Sequence[str] | None, buckets: Buckets, revision: int, seen: _Seen) -> None:
        """What the copy had of these buckets and the database had not."""
        changed = self._journal.names()
        wanted = frozenset(range(BUCKETS) if buckets is None else buckets)
        for table, entries in list(self._core.tables.items()):
            if tables is None or table in tables:
                known = seen[table]
                # The copy of the dict is made in one step, since others change it; a call for each would take too long.
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
            if is_wanted and (tables is None or table in tables) and key not in seen[table]:
                self._suspect(Suspect(table, key, None, revision))

    def _prove_whole(self, tables: Sequence[str] | None) -> list[TableProof]:
        """Tables that no database can add up, because only some objects are selected."""
        revision, seen = self._compare_objects(tables, None)
        self._revision = self._revision or revision
        held: dict[str, list[int]] = collections.defaultdict(list)
        for table, _, entry in self._held(tables, revision):
            held[table].append(entry.version)
        return [
            TableProof(table, _digest(held[table]), _digest(seen[table].values()))
            for table in sorted(held.keys() | seen.keys())
        ]

    # -- suspects

    def finish(self) -> Verification:
        """Wait for what may be on its way, repair what differs still, and say what was found."""
        suspects = self._suspects
        doubtful = self._wait_for_suspects()
        if doubtful:
            self._verifier.check_settled(has_doubts=True)
            self._check()
        differences = self._repair(doubtful)
        self._late = len(suspects) - len(doubtful)
        objects = sum(proof.held.objects for proof in self._proofs)
        return Verification(self._revision, tuple(self._proofs), tuple(differences), objects, self._values, self._late)

    def _wait_for_suspects(self) -> list[Suspect]:
        """Those that differ although nothing can be on its way: they were out of the outbox for the whole patience.

        What leaves the outbox meanwhile, because a publisher goes on that stood still, gets the patience once more.
        """
        doubtful: list[Suspect] = []
        waiting, unpublished = self._suspects, self._unpublished()
        while waiting:
            self._wait_decided(waiting)
            excused: list[Suspect] = []
            for one in waiting:
                is_excused = not self._is_decided(one) and (one.table, one.key) in unpublished
                if not self._is_right(one):
                    (excused if is_excused else doubtful).append(one)
            unpublished = self._unpublished() if excused else set()
            waiting = [one for one in excused if (one.table, one.key) not in unpublished]
        return doubtful

    def _wait_decided(self, suspects: Sequence[Suspect]) -> None:
        revision = max(suspect.revision for suspect in suspects)
        self._wait(lambda: all(map(self._is_decided, suspects)), revision, self._verifier.behind_s)

    def _unpublished(self) -> set[tuple[str, str]]:
        """Objects with a change that no publisher has sent yet, however long that takes: no copy can have it."""
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
        """Whether the copy has what the database had, or has moved on beyond that."""
        return self._kind(suspect) is None or self._journal.newest(suspect.table, suspect.key) > suspect.revision

    def _is_decided(self, suspect: Suspect) -> bool:
        """Whether it is right, or nothing that is on its way can make it right."""
        return self._is_right(suspect) or self._kind(suspect) in ("ahead", "topic", "value")

    def _kind(self, suspect: Suspect) -> DifferenceKind | None:
        """How the copy differs now from what the database had."""
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
        """Nothing when it has become right meanwhile."""
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
        except ObjectNotFound:
            return None
        return found if self._core.selects(found) else None

    # -- waiting

    def _wait(self, is_done: Callable[[], bool], revision: int, patience_s: float | None) -> bool:
        """Until it is done, or what was committed up to ``revision`` cannot come any more.  Raises WaitTimeout."""
        began, pause_s = time.monotonic(), _PAUSE_S
        while True:
            has_come = self._core.position >= revision
            if is_done():
                return True
            if has_come or (patience_s is not None and time.monotonic() - began >= patience_s):
                return False
            self._check()
            self._copy.wait(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _check(self) -> None:
        """Raises CopyUnsettled, WaitTimeout, Closed."""
        if self._journal.broken:
            raise CopyUnsettled(f"the local cache cannot be verified now, try again later: {self._journal.broken}")
        self._copy.wait(0.0)
        check_time(self._deadline, "changes are still on their way, or the database is slow")


def _no_progress() -> None:
    """There is no slot to renew."""


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
