"""Objects, changes and outbox in one SQLite file: the embedded database, for the processes of one host.

SQLite lets one transaction write at a time, across processes.  The revision is taken inside of it, so revisions are in
commit order and the feed needs no further care.  Threads of one process share transactions (`writer`).

There is no notification between processes: `wait` looks, more and more seldom, and is woken at once by its own process.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.db.sqlite import outbox, schema
from heliograph_drivers.db.sqlite.recording import record
from heliograph_drivers.db.sqlite.snapshot import HALF, SqliteSnapshot, digests_query
from heliograph_drivers.sqlite_common.files import make_file, path_of
from heliograph_drivers.sqlite_common.patience import run_patiently
from heliograph_drivers.sqlite_common.pool import SqlitePool
from heliograph_drivers.sqlite_common.writer import GroupCommit, Operation
from nb_api import config
from nb_api.core import checks
from nb_api.core.digests import StoredDigests, TableDigest
from nb_api.core.writes import CheckedWrite, not_found
from nb_api.db_api import Action, Change, DbApi, DbObject, ToldReport, Written
from nb_api.errors import DbError, DbUnavailable
from nb_api.revisions import HistoryCheck, judge, number_of
from nb_api.writing.outbox_age import OutboxAge
from pubsub_api.errors import Closed, InvalidConfig
from pubsub_api.runtime import forking
from pubsub_api.runtime.backoff import Backoff
from pubsub_api.runtime.options import MIB, advanced

GROUP = "db_sqlite"

OPTIONS: Sequence[cfg.Opt] = advanced(
    cfg.StrOpt("synchronous", default="full", choices=["full", "normal"],
               help="full: a commit is on disk when it returns. normal: a power failure may take back the last "
                    "commits, and revisions that controllers have seen are then given to other changes. A process that "
                    "is killed loses nothing either way."),
)  # fmt: skip

SNAPSHOT_TIME_MAX_S = 600.0
"""How long a snapshot may be open: the write-ahead log grows meanwhile."""
_POLL_INTERVAL_S = 0.001
_POLL_INTERVAL_MAX_S = 0.05
"""How soon, and how seldom at most, a wait looks for changes of other processes; each vain look doubles it."""
_JOURNAL_BYTES_MAX = 64 * MIB
"""A write-ahead log that has grown beyond this is cut when it is recycled."""
_COMPACT_PORTION = 5000
_CHANGE_COLUMNS = "revision, action, table_name, key, topic, value, left_topic"

T = TypeVar("T")


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


class SqliteDb(DbApi):
    """``sqlite:///path/file.db``"""

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {GROUP: OPTIONS}

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        self._path = path_of(url)
        self._what = f"the database {self._path}"
        self._options = conf[GROUP]
        self._timeout_s: float = conf.db.operation_timeout
        self._pool = SqlitePool(
            self._path,
            f"PRAGMA synchronous = {self._options.synchronous}; "
            f"PRAGMA journal_size_limit = {_JOURNAL_BYTES_MAX}; PRAGMA temp_store = memory;",
        )
        self._writer = GroupCommit(self._run, self._pool.check_file, self._timeout_s)
        self._is_closed = False
        self._lock = threading.RLock()
        """Of the condition, and entered itself: an interrupt within `Condition.__enter__` would leave it held."""
        self._news = threading.Condition(self._lock)
        self._commits = 0
        self._age = OutboxAge()
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._age = OutboxAge()

    def exists(self) -> bool:
        """An empty file is none: it has no schema, which `initialize` would write."""
        try:
            return self._path.stat().st_size > 0
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise DbUnavailable(f"{self._what} cannot be looked at: {error}") from error

    def initialize(self) -> None:
        make_file(self._path)
        try:
            self._run(lambda connection: schema.make_schema(connection, self._path))
        except DbUnavailable:
            raise
        except DbError as error:
            raise InvalidConfig(f"{self._path} cannot be used as a database: {error.__cause__}") from error

    def close(self) -> None:
        self._is_closed = True
        self._pool.close()
        with self._lock:
            self._news.notify_all()

    # -- objects

    def commit(self, writes: Sequence[CheckedWrite]) -> list[Written]:
        return self._write(lambda connection: record(connection, writes, time.time()))

    def get(self, table: str, key: str) -> DbObject:
        checks.check_object(table, key)
        sql = "SELECT topic, value, version, deleted_at FROM objects WHERE table_name = ? AND key = ?"
        row = self._run(lambda connection: connection.execute(sql, (table, key)).fetchone())
        if row is None or row[3] is not None:
            raise not_found(table, key, None if row is None else row[2])
        return DbObject(table, key, row[0], checks.decode_value(row[1]), row[2])

    def snapshot(
        self,
        tables: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        *,
        buckets: Collection[int] | None = None,
    ) -> SqliteSnapshot:
        selection = checks.TopicSelection(tables, topics, buckets)

        def begin(_: sqlite3.Connection) -> SqliteSnapshot:
            connection = self._pool.open()
            try:
                return SqliteSnapshot(connection, selection, config.SNAPSHOT_PORTION, SNAPSHOT_TIME_MAX_S)
            except BaseException:
                connection.close()
                raise

        return self._run(begin)

    def digests(
        self, tables: Sequence[str] | None = None, topics: Sequence[str] | None = None, *, by_bucket: bool = False
    ) -> StoredDigests:
        found = digests_query(checks.TopicSelection(tables, topics), by_bucket=by_bucket)
        if found is None:
            return super().digests(tables, topics, by_bucket=by_bucket)

        def read(connection: sqlite3.Connection) -> StoredDigests:
            connection.execute("BEGIN")
            try:
                revision, rows = schema.newest(connection), connection.execute(*found).fetchall()
            finally:
                connection.execute("COMMIT")
            parts = {(row[0], row[1]): TableDigest(row[2], row[3] + (row[4] << HALF)) for row in rows if row[2]}
            return StoredDigests(revision, parts)

        return self._run(read)

    def allocate(self, name: str) -> int:
        checks.check_name(name, "name of a counter")

        def operation(connection: sqlite3.Connection) -> int:
            connection.execute(
                "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET number = number + 1", (name,)
            )
            return _one(connection, "SELECT number FROM counters WHERE name = ?", name)

        return self._write(operation)

    # -- changes

    def revision(self) -> int:
        return self._run(schema.newest)

    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        checks.check_revision(after_revision)
        checks.check_limit(limit)
        sql = f"SELECT {_CHANGE_COLUMNS} FROM changes WHERE revision > ? ORDER BY revision LIMIT ?"

        def read(connection: sqlite3.Connection) -> tuple[list[Any], bool, int, int]:
            # In this order: a compaction in between makes us say "too old", never return a list with holes.
            rows = connection.execute(sql, (after_revision, limit)).fetchall()
            is_known = bool(schema.known(connection, [after_revision]))
            return rows, is_known, _one(connection, "SELECT compacted FROM feed"), schema.newest(connection)

        rows, is_known, compacted, newest = self._run(read)
        checks.check_in_feed(after_revision, compacted=compacted, newest=newest, is_known=is_known)
        return [_change(row) for row in rows]

    def changes_of(self, revisions: Sequence[int]) -> list[Change]:
        checks.check_revisions(revisions)
        sql = f"SELECT {_CHANGE_COLUMNS} FROM changes WHERE revision = ?"

        def read(connection: sqlite3.Connection) -> list[Any]:
            found = [connection.execute(sql, (revision,)).fetchone() for revision in sorted(set(revisions))]
            return [row for row in found if row is not None]

        return [_change(row) for row in self._run(read)]

    def check_history(self, revisions: Sequence[int]) -> HistoryCheck:
        checks.check_revisions(revisions)

        def read(connection: sqlite3.Connection) -> HistoryCheck:
            known, compacted = schema.known(connection, revisions), _one(connection, "SELECT compacted FROM feed")
            return judge(revisions, known, compacted=compacted, newest=schema.newest(connection))

        return self._run(read)

    def wait(self, after_revision: int, *, timeout_s: float) -> bool:
        checks.check_revision(after_revision)
        checks.check_not_negative(timeout_s, "a timeout in seconds")
        self._check_open()
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(_POLL_INTERVAL_S, _POLL_INTERVAL_MAX_S)
        while True:
            commits = self._commits
            try:
                newest = self.revision()
            except Closed:
                return False
            if newest != after_revision:
                checks.check_in_feed(after_revision, compacted=0, newest=newest)
                return True
            rest = deadline - time.monotonic()
            if rest <= 0:
                return False
            with self._lock:
                if not self._is_closed and self._commits == commits:
                    self._news.wait(min(rest, backoff.next_s()))

    def compact(self, *, keep_changes: int, keep_tombstones_s: float) -> int:
        checks.check_not_negative(keep_changes, "the number of changes to keep")
        checks.check_not_negative(keep_tombstones_s, "the time to keep tombstones")
        compacted, cut = self._write(lambda connection: _move_compacted(connection, keep_changes))
        while self._write(lambda connection: _remove_changes(connection, cut)) == _COMPACT_PORTION:
            pass
        expired = time.time() - keep_tombstones_s
        while self._write(lambda connection: _remove_tombstones(connection, expired)) == _COMPACT_PORTION:
            pass
        # Does nothing while a reader is active; the next compaction tries again.
        self._run(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        # The numbers have no gaps here: a transaction that is rolled back gives its numbers back.
        return number_of(cut) - number_of(compacted)

    # -- outbox

    def unpublished(self, *, older_than_s: float = 0.0, after_revision: int = 0, limit: int = 1000) -> list[Change]:
        checks.check_not_negative(older_than_s, "an age in seconds")
        checks.check_limit(limit)
        # Without an age no clock is asked, so that one that was set back hides nothing.
        now = time.monotonic()
        since = time.time() - older_than_s if older_than_s else math.inf
        old = self._age.old_up_to(older_than_s, now)

        def read(connection: sqlite3.Connection) -> tuple[list[Any], bool, int]:
            newest = schema.newest(connection)
            rows = outbox.waiting(connection, _CHANGE_COLUMNS, since=since, old=old, after=after_revision, limit=limit)
            return rows, not rows and outbox.is_unsettled(connection), newest

        rows, is_unsettled, newest = self._run(read)
        self._age.looked(older_than_s, now, newest)
        if is_unsettled:
            with contextlib.suppress(DbUnavailable):  # it only spares later readers something
                self._write(outbox.settle)
        return [_change(row) for row in rows]

    def mark_published(self, revisions: Sequence[int]) -> None:
        checks.check_revisions(revisions)
        if not revisions:
            self._check_open()
            return
        # Not synced: what a power failure takes back is published again.
        self._writer.write(lambda connection: outbox.mark(connection, revisions), is_durable=False)

    # -- reports

    def tell_report(self, name: str, data: bytes) -> ToldReport:
        checks.check_report(name, data)

        def operation(connection: sqlite3.Connection) -> ToldReport:
            connection.execute(schema.REPORTS)  # a file of an earlier release has no such table
            before = connection.execute("SELECT data FROM reports WHERE name = ?", (name,)).fetchone()
            connection.execute("INSERT OR REPLACE INTO reports VALUES (?, ?)", (name, data))
            return ToldReport(before and before[0], _one(connection, "SELECT count(*) FROM reports"))

        return self._writer.write(operation, is_durable=False)

    def reports(self) -> dict[str, bytes]:
        def read(connection: sqlite3.Connection) -> dict[str, bytes]:
            if not _one(connection, "SELECT count(*) FROM sqlite_master WHERE name = 'reports'"):
                return {}
            return dict(connection.execute("SELECT name, data FROM reports").fetchall())

        return self._run(read)

    def forget_reports(self, names: Sequence[str]) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            connection.execute(schema.REPORTS)
            connection.executemany("DELETE FROM reports WHERE name = ?", [(name,) for name in names])

        self._writer.write(operation, is_durable=False)

    # -- inside

    def _write(self, operation: Operation[T]) -> T:
        result = self._writer.write(operation)
        with self._lock:
            self._commits += 1
            self._news.notify_all()
        return result

    def _run(self, work: Operation[T]) -> T:
        return run_patiently(self._pool, work, what=self._what, timeout_s=self._timeout_s, check_open=self._check_open)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the database {self._path} is closed")


def _one(connection: sqlite3.Connection, sql: str, *parameters: object) -> int:
    (number,) = connection.execute(sql, parameters).fetchone()
    return int(number)


def _change(row: tuple[int, Action, str, str, str, bytes | None, str | None]) -> Change:
    revision, action, table, key, topic, value, left_topic = row
    return Change(
        revision, action, table, key, topic, None if value is None else checks.decode_value(value), left_topic
    )


def _move_compacted(connection: sqlite3.Connection, keep_changes: int) -> tuple[int, int]:
    """Where the feed began and where it begins now.  First of all, so that no reader gets what will have holes."""
    compacted = _one(connection, "SELECT compacted FROM feed")
    sql = "SELECT revision FROM changes ORDER BY revision DESC LIMIT 1 OFFSET ?"
    (last,) = connection.execute(sql, (keep_changes,)).fetchone() or (0,)
    cut = max(compacted, int(last))
    connection.execute("UPDATE feed SET compacted = ?", (cut,))
    return compacted, cut


def _remove_changes(connection: sqlite3.Connection, cut: int) -> int:
    sql = (
        "DELETE FROM changes WHERE revision IN (SELECT revision FROM changes "
        f"WHERE revision <= ? AND (since IS NULL OR {outbox.IS_PUBLISHED}) ORDER BY revision LIMIT ?)"
    )
    return connection.execute(sql, (cut, _COMPACT_PORTION)).rowcount


def _remove_tombstones(connection: sqlite3.Connection, expired: float) -> int:
    sql = "DELETE FROM objects WHERE rowid IN (SELECT rowid FROM objects WHERE deleted_at <= ? LIMIT ?)"
    return connection.execute(sql, (expired, _COMPACT_PORTION)).rowcount
