"""Group commit: threads that write at the same time share one transaction, and so one sync of the disk.

The thread that has the turn runs all operations that wait, commits once, and gives each caller its own result or error.
An operation checks before it writes, so one that is refused has changed nothing and does not disturb the others.

What need not survive a power failure does not wait for the disk, unless it shares a transaction with what must.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from nb_api.errors import DbUnavailable
from pubsub_api.errors import HeliographError
from pubsub_api.runtime import forking

BATCH_MAX = 500

T = TypeVar("T")

Operation = Callable[[sqlite3.Connection], T]


class _Job:
    __slots__ = ("error", "is_done", "is_durable", "operation", "result")

    def __init__(self, operation: Operation[Any], is_durable: bool) -> None:
        self.operation = operation
        self.is_durable = is_durable
        self.result: Any = None
        self.error: HeliographError | None = None
        self.is_done = False


class GroupCommit:
    """``run`` calls a function with a connection, again and again while another process has the lock.  ``check_file``
    raises sqlite3.Error when that connection does not lead to the file of the path any more."""

    def __init__(self, run: Callable[[Operation[None]], None], check_file: Operation[None], timeout_s: float) -> None:
        self._run = run
        self._check_file = check_file
        self._timeout_s = timeout_s
        self._start()
        forking.register(self)

    def _start(self) -> None:
        self._turn = threading.RLock()  # taken once: it knows whose it is, also after an interrupt of `acquire`
        self._waiting: deque[_Job] = deque()

    def after_fork_in_child(self) -> None:
        self._start()  # what waits is the business of the parent's threads

    def write(self, operation: Operation[T], *, is_durable: bool = True) -> T:
        """The result of the operation, when it is committed.  Raises what it raises, and DbUnavailable.

        Without ``is_durable`` it is not synced to the disk before something else is: a power failure may take it back.
        """
        job = _Job(operation, is_durable)
        self._waiting.append(job)
        try:
            self._commit_in_turn(job)
        finally:
            job.is_done = True  # for the thread that has the turn: a job whose caller has given up is passed over
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def _commit_in_turn(self, job: _Job) -> None:
        try:
            if not self._turn.acquire(timeout=self._timeout_s):
                raise DbUnavailable(f"the database was busy with other writers for {self._timeout_s} s")
            while not job.is_done:
                self._commit_waiting()
        finally:
            if self._turn._is_owned():  # type: ignore[attr-defined]
                self._turn.release()

    def _commit_waiting(self) -> None:
        batch: list[_Job] = []
        try:
            self._run(lambda connection: self._transaction(connection, batch))
        except BaseException as error:
            for job in batch:
                job.error = DbUnavailable(f"the transaction of several writers failed: {error}")
                job.error.__cause__ = error
            if not batch or not isinstance(error, HeliographError):
                raise
        finally:
            for job in batch:
                job.is_done = True

    def _transaction(self, connection: sqlite3.Connection, batch: list[_Job]) -> None:
        # Others only append, so that what is there can be looked at.
        is_durable = any(self._waiting[position].is_durable for position in range(len(self._waiting)))
        if is_durable:
            self._run_all(connection, batch, is_durable)
            return
        [level] = connection.execute("PRAGMA synchronous").fetchone()
        connection.execute("PRAGMA synchronous = normal")
        try:
            self._run_all(connection, batch, is_durable)
        finally:
            if not connection.in_transaction:  # else the pool closes it
                connection.execute(f"PRAGMA synchronous = {level}")

    def _run_all(self, connection: sqlite3.Connection, batch: list[_Job], is_durable: bool) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            while self._waiting and len(batch) < BATCH_MAX and (is_durable or not self._waiting[0].is_durable):
                job = self._waiting.popleft()
                if job.is_done:
                    continue
                batch.append(job)
                try:
                    job.result = job.operation(connection)
                except HeliographError as error:
                    job.error = error
            if len(batch) > 1:
                self._check_file(connection)  # others may have come since `run` has looked
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # Not to be tried again: the operations are taken, and their callers are told.
            raise DbUnavailable(f"SQLite could not commit: {error}") from error
