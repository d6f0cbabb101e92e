"""What a service keeps on disk: one SQLite file, in generations.  What is in one:
`durability_service.storage.contents`.

A *generation* is the whole set of a name-space.  It is ``filling`` until everything is in it, then ``complete``; the
one it replaces is kept as its backup meanwhile and ``retired`` afterwards.  A start that finds a generation which is
still filling goes back to the backup: an interrupted alignment is never used.

Operations are done in order, in transactions that are durable (``synchronous=FULL``) before they are reported.  The
newest retired generation stays for inspection; older ones are purged in small steps.

A process that has a file open can still write to it after it was removed or replaced, and no other process sees that.
So nothing is reported as durable that was not written where the paths of the file and of its write-ahead log lead, or
when the file of the lock is not there any more: without it another service can open the store.

Used by two threads at a time: one writes, and one reads buckets (`SampleStore.read`) on a connection of its own, so
that it waits for no transaction.  A lock on a file beside the store keeps other services out.  `sqlite3` errors leave
it as `StoreFailed`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from durability_service.core.effects import Apply, BeginFill, CompleteFill, Fill, Restored, StoreMarks, StoreOperation
from durability_service.core.messages import Epoch
from durability_service.core.sets.batches import SampleBatch, pack
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample
from durability_service.errors import StoreFailed, StoreInUse
from durability_service.storage import contents, store_lock
from durability_service.storage.store_lock import IN_USE
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.topics import FilterSet
from pubsub_api.runtime import files
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

APPLICATION_ID = 0x48_47_44_53
"""Marks the file as ours."""
SCHEMA_VERSION = 2

_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    """CREATE TABLE generation (
        id INTEGER PRIMARY KEY,
        name_space TEXT NOT NULL,
        filters TEXT NOT NULL,
        buckets INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('filling', 'complete', 'retired')),
        marks BLOB NOT NULL,
        created_ns INTEGER NOT NULL)""",
    """CREATE TABLE current (
        name_space TEXT PRIMARY KEY,
        generation INTEGER NOT NULL REFERENCES generation (id),
        backup INTEGER REFERENCES generation (id)) WITHOUT ROWID""",
    *contents.SCHEMA,
)
_NEWLINE = "\n"
_CHECK_BYTES_MAX = 256 * 1024 * 1024
"""A larger file is not looked through when it is opened: each bucket has a checksum, which is looked at whenever it is
read."""


class _StoredMarks(msgspec.Struct, array_like=True):
    epoch: Epoch
    lineage: list[Epoch]
    deletions: list[Deletion]
    alive: int
    is_clean: bool = False


_encode_marks = msgspec.msgpack.Encoder().encode
_decode_marks = msgspec.msgpack.Decoder(_StoredMarks).decode


class SampleStore(Closeable):
    """The file of one service.  Raises StoreFailed, StoreInUse."""

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = 5.0) -> None:
        self.path = pathlib.Path(path)
        self._files: dict[pathlib.Path, tuple[int, int]] = {}
        self._not_included: dict[int, dict[int, int]] = {}
        """Generation -> bucket -> the first change that is not in it, the oldest first."""
        with contextlib.ExitStack() as undo, _translated(self.path):
            files.make_directory(self.path.parent)
            files.make_private(self.path)
            self._lock = store_lock.take(self.path, busy_timeout_s)
            undo.callback(store_lock.release, self._lock)
            self._db = self._connect(busy_timeout_s)
            undo.callback(self._db.close)
            self._prepare()
            watched = (*self._paths(), store_lock.path_of(self.path))
            self._files = {path: files.identity_of(path) for path in watched if path.exists()}
            self._reading = self._connect(busy_timeout_s)
            undo.callback(self._reading.close)
            self._reading.execute("PRAGMA query_only=ON")
            self._close = undo.pop_all().close

    def _connect(self, busy_timeout_s: float) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)

    def _prepare(self) -> None:
        db = self._db
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA cache_size=-65536")  # kibibytes: the index should stay in memory
        with self._transaction():
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and (application != APPLICATION_ID or version != SCHEMA_VERSION):
                raise StoreFailed(
                    f"{self.path} is not a store of this version (id {application:#x}, version {version})"
                )
            if not tables:
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            self._restore_backups()
        if self.path.stat().st_size <= _CHECK_BYTES_MAX:
            (problem,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if problem != "ok":
                raise StoreFailed(f"{self.path} is damaged: {problem}")
        for generation, buckets in self._complete_generations():
            with self._transaction():
                contents.include(self._db, generation, buckets=buckets)

    def _complete_generations(self) -> list[tuple[int, int]]:
        """The current ones: number, and in how many buckets."""
        return self._db.execute(
            "SELECT id, buckets FROM current JOIN generation ON generation = id WHERE state = 'complete'"
        ).fetchall()

    def _paths(self) -> tuple[pathlib.Path, pathlib.Path]:
        return self.path, self.path.with_name(f"{self.path.name}-wal")

    def _check_files(self) -> None:
        """Raises StoreFailed when what this store has open is not what its paths lead to."""
        for path, identity in self._files.items():
            try:
                is_same = files.identity_of(path) == identity
            except OSError as error:
                raise StoreFailed(f"{path} is gone while this service used it: {error.strerror}") from error
            if not is_same:
                raise StoreFailed(f"{path} was replaced while this service used it: restart the service")

    def _restore_backups(self) -> None:
        """What was being filled when the last run ended is given up for what was there before."""
        interrupted = self._db.execute(
            "SELECT current.name_space, generation, backup FROM current JOIN generation ON generation = id "
            "WHERE state = 'filling'"
        ).fetchall()
        for name, filling, backup in interrupted:
            LOG.warning(
                "Store %s: the last run ended while %s was aligned; %s.", self.path, name,
                "going back to the set before" if backup else "there is no set before it",
            )  # fmt: skip
            self._db.execute("UPDATE generation SET state = 'retired' WHERE id = ?", (filling,))
            if backup:
                self._db.execute(
                    "UPDATE current SET generation = ?, backup = NULL WHERE name_space = ?", (backup, name)
                )
            else:
                self._db.execute("DELETE FROM current WHERE name_space = ?", (name,))

    # -- identity

    def start_life(self, node: str) -> tuple[str, int]:
        """The name and the incarnation of the service: the name given, or the one kept; a number higher than ever."""
        with _translated(self.path), self._transaction():
            kept = dict(self._db.execute("SELECT name, value FROM meta").fetchall())
            node = node or str(kept.get("node", ""))
            incarnation = max(int(kept.get("incarnation", 0)) + 1, time.time_ns() // 1_000_000)
            self._db.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", [("node", node), ("incarnation", incarnation)]
            )
        return node, incarnation

    # -- reading

    def restored(self, buckets: int | None = None) -> Mapping[str, Restored]:
        """Every name-space as it was when the store was opened.  It is kept in so many ``buckets`` from now on; writing
        it anew takes time, but not much memory."""
        with _translated(self.path):
            for generation, present in self._complete_generations():
                if buckets is not None and present != buckets:
                    with self._transaction():
                        self._rebucket(generation, buckets)
            rows = self._db.execute(
                "SELECT current.name_space, id, filters, marks "
                "FROM current JOIN generation ON generation = id WHERE state = 'complete'"
            ).fetchall()
            return {
                name: Restored(
                    _unpacked(marks), tuple(filters.split(_NEWLINE)), contents.summaries(self._db, generation)
                )
                for name, generation, filters, marks in rows
            }

    def _rebucket(self, generation: int, buckets: int) -> None:
        """Replace a complete generation by one with the same content in so many buckets."""
        LOG.warning("Store %s: a set is written anew in %d buckets.", self.path, buckets)
        cursor = self._db.execute(
            "INSERT INTO generation (name_space, filters, buckets, state, marks, created_ns) "
            "SELECT name_space, filters, ?, 'complete', marks, ? FROM generation WHERE id = ?",
            (buckets, time.time_ns(), generation),
        )
        assert cursor.lastrowid is not None
        contents.rebucket(self._db, generation, cursor.lastrowid, buckets=buckets)
        self._db.execute("UPDATE generation SET state = 'retired' WHERE id = ?", (generation,))
        self._db.execute("UPDATE current SET generation = ? WHERE generation = ?", (cursor.lastrowid, generation))

    def read(self, name_space: str, number: int) -> SampleBatch:
        """A bucket as it was last written, without the changes since; from any thread, one at a time.

        While a generation is filled, from there what is in it already, and all else from the one before.
        """
        with _translated(self.path):
            (current, backup), *_ = self._reading.execute(
                "SELECT generation, backup FROM current WHERE name_space = ?", (name_space,)
            ).fetchall() or [(None, None)]
            found = contents.read(self._reading, current, number)
            return found if found.count or backup is None else contents.read(self._reading, backup, number)

    def generations(self) -> list[dict[str, object]]:
        """Every generation, for inspection: name-space, state, when it was begun, how many samples it has, and how many
        changes are not in all of its buckets yet."""
        with _translated(self.path):
            rows = self._db.execute(
                "SELECT name_space, id, state, created_ns, buckets FROM generation ORDER BY id"
            ).fetchall()
            return [
                {
                    "name_space": name,
                    "generation": generation,
                    "state": state,
                    "created_ns": created_ns,
                    "samples": contents.count(self._db, generation, buckets=buckets),
                    "changes": contents.changes(self._db, generation),
                }
                for name, generation, state, created_ns, buckets in rows
            ]

    # -- writing

    def do(self, operations: Sequence[StoreOperation]) -> None:
        """Do these, all or none, and return when they are durable."""
        with _translated(self.path), self._transaction():
            for operation in _joined(operations):
                self._do(operation)

    def _do(self, operation: StoreOperation) -> None:
        if isinstance(operation, BeginFill):
            self._begin(operation)
            return
        if isinstance(operation, Apply):
            self._apply(operation)
            return
        generation, _ = self._generation(operation.name_space, "filling")
        if isinstance(operation, CompleteFill):
            self._complete(operation, generation)
        else:
            contents.write_batches(self._db, generation, operation.batches)
            self._keep(operation, generation)

    def _keep(self, operation: Fill, generation: int) -> None:
        if not operation.kept:
            return
        (backup,) = self._db.execute(
            "SELECT backup FROM current WHERE name_space = ?", (operation.name_space,)
        ).fetchone()
        if backup is None:
            raise StoreFailed(
                f"{self.path}: the name-space {operation.name_space!r} has no generation to keep buckets of"
            )
        contents.copy(self._db, generation, backup, operation.kept)

    def _apply(self, operation: Apply) -> None:
        generation, buckets = self._generation(operation.name_space, "complete")
        waiting = self._not_included.setdefault(generation, {})
        if operation.added or operation.removed:
            change, concerned = contents.write_change(
                self._db, generation, operation.added, operation.removed, buckets=buckets
            )
            for number in concerned:
                waiting.setdefault(number, change)
        if operation.batches:
            contents.write_batches(self._db, generation, operation.batches)
            for number in operation.batches:
                waiting.pop(number, None)
            contents.trim(self._db, generation, next(iter(waiting.values()), None))
        if operation.marks is not None:
            self._db.execute("UPDATE generation SET marks = ? WHERE id = ?", (_packed(operation.marks), generation))

    def _generation(self, name: str, state: str) -> tuple[int, int]:
        """The current generation and its number of buckets."""
        row = self._db.execute(
            "SELECT id, buckets FROM current JOIN generation ON generation = id "
            "WHERE current.name_space = ? AND state = ?",
            (name, state),
        ).fetchone()
        if row is None:
            raise StoreFailed(f"{self.path}: the name-space {name!r} has no generation that is {state}")
        return int(row[0]), int(row[1])

    def _begin(self, operation: BeginFill) -> None:
        name = operation.name_space
        row = self._db.execute(
            "SELECT generation, state, backup FROM current JOIN generation ON generation = id "
            "WHERE current.name_space = ?",
            (name,),
        ).fetchone()
        backup = None
        if row is not None:
            # Only a complete set is worth going back to; one that was never completed keeps the backup it has.
            backup = row[0] if row[1] == "complete" else row[2]
            if row[1] != "complete":
                self._db.execute("UPDATE generation SET state = 'retired' WHERE id = ?", (row[0],))
        cursor = self._db.execute(
            "INSERT INTO generation (name_space, filters, buckets, state, marks, created_ns) "
            "VALUES (?, ?, ?, 'filling', ?, ?)",
            (name, _NEWLINE.join(operation.filters), operation.buckets, _packed(StoreMarks()), time.time_ns()),
        )
        self._db.execute("INSERT OR REPLACE INTO current VALUES (?, ?, ?)", (name, cursor.lastrowid, backup))

    def _complete(self, operation: CompleteFill, generation: int) -> None:
        self._db.execute(
            "UPDATE generation SET state = 'complete', marks = ? WHERE id = ?", (_packed(operation.marks), generation)
        )
        self._db.execute(
            "UPDATE generation SET state = 'retired' "
            "WHERE id = (SELECT backup FROM current WHERE name_space = ?)", (operation.name_space,),
        )  # fmt: skip
        self._db.execute("UPDATE current SET backup = NULL WHERE name_space = ?", (operation.name_space,))

    def purge(self) -> int:
        """Remove a bounded number of rows of generations that are not needed: all retired ones but the newest of each
        name-space.  Returns how many went."""
        with _translated(self.path), self._transaction():
            old = self._db.execute(
                "SELECT id FROM generation WHERE state = 'retired' AND id NOT IN "
                "(SELECT max(id) FROM generation WHERE state = 'retired' GROUP BY name_space) LIMIT 1"
            ).fetchone()
            if old is None:
                return 0
            gone = contents.purge(self._db, old[0])
            if not gone:
                self._db.execute("DELETE FROM generation WHERE id = ?", (old[0],))
            return max(gone, 1)

    # -- snapshots

    def snapshot(self, directory: str | os.PathLike[str], filters: Sequence[str] = ("#",)) -> pathlib.Path:
        """Write a store of its own into the directory, with the complete sets of the topics selected.

        It appears there whole or not at all.  Returns its path.
        """
        folder = pathlib.Path(directory)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        target = folder / f"durability-{stamp}-{time.time_ns() % 10**9:09}.db"
        unfinished = target.with_suffix(".partial")
        with _translated(folder):
            files.make_directory(folder)
            files.make_private(unfinished)
            self._db.execute("VACUUM INTO ?", (str(unfinished),))
            _reduce(unfinished, FilterSet(filters))
            with open(unfinished, "rb") as written:
                os.fsync(written.fileno())
            os.rename(unfinished, target)
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return target

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            self._not_included = {name: {-1: 0} for name in self._not_included}  # it is not known: nothing is trimmed
            raise
        self._db.execute("COMMIT")
        self._check_files()

    def close(self) -> None:
        """Idempotent."""
        self._close()


def _joined(operations: Sequence[StoreOperation]) -> Iterator[StoreOperation]:
    """The same operations, with neighbouring changes of one set joined."""
    changes: list[Apply] = []
    for operation in operations:
        is_next = isinstance(operation, Apply) and changes and operation.name_space == changes[0].name_space
        if changes and (changes[-1].batches or not is_next):
            yield _one(changes)
            changes = []
        if isinstance(operation, Apply):
            changes.append(operation)
        else:
            yield operation
    if changes:
        yield _one(changes)


def _one(changes: Sequence[Apply]) -> Apply:
    """Changes as one, the last of which may have batches.  What is said last of a sample counts: what one adds and a
    later one removes again, as happens with every object that changes often, is not written."""
    if len(changes) == 1:
        return changes[0]
    added: dict[bytes, Sample] = {}
    removed: dict[bytes, Sample] = {}
    marks: StoreMarks | None = None
    for change in changes:
        for sample in change.added:
            removed.pop(sample.digest, None)
            added[sample.digest] = sample
        for sample in change.removed:
            added.pop(sample.digest, None)
            removed[sample.digest] = sample
        marks = change.marks or marks
    return Apply(changes[0].name_space, list(added.values()), list(removed.values()), marks, changes[-1].batches)


def _reduce(path: pathlib.Path, selected: FilterSet) -> None:
    """Leave in a copy only complete generations and selected topics."""
    copy = sqlite3.connect(path, isolation_level=None)
    try:
        copy.execute("PRAGMA journal_mode=DELETE")
        copy.execute("BEGIN")
        for generation, buckets, state in copy.execute("SELECT id, buckets, state FROM generation").fetchall():
            if state != "complete":
                contents.clear(copy, generation)
                continue
            contents.include(copy, generation, buckets=buckets)
            for number, found in contents.samples(copy, generation):
                chosen = [sample for sample in found if selected.match(sample.topic)]
                if len(chosen) < len(found):
                    contents.write_batches(copy, generation, {number: pack(chosen)})
        copy.execute("DELETE FROM generation WHERE state != 'complete'")
        copy.execute("DELETE FROM current WHERE generation NOT IN (SELECT id FROM generation)")
        copy.execute("COMMIT")
        copy.execute("VACUUM")
    finally:
        copy.close()


def _packed(marks: StoreMarks) -> bytes:
    deletions = sorted(marks.deletions)
    return _encode_marks(_StoredMarks(marks.epoch, list(marks.lineage), deletions, marks.alive, marks.is_clean))


def _unpacked(data: bytes) -> StoreMarks:
    stored = _decode_marks(data)
    return StoreMarks(stored.epoch, tuple(stored.lineage), frozenset(stored.deletions), stored.alive, stored.is_clean)


@contextlib.contextmanager
def _translated(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise StoreInUse(IN_USE.format(path)) from error
        raise StoreFailed(f"the store {path} failed: {error}") from error
    except (sqlite3.Error, OSError, msgspec.MsgspecError, UnicodeDecodeError, UndecodableBody) as error:
        raise StoreFailed(f"the store {path} failed: {error}") from error
