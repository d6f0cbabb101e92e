"""One SQLite file, for many threads and processes: which runs when, what is tried again, and what errors become.

Connections, and what happens to them at a fork, are those of the database driver: SQLite's locks belong to the process
and not to whom they serve.  So is the group commit.
"""

from __future__ import annotations

import pathlib
import sqlite3
import threading
from typing import TypeVar

from durable_log.errors import LogCorrupt, LogUnavailable
from durable_log.storage.segmented import replaced
from heliograph_drivers.log.sqlite.schema import is_ours, read_log
from heliograph_drivers.sqlite_common.files import make_file
from heliograph_drivers.sqlite_common.patience import run_patiently
from heliograph_drivers.sqlite_common.pool import SqlitePool
from heliograph_drivers.sqlite_common.writer import GroupCommit, Operation
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import Closed
from pubsub_api.runtime import forking

T = TypeVar("T")


def _to_text(data: bytes) -> str:
    return data.decode(errors="replace")


class SqliteLogFile:
    """``operation_timeout_s`` bounds every call, the time that others hold the lock included."""

    def __init__(self, path: pathlib.Path, pragmas: str, *, operation_timeout_s: float) -> None:
        self.path = path
        self._timeout_s = operation_timeout_s
        self.identity = ""
        """Of the log that was opened; another one that is found in its place is refused."""
        self._pool = SqlitePool(path, pragmas, self._prepare)
        self._writer = GroupCommit(self._run, self._pool.check_file, operation_timeout_s)
        self._is_closed = False
        self._news = threading.Condition()
        self._commits = 0
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._news = threading.Condition()

    def make_file(self) -> None:
        try:
            make_file(self.path)
        except DbUnavailable as error:
            raise LogUnavailable(str(error)) from error

    def close(self) -> None:
        self._is_closed = True
        self._pool.close()
        with self._news:
            self._news.notify_all()

    def read(self, work: Operation[T]) -> T:
        """Call ``work`` with a connection, in one transaction: all it reads is of the same moment."""

        def transaction(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                if connection.in_transaction:  # SQLite has ended it already after some errors
                    connection.execute("ROLLBACK")

        return self.run(transaction)

    def run(self, work: Operation[T]) -> T:
        """Call ``work`` with a connection that has no transaction."""
        try:
            return self._run(work)
        except DbError as error:
            raise self._translate(error) from error

    def write(self, work: Operation[T]) -> T:
        """Call ``work`` in a transaction that it may share with others; it is on disk when this returns."""
        try:
            result = self._writer.write(work)
        except DbError as error:
            raise self._translate(error) from error
        with self._news:
            self._commits += 1
            self._news.notify_all()
        return result

    @property
    def commits(self) -> int:
        """How often this process has committed.  For `pause`."""
        return self._commits

    def pause(self, commits: int, timeout_s: float) -> None:
        """Block until this process has committed again since ``commits``, the store is closed, or the time is over."""
        with self._news:
            if not self._is_closed and self._commits == commits:
                self._news.wait(timeout_s)

    def check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the log {self.path} is closed")

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Called for each new connection; one that is open leads where it always did.  Raises LogReplaced."""
        # A flipped bit may make a text of anything.  Then its checksum differs, which tells more than sqlite3 would.
        connection.text_factory = _to_text
        if self.identity:
            found = read_log(connection).lineage.identity if is_ours(connection) else ""
            if found != self.identity:
                raise replaced(str(self.path), self.identity, found)

    def _run(self, work: Operation[T]) -> T:
        """Raises DbError, because the group commit that calls this knows no other."""
        what = f"the log {self.path}"
        return run_patiently(self._pool, work, what=what, timeout_s=self._timeout_s, check_open=self.check_open)

    def _translate(self, error: DbError) -> LogUnavailable | LogCorrupt:
        if isinstance(error, DbUnavailable):
            return LogUnavailable(str(error))
        return LogCorrupt(str(error))
