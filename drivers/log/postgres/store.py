"""Transactions on the tables of one log, and what errors become.

A transaction that changes a shard locks its row first, several in the order of their numbers, and keeps it until the
commit can be seen.  So offsets are handed out one append after the other, readers never see a later one before an
earlier one, and none is skipped when a transaction is rolled back.  Shards do not wait for each other.

The identity of the log is read after the lock, or in the snapshot that everything else is read from: what is in its
place by then is neither read nor written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import psycopg

from durable_log.errors import LogCorrupt, LogError, LogUnavailable
from durable_log.storage.row_log import LogHeader
from durable_log.storage.segmented import replaced
from heliograph_drivers.log.postgres import schema
from heliograph_drivers.postgres_common.pool import PostgresConnection, PostgresPool, Row
from heliograph_drivers.postgres_common.settings import PostgresSettings
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import HeliographError, InvalidConfig

T = TypeVar("T")

NOW_NS = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"
"""The time by the server's clock."""

_LOCK = """SELECT shard, start, sealed, "end", bytes, appended_ns FROM @shards WHERE shard = ANY(%s::integer[])
    ORDER BY shard FOR UPDATE"""
_IDENTITY = f"SELECT identity, {NOW_NS}, shards FROM @log"
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# No table, or no schema, of the name.
_GONE = {"42P01", "3F000"}
# A page, a row or an index that the server cannot make sense of.
_DAMAGED = {"XX001", "XX002"}


class Statement(NamedTuple):
    source: str
    """``@`` stands for the schema."""
    parameters: Sequence[Any] | Mapping[str, Any] = ()


class ShardRow(NamedTuple):
    """Where a shard stands, as long as this transaction has its lock."""

    shard: int
    start: int
    sealed: int
    end: int
    bytes: int
    appended_ns: int


class LogWrite:
    """A transaction that has its locks."""

    def __init__(
        self,
        execute: Callable[[Statement], list[Row]],
        shards: Sequence[ShardRow],
        now_ns: int,
        shard_count: int,
        answers: list[list[Row]],
    ) -> None:
        self.execute = execute
        """Run a statement now; the rows that it answers with."""
        self.shards = {one.shard: one for one in shards}
        self.now_ns = now_ns
        self.shard_count = shard_count
        """How many shards the log has.  Stays so while the lock of any of them is held."""
        self.answers = answers
        """Of the statements that were handed to `PostgresLogStore.write`."""
        self.queued: list[tuple[str, Sequence[Sequence[Any]]]] = []

    def queue(self, source: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row, in the round trip of the commit."""
        if rows:
            self.queued.append((source, rows))


class PostgresLogStore:
    """For any thread.  A forked child gets connections of its own."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._pool = PostgresPool(settings)
        self.check_open = self._pool.check_open
        self.close = self._pool.close
        self.address = settings.address
        self.channel = f"heliograph_log_{settings.schema}"
        self.identity = ""
        """Of the log that was opened; another one that is found in its place is refused."""

    def exists(self) -> bool:
        with self._connection() as connection:
            return schema.is_installed(connection, self._settings)

    def install(self, new_shards: Callable[[], int]) -> LogHeader:
        """Raises InvalidConfig, LogUnavailable, LogError, Closed."""
        self.identity = ""
        with self._connection() as connection:
            found = schema.install(connection, self._settings, new_shards)
        self.identity = found.lineage.identity
        return found

    def read(self, *statements: Statement) -> list[list[Row]]:
        """Rows of each statement, all of the same moment, in one round trip."""
        with self._connection() as connection:
            with connection.pipeline():
                connection.execute(_SNAPSHOT)
                identity = self._send(connection, Statement(_IDENTITY))
                cursors = [self._send(connection, one) for one in statements]
                connection.execute("COMMIT")
            self._check_identity(identity.fetchone())
            return [cursor.fetchall() for cursor in cursors]

    def look(self, work: Callable[[Callable[[Statement], list[Row]]], T]) -> T:
        """Call ``work`` with what runs a statement; all that it reads is of the same moment."""
        with self._connection() as connection:
            with connection.pipeline():
                connection.execute(_SNAPSHOT)
                identity = self._send(connection, Statement(_IDENTITY))
            with _ended(connection):
                self._check_identity(identity.fetchone())
                return work(lambda one: self._send(connection, one).fetchall())

    def write(
        self, shards: Sequence[int], work: Callable[[LogWrite], T], *reads: Statement, has_news: bool = False
    ) -> T:
        """Call ``work`` in a transaction that has locked these shards, or all else of the log when there are none.

        ``reads`` are run when it has the lock, in the same round trip.  Committed when this returns, as durably as the
        server is set up to be; waiting processes are told when it has news.  Raises what ``work`` raises.
        """
        is_whole_log = not shards
        with self._connection() as connection:
            with connection.pipeline():
                connection.execute("BEGIN")
                locked = self._send(connection, Statement(_LOCK, (list(shards),)))
                log = self._send(connection, Statement(f"{_IDENTITY} FOR UPDATE" if is_whole_log else _IDENTITY))
                cursors = [self._send(connection, one) for one in reads]
            try:
                _, now_ns, shard_count = self._check_identity(log.fetchone())
                transaction = LogWrite(
                    lambda one: _rows(self._send(connection, one)),
                    [ShardRow(*row) for row in locked.fetchall()],
                    now_ns,
                    shard_count,
                    [cursor.fetchall() for cursor in cursors],
                )
                result = work(transaction)
            except HeliographError:
                connection.execute("ROLLBACK")
                raise
            self._commit(connection, transaction, has_news=has_news)
            return result

    @contextlib.contextmanager
    def listening(self) -> Iterator[PostgresConnection]:
        """A connection that is told of news.  For `PostgresConnection.await_notification` and `ask`."""
        with self._connection() as connection:
            connection.listen(self.channel)
            yield connection
            connection.unlisten()  # not after an error: then the connection is given up

    def ask(self, connection: PostgresConnection, statement: Statement) -> list[Row]:
        """Run one statement whose first column is the identity of the log; the other columns."""
        rows = self._send(connection, statement).fetchall()
        self._check_identity(rows[0] if rows else None)
        return [row[1:] for row in rows]

    def _commit(self, connection: PostgresConnection, transaction: LogWrite, *, has_news: bool) -> None:
        """News is told in a transaction of its own, sent together with the commit: those that tell some commit one at a
        time, and would wait for each other's disk.  It is a hint; a waiting process looks now and then in any case."""
        warnings: list[str] = []

        def note(diagnostic: psycopg.errors.Diagnostic) -> None:
            if diagnostic.severity_nonlocalized == "WARNING":
                warnings.append(f"{diagnostic.message_primary} {diagnostic.message_detail or ''}")

        connection.add_notice_handler(note)
        try:
            with connection.pipeline():
                for source, rows in transaction.queued:
                    connection.cursor().executemany(self._sql(source), rows)
                connection.execute("COMMIT")
                if has_news:
                    connection.execute(f"NOTIFY {self.channel}")
        finally:
            connection.remove_notice_handler(note)
        if warnings:
            # PostgreSQL says "committed" also when the wait for its synchronous standby was ended by hand.
            raise LogUnavailable(
                f"the log at {self.address} has committed, but perhaps not on its standby: {'; '.join(warnings)}"
            )

    def _sql(self, source: str) -> str:
        return source.replace("@", f"{self._settings.schema}.")

    def _send(self, connection: PostgresConnection, statement: Statement) -> psycopg.Cursor[Row]:
        return connection.execute(self._sql(statement.source), statement.parameters, binary=True)

    def _check_identity(self, row: Row | None) -> Row:
        found = row[0] if row else ""
        if row is None or found != self.identity:
            raise replaced(self.address, self.identity, found)
        return row

    @contextlib.contextmanager
    def _connection(self) -> Iterator[PostgresConnection]:
        """Borrow a connection.  Raises LogUnavailable, LogCorrupt, LogReplaced, LogError, InvalidConfig and Closed for
        what PostgreSQL says."""
        try:
            with self._pool.connection() as connection:
                yield connection
        except InvalidConfig as error:
            if _state_of(error) in _GONE and self.identity:
                raise replaced(self.address, self.identity, "") from error
            raise
        except DbError as error:
            raise self._translate(error) from error

    def _translate(self, error: DbError) -> LogError:
        if isinstance(error, DbUnavailable):
            return LogUnavailable(f"the log cannot be reached: {error}")
        return LogCorrupt(str(error)) if _state_of(error) in _DAMAGED else LogError(str(error))


@contextlib.contextmanager
def _ended(connection: PostgresConnection) -> Iterator[None]:
    """End the transaction that only reads, so that the connection can be used again; also after our own errors."""
    try:
        yield
    except HeliographError:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _state_of(error: HeliographError) -> str | None:
    """What the server calls an error that was translated."""
    return error.__cause__.sqlstate if isinstance(error.__cause__, psycopg.Error) else None


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description else []
