"""Connections to one SQLite file, for many threads, and across ``fork()``.

SQLite keeps one table of locks per file and process.  A forked child inherits that table but not the locks, so a
connection that it opens to the same file may believe it holds locks that only its parent has; the parent may then
remove the write-ahead log under it.  Setting inherited connections aside, as for a socket, is therefore not enough:
there must be none.  Before a fork this module waits until no thread is inside SQLite, has every snapshot read to its
end, and closes every connection; afterwards both processes open new ones when they need them.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
import threading
import urllib.parse
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from pubsub_api.runtime import files, forking

T = TypeVar("T")
_File = tuple[int, int, int]
"""Device and inode, and the inode of the write-ahead log, 0 when there is none."""


class _LogRemoved(sqlite3.OperationalError):
    """The write-ahead log that connections of this process have open is not the one that others find."""


class BeforeFork(Protocol):
    def before_fork(self) -> None:
        """Let go of every connection.  No thread is inside SQLite."""


class _Gate:
    """The threads inside SQLite; a fork waits until there is none and keeps all out meanwhile."""

    def __init__(self) -> None:
        self._members: weakref.WeakSet[BeforeFork] = weakref.WeakSet()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._forks = 0

    def __enter__(self) -> None:
        with self._lock:
            while self._forks:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._forks and not self._inside:
                self._changed.notify_all()

    def add(self, member: BeforeFork) -> None:
        with self._lock:
            self._members.add(member)

    def members(self) -> list[BeforeFork]:
        # Under the lock: a set that grows cannot be gone through.
        with self._lock:
            return list(self._members)

    def close_all(self) -> None:
        """Close every connection of this process, as before a fork.  Call it from outside."""
        self.before_fork()
        self.after_fork_in_parent()

    def before_fork(self) -> None:
        self._lock.acquire()
        self._forks += 1
        while self._inside:
            self._changed.wait()
        for member in list(self._members):
            member.before_fork()

    def after_fork_in_parent(self) -> None:
        self._forks -= 1
        self._changed.notify_all()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._reset()  # a thread that waited or was counted has stayed in the parent


GATE = _Gate()
"""Held around every call of SQLite, never while waiting for another process or for the user's code."""

os.register_at_fork(
    before=GATE.before_fork,
    after_in_parent=GATE.after_fork_in_parent,
    after_in_child=GATE.after_fork_in_child,
)


class SqlitePool:
    """As many connections as threads use at once.  Any thread may use any of them, one at a time."""

    def __init__(
        self, path: pathlib.Path, pragmas: str, on_open: Callable[[sqlite3.Connection], None] = lambda _: None
    ) -> None:
        """``on_open`` is called with each new connection, and may refuse what it leads to."""
        self._path = str(path)  # looked at for every use, and a Path takes its time to become one
        self._log_path = f"{path}-wal"
        self._uri = f"file:{urllib.parse.quote(str(path))}?mode=rw"  # rw: a file that vanished is not made anew, empty
        self._pragmas = pragmas
        self._on_open = on_open
        self._idle: list[sqlite3.Connection] = []
        self._known: dict[sqlite3.Connection, _File] = {}
        self._is_closed = False
        GATE.add(self)
        forking.register(self)

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``work`` with a connection that has no transaction.  Raises sqlite3.Error, and what ``work`` raises.

        A file that was deleted or replaced lives on for connections that have it open, and no other sees what is
        written there.  So the connection leads to the file that the path led to when this call had begun.  A process
        that replaces it later comes after ``work``, as if that had been done a moment sooner: once is enough, and it
        takes its time.

        The same holds for the write-ahead log, which SQLite does not remove while it is open.  What it knows of one is
        shared by the connections of a process: all are closed before a new one is opened.
        """
        try:
            return self._run(work)
        except _LogRemoved:
            GATE.close_all()
            return self._run(work)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with GATE:
            connection = self._take(self._find())
            try:
                return work(connection)
            finally:
                # Closing ends a transaction that an error has left open; no other connection will see it.
                if connection.in_transaction:
                    self._discard(connection)
                else:
                    self._give_back(connection)

    def check_file(self, connection: sqlite3.Connection) -> None:
        """Raises sqlite3.Error unless a connection of `run` leads to the file that the path leads to now."""
        if self._known.get(connection) != self._find():
            raise sqlite3.OperationalError("the file was replaced while it was used")

    def open(self) -> sqlite3.Connection:
        """A connection that the caller owns and closes, both inside of `GATE`.  Raises sqlite3.Error."""
        # SQLite's own waiting for locks would keep a fork waiting as well; callers that meet a lock try again later.
        connection = sqlite3.connect(
            self._uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            connection.executescript(self._pragmas)
            connection.execute("PRAGMA schema_version").fetchone()  # opens the write-ahead log
            self._on_open(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back."""
        with GATE:
            self._is_closed = True
            self.before_fork()

    def before_fork(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):  # a thread that gives its own back to a closed pool helps us here
                self._discard(self._idle.pop())

    def after_fork_in_child(self) -> None:
        # Empty, unless the process was forked by C code that did not call the hooks before.
        forking.set_aside(list(self._known))
        self._idle, self._known = [], {}

    def _find(self) -> _File:
        """The file that the path leads to now."""
        try:
            file = files.identity_of(self._path)
        except OSError as error:
            raise sqlite3.OperationalError(f"the file is gone: {error.strerror}") from error
        try:
            return (*file, os.stat(self._log_path).st_ino)
        except OSError:
            return (*file, 0)

    def _take(self, file: _File) -> sqlite3.Connection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if self._known.get(connection) == file:
                return connection
            self._discard(connection)
        return self._open_known(file)

    def _open_known(self, file: _File) -> sqlite3.Connection:
        for member in GATE.members():
            if isinstance(member, SqlitePool):
                member._check_log(file[:2], self._find)
        connection = self.open()
        try:
            found = self._find()
            if found[:2] != file[:2]:
                raise sqlite3.OperationalError("the file was replaced while it was opened")
        except BaseException:
            connection.close()
            raise
        self._known[connection] = found
        return connection

    def _check_log(self, place: tuple[int, int], find: Callable[[], _File]) -> None:
        """Raises _LogRemoved when a connection has another write-ahead log open for the file than is there now.

        Other threads open connections, which makes a log, and close them, which may remove it.  So it is looked for
        after the connection was found, and the connection must still be open then.
        """
        for connection, (*opened, log) in list(self._known.items()):
            if log and tuple(opened) == place and find()[2] != log and connection in self._known:
                raise _LogRemoved("the write-ahead log was removed while it was used")

    def _give_back(self, connection: sqlite3.Connection) -> None:
        self._idle.append(connection)
        if self._is_closed:
            self.before_fork()

    def _discard(self, connection: sqlite3.Connection) -> None:
        self._known.pop(connection, None)
        connection.close()
