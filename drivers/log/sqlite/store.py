"""One SQLite file, for many threads and processes: who runs when, what is tried again, and what errors become.

Connections, and what happens to them at a fork, are those of the database driver: SQLite's locks belong to the process
and not to whom they serve.  So is the group commit.
"""

from __future__ import annotations

import pathlib
import random
import sqlite3
import threading
import time
from typing import TypeVar

from drivers.db.sqlite.pool import Pool
from drivers.db.sqlite.schema import make_file
from drivers.db.sqlite.writer import Operation, Writer
from durable_log.errors import LogCorrupt, LogUnavailable
from nb_api.errors import DbError, DbUnavailable
from pubsub_api import forking
from pubsub_api.errors import Closed

_LOCK_PAUSE_MIN_S = 0.0005
_LOCK_PAUSE_MAX_S = 0.002

T = TypeVar("T")


class Store:
    """``operation_timeout_s`` bounds every call, the time that others hold the lock included."""

    def __init__(self, path: pathlib.Path, pragmas: str, *, operation_timeout_s: float) -> None:
        self.path = path
        self._timeout_s = operation_timeout_s
        self._pool = Pool(path, pragmas)
        self._writer = Writer(self._run, operation_timeout_s)
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

    def _run(self, work: Operation[T]) -> T:
        """Call ``work``; again, for a bounded time, while another process has the lock it needs.

        Raises DbError, because the group commit that calls this knows no other.
        """
        deadline = time.monotonic() + self._timeout_s
        pause_s = _LOCK_PAUSE_MIN_S
        while True:
            self.check_open()
            try:
                return self._pool.run(work)
            except sqlite3.OperationalError as error:
                # "database is locked", and "locking protocol" when many open the file at the same moment.
                if "lock" not in str(error):
                    raise DbUnavailable(f"the log {self.path} cannot be used: {error}") from error
                if time.monotonic() > deadline:
                    raise DbUnavailable(f"the log {self.path} was locked for {self._timeout_s} s") from error
            except sqlite3.Error as error:
                raise DbError(f"the log {self.path} is damaged or refuses: {error}") from error
            time.sleep(random.uniform(0.5, 1.0) * pause_s)  # by chance, so that processes do not stay in step
            pause_s = min(2 * pause_s, _LOCK_PAUSE_MAX_S)

    def _translate(self, error: DbError) -> LogUnavailable | LogCorrupt:
        if isinstance(error, DbUnavailable):
            return LogUnavailable(str(error))
        return LogCorrupt(str(error))
