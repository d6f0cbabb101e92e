"""Objects and their feed in PostgreSQL, 11 or later, through psycopg 3.

How the feed comes to be in commit order.  A sequence hands out its numbers before commit: a reader of 7 may later see 6
appear.  So a change takes an advisory lock, then the number, and PostgreSQL releases the lock at the end of the
transaction, after it has become visible.  The next number is therefore taken when every older one is visible or rolled
back, and so

- number order is commit order: what a query sees of ``changes`` is a prefix of the feed, always;
- a snapshot of PostgreSQL is exactly the objects as of the newest revision in it, which is what `Snapshot` promises.

The price is that changes commit one at a time.  It is small: a change announces itself with NOTIFY, and PostgreSQL lets
transactions that notify commit one at a time anyway.  A change is one call of one function, so the lock is held while
the server works and never while a client thinks; what the threads of a process have to change meanwhile goes into one
transaction (`heliograph_drivers.db.postgres.writer`).  Numbers whose transaction is rolled back, or that a crash of the
server has swallowed, are skipped.

Two other ways were left aside.  Showing only changes older than every running transaction (``pg_snapshot_xmin``) lets
changes commit side by side, but then any long writing transaction on the server, of any application, stops the feed,
and a snapshot holds changes that the feed does not show yet.  A counter in a row that every change updates is as
correct as the lock, but the dead rows it leaves cannot be removed while a snapshot is read, and every change walks over
them.

A program that changes the tables past the function ``write`` breaks the rule; one that calls it in a long transaction
of its own makes all others wait, and they give up after ``[db] operation_timeout``.  ``synchronous_commit = off`` is
overruled: a crash would take back changes that were seen.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import SplitResult

import psycopg
from oslo_config import cfg

from heliograph_drivers.db.postgres import config, schema
from heliograph_drivers.db.postgres.snapshot import PostgresSnapshot, digests_query
from heliograph_drivers.db.postgres.writer import SharedWriter, Transfer, WriteOutcome, outcome_of
from heliograph_drivers.postgres_common.pool import FunctionsMissing, PostgresConnection, PostgresPool, Row, prepared
from nb_api.core import checks
from nb_api.core.digests import StoredDigests, TableDigest
from nb_api.core.writes import CheckedWrite, not_found, refusal_error
from nb_api.db_api import Change, DbApi, DbObject, Snapshot, ToldReport, Written
from nb_api.revisions import HistoryCheck, judge
from nb_api.writing.outbox_age import OutboxAge
from pubsub_api.errors import Closed

_COMPACT_PORTION = 10_000
"""Rows that one transaction of `compact` removes: each is short, and interrupted work is not lost."""
_STANDBY_LOOK_S = 0.1
"""How often a standby, which does not notify, is asked for the newest revision."""
_AGE_S_MAX = 3e9
"""More than any clock has seen, and still an interval."""


class PostgresDb(DbApi):
    """The driver.  See the module's description.  One statement per call, so one round trip."""

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {"db_postgres": ()}
    """None any more: a file that still has some is refused."""

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        self._settings = config.read_settings(conf, url)
        self._statements = _Statements(self._settings.schema)
        self._pool = PostgresPool(self._settings)
        self._writer = SharedWriter(self._execute)
        self._age = OutboxAge()

    def exists(self) -> bool:
        with self._pool.connection() as connection:
            return schema.is_installed(connection, self._settings)

    def initialize(self) -> None:
        with self._pool.connection() as connection:
            schema.install(connection, self._settings)

    def close(self) -> None:
        self._pool.close()

    def release_idle(self) -> None:
        self._pool.close_idle()

    # -- objects

    def commit(self, writes: Sequence[CheckedWrite]) -> list[Written]:
        written = []
        for position, outcome in enumerate(self._writer.write(writes)):
            if outcome.name == schema.UNTOUCHED:  # another one of them was refused
                continue
            if outcome.name != schema.DONE or outcome.version is None:
                raise refusal_error(writes, position, outcome.name, outcome.version)
            written.append(Written(outcome.version, outcome.action, outcome.topic, outcome.left_topic))
        return written

    def get(self, table: str, key: str) -> DbObject:
        checks.check_object(table, key)
        rows = self._query(self._statements.get, table, key)
        if not rows:
            raise not_found(table, key, None)
        topic, value, version, is_deleted = rows[0]
        if is_deleted:
            raise not_found(table, key, version)
        return DbObject(table, key, topic, checks.decode_value(value), version)

    def snapshot(
        self,
        tables: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        *,
        buckets: Collection[int] | None = None,
    ) -> Snapshot:
        return PostgresSnapshot(self._pool, self._settings, checks.TopicSelection(tables, topics, buckets))

    def digests(
        self, tables: Sequence[str] | None = None, topics: Sequence[str] | None = None, *, by_bucket: bool = False
    ) -> StoredDigests:
        selection = checks.TopicSelection(tables, topics)
        if not selection.has_plain_topics:
            return super().digests(tables, topics, by_bucket=by_bucket)
        statement, parameters = digests_query(self._settings.schema, selection, by_bucket=by_bucket)
        rows = self._query(statement, *parameters)
        parts = {(row[1], row[2]): TableDigest(row[3], int(row[4])) for row in rows if row[1] is not None}
        return StoredDigests(rows[0][0], parts)

    def allocate(self, name: str) -> int:
        checks.check_name(name, "counter")
        return int(self._query(self._statements.allocate, name)[0][0])

    # -- changes

    def revision(self) -> int:
        return int(self._query(self._statements.revision)[0][0])

    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        checks.check_revision(after_revision)
        checks.check_limit(limit)
        rows = self._query(self._statements.changes, after_revision, after_revision, limit)
        compacted, newest, is_known = rows[0][:3]
        checks.check_in_feed(after_revision, compacted=compacted, newest=newest, is_known=is_known)
        return [_change_from(row[3:]) for row in rows if row[3] is not None]

    def changes_of(self, revisions: Sequence[int]) -> list[Change]:
        checks.check_revisions(revisions)
        return [_change_from(row) for row in self._query(self._statements.changes_of, list(revisions))]

    def check_history(self, revisions: Sequence[int]) -> HistoryCheck:
        checks.check_revisions(revisions)
        compacted, newest, known = self._query(self._statements.check_history, list(revisions))[0]
        return judge(revisions, frozenset(known), compacted=compacted, newest=newest)

    def wait(self, after_revision: int, *, timeout_s: float) -> bool:
        checks.check_revision(after_revision)
        checks.check_not_negative(timeout_s, "timeout_s")
        deadline = time.monotonic() + timeout_s
        self._pool.check_open()
        try:
            return self._is_newer(self.revision(), after_revision) or self._listen(after_revision, deadline)
        except Closed:
            return False

    def compact(self, *, keep_changes: int, keep_tombstones_s: float) -> int:
        checks.check_revision(keep_changes, "number of changes to keep")
        checks.check_not_negative(keep_tombstones_s, "keep_tombstones_s")
        self._drop(self._statements.drop_tombstones, min(float(keep_tombstones_s), _AGE_S_MAX))
        cut = self._query(self._statements.cut, keep_changes)
        return self._drop(self._statements.drop_changes, cut[0][0]) if cut else 0

    # -- outbox

    def unpublished(self, *, older_than_s: float = 0.0, after_revision: int = 0, limit: int = 1000) -> list[Change]:
        checks.check_not_negative(older_than_s, "older_than_s")
        checks.check_limit(limit)
        now = time.monotonic()
        age_s = min(float(older_than_s), _AGE_S_MAX)
        old = self._age.old_up_to(age_s, now)
        rows = self._query(self._statements.unpublished, after_revision, age_s, old, limit)
        self._age.looked(age_s, now, rows[0][0])
        return [_change_from(row[1:]) for row in rows if row[1] is not None]

    def mark_published(self, revisions: Sequence[int]) -> None:
        checks.check_revisions(revisions)
        if revisions:
            self._query(self._statements.mark_published, list(revisions))

    # -- reports

    def tell_report(self, name: str, data: bytes) -> ToldReport:
        checks.check_report(name, data)
        with self._pool.connection() as connection:
            try:
                [(before, count)] = _rows(connection, self._statements.tell_report, name, name, data)
            except psycopg.errors.UndefinedTable:  # tables of an earlier release
                schema.install_reports(connection, self._settings)
                [(before, count)] = _rows(connection, self._statements.tell_report, name, name, data)
        return ToldReport(before, count)

    def reports(self) -> dict[str, bytes]:
        with self._pool.connection() as connection, contextlib.suppress(psycopg.errors.UndefinedTable):
            return dict(_rows(connection, self._statements.reports))
        return {}

    def forget_reports(self, names: Sequence[str]) -> None:
        with self._pool.connection() as connection, contextlib.suppress(psycopg.errors.UndefinedTable):
            _rows(connection, self._statements.forget_reports, list(names))

    # -- inside

    def _execute(self, transfers: Sequence[Transfer]) -> list[list[WriteOutcome]]:
        """A database that was put back from before an upgrade, under our feet, gets its functions again."""
        try:
            return self._execute_once(transfers)
        except FunctionsMissing:
            if not self.exists():
                raise
            self.initialize()
        return self._execute_once(transfers)

    def _execute_once(self, transfers: Sequence[Transfer]) -> list[list[WriteOutcome]]:
        """One statement, so one transaction and one round trip."""
        rows = [(number, *write) for number, transfer in enumerate(transfers) for write in transfer]
        if len(rows) == 1:
            return [[self._execute_one(transfers[0][0])]]
        answers = self._query(self._statements.write_all, *map(list, zip(*rows, strict=True)))
        outcomes = iter([WriteOutcome(*row) for row in answers])
        return [list(itertools.islice(outcomes, len(transfer))) for transfer in transfers]

    def _execute_one(self, write: CheckedWrite) -> WriteOutcome:
        topic, expected = write.topic, write.expected_version
        parameters = (
            write.action.encode(),
            write.table.encode(),
            write.key.encode(),
            None if topic is None else topic.encode(),
            write.value,
            None if expected is None else b"%d" % expected,
            b"t" if write.with_outbox else b"f",
            b"t" if write.if_changed else b"f",
        )
        [answer] = self._pool.call(self._statements.write, parameters)
        return outcome_of(*answer)

    @staticmethod
    def _is_newer(newest: int, after_revision: int) -> bool:
        if newest < after_revision:
            checks.check_in_feed(after_revision, compacted=0, newest=newest)
        return newest > after_revision

    def _query(self, statement: str, *parameters: Any) -> list[Row]:
        with self._pool.connection() as connection:
            return _rows(connection, statement, *parameters)

    def _drop(self, statement: str, bound: float) -> int:
        total = 0
        while True:
            rows = self._query(statement, bound, _COMPACT_PORTION)
            dropped = int(rows[0][0]) if rows else 0
            total += dropped
            if dropped < _COMPACT_PORTION:
                return total

    def _listen(self, after_revision: int, deadline: float) -> bool:
        """The revision is read after LISTEN has taken effect, so no commit falls between the two."""
        with self._listening() as (connection, look_interval_s):
            while True:
                connection.was_notified = False
                if self._is_newer(_rows(connection, self._statements.revision)[0][0], after_revision):
                    return True
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                connection.await_notification(min(remaining_s, look_interval_s))

    @contextlib.contextmanager
    def _listening(self) -> Iterator[tuple[PostgresConnection, float]]:
        """A connection, and how soon to look although nothing was notified."""
        with self._pool.connection() as connection:
            try:
                connection.listen(self._settings.channel)
            except psycopg.errors.ReadOnlySqlTransaction:  # a standby does not notify
                yield connection, _STANDBY_LOOK_S
                return
            yield connection, math.inf
            connection.unlisten()  # not after an error: then the connection is given up


class _Statements:
    """The SQL, with the schema's name in place.  The name has been checked; everything else is a parameter."""

    def __init__(self, schema: str) -> None:
        columns = "revision, action, tbl, key, topic, left_topic, value"
        self.write = prepared(
            f"SELECT * FROM {schema}.write($1, $2, $3, $4, $5, $6, $7, $8, false)", (0, 0, 0, 0, 1, 0, 0, 0)
        )
        self.write_all = f"""SELECT * FROM {schema}.write_all(%s::integer[], %s::text[], %s::text[], %s::text[],
            %s::text[], %s::bytea[], %s::bigint[], %s::boolean[], %s::boolean[])"""
        self.get = f"""SELECT topic, value, version, deleted_at IS NOT NULL FROM {schema}.objects
            WHERE tbl = %s AND key = %s"""
        self.allocate = f"""INSERT INTO {schema}.counters AS c VALUES (%s, 1)
            ON CONFLICT (name) DO UPDATE SET value = c.value + 1 RETURNING value"""
        newest = f"greatest(compacted, (SELECT max(revision) FROM {schema}.changes))"
        self.revision = f"SELECT {newest} FROM {schema}.state"
        # One row even when there is no change: what is compacted and what is left must be seen at the same moment.
        is_known = f"EXISTS (SELECT FROM {schema}.changes WHERE revision = %s)"
        self.changes = f"""SELECT s.compacted, {newest}, {is_known}, c.* FROM {schema}.state s LEFT JOIN (
                SELECT {columns} FROM {schema}.changes WHERE revision > %s ORDER BY revision LIMIT %s
            ) c ON true ORDER BY c.revision"""
        self.changes_of = f"""SELECT {columns} FROM {schema}.changes WHERE revision = ANY(%s::bigint[])
            ORDER BY revision"""
        self.check_history = f"""SELECT compacted, {newest},
            ARRAY(SELECT revision FROM {schema}.changes WHERE revision = ANY(%s::bigint[])) FROM {schema}.state"""
        # One row even when nothing is old: the newest of those that wait.
        self.unpublished = f"""SELECT n.newest, c.*
            FROM (SELECT coalesce(max(revision), 0) AS newest FROM {schema}.outbox) n LEFT JOIN (
                SELECT {columns} FROM {schema}.outbox JOIN {schema}.changes USING (revision)
                WHERE revision > %s
                    AND (committed_at <= clock_timestamp() - make_interval(secs => %s) OR revision <= %s)
                ORDER BY revision LIMIT %s
            ) c ON true ORDER BY c.revision"""
        # Locked in one order, so that processes that confirm the same changes cannot block each other for good.  The
        # commit does not wait for the disk: what a crash takes back is published again.
        self.mark_published = f"""WITH lazily AS MATERIALIZED (
                SELECT set_config('synchronous_commit', 'off', true) AS level
            ), marked AS MATERIALIZED (
                SELECT revision FROM {schema}.outbox WHERE revision = ANY(%s) ORDER BY revision FOR UPDATE
            ) DELETE FROM {schema}.outbox o USING marked, lazily
            WHERE o.revision = marked.revision AND lazily.level = 'off'"""
        self.cut = f"SELECT revision FROM {schema}.changes ORDER BY revision DESC OFFSET %s LIMIT 1"
        # Oldest first, so that what is compacted is a true statement after every portion.
        self.drop_changes = f"""WITH doomed AS (
                SELECT c.revision FROM {schema}.changes c
                WHERE c.revision <= %s AND NOT EXISTS (SELECT FROM {schema}.outbox o WHERE o.revision = c.revision)
                ORDER BY c.revision LIMIT %s
            ), gone AS (
                DELETE FROM {schema}.changes c USING doomed WHERE c.revision = doomed.revision RETURNING c.revision
            ), counted AS (SELECT count(*) AS number, max(revision) AS newest FROM gone)
            UPDATE {schema}.state s SET compacted = greatest(s.compacted, counted.newest)
            FROM counted WHERE counted.number > 0 RETURNING counted.number"""
        self.drop_tombstones = f"""WITH doomed AS (
                SELECT tbl, key FROM {schema}.objects
                WHERE deleted_at <= clock_timestamp() - make_interval(secs => %s) ORDER BY deleted_at LIMIT %s
            ), gone AS (
                DELETE FROM {schema}.objects o USING doomed
                WHERE o.tbl = doomed.tbl AND o.key = doomed.key AND o.deleted_at IS NOT NULL RETURNING 1
            ) SELECT count(*) FROM gone"""
        self.tell_report = f"""WITH before AS MATERIALIZED (SELECT data FROM {schema}.reports WHERE name = %s)
            INSERT INTO {schema}.reports VALUES (%s, %s)
            ON CONFLICT (name) DO UPDATE SET data = excluded.data
            RETURNING (SELECT data FROM before), (SELECT count(*) FROM {schema}.reports)"""
        self.reports = f"SELECT name, data FROM {schema}.reports"
        self.forget_reports = f"DELETE FROM {schema}.reports WHERE name = ANY(%s::text[])"


def _rows(connection: PostgresConnection, statement: str, *parameters: Any) -> list[Row]:
    cursor = connection.execute(statement, parameters, binary=True)
    return cursor.fetchall() if cursor.description else []


def _change_from(row: Row) -> Change:
    revision, action, table, key, topic, left_topic, value = row
    decoded = None if value is None else checks.decode_value(value)
    return Change(revision, action, table, key, topic, decoded, left_topic)
