"""Connections to a database: kept, lent to one thread at a time, given up when they break, and forgotten after a fork.

What a connection is, how it is opened and how its errors are called is the business of each driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from nb_api.errors import DbUnavailable
from pubsub_api import forking
from pubsub_api.errors import Closed


class Handle(Protocol):
    """A connection."""

    def is_usable(self) -> bool:
        """Whether an idle one still stands, as far as one can tell without asking the server."""

    def cut(self) -> None:
        """End it under the feet of whatever thread uses it, which gets an error at once.  Does not raise."""

    def close(self) -> None:
        """Close it.  Called by who has it to himself."""


H = TypeVar("H", bound=Handle)


class Handles(Generic[H]):
    """The connections of one process.  Every method may be called from any thread.

    ``open_handle`` connects; it is called outside of all locks and may raise what it likes.
    """

    def __init__(self, open_handle: Callable[[], H], *, limit: int, idle_max: int, timeout_s: float) -> None:
        self._open_handle = open_handle
        self._limit = limit
        self._idle_max = idle_max
        self._timeout_s = timeout_s
        self.is_closed = False
        self._freed = threading.Condition()
        self._idle: list[H] = []
        self._busy: set[H] = set()
        self._opening = 0
        forking.register(self)

    def check_open(self) -> None:
        """Raises Closed after `close`."""
        if self.is_closed:
            raise Closed("the database is closed")

    def acquire(self) -> H:
        """A connection that is alive as far as one can tell.

        Raises Closed, DbUnavailable when all are busy for too long, and what ``open_handle`` raises.
        """
        while True:
            handle = self._take()
            if handle is None:
                return self._connect()
            if handle.is_usable():
                return handle
            self.release(handle, is_whole=False)

    def release(self, handle: H, *, is_whole: bool) -> None:
        """Give one back.  Only a whole one, which waits for no answer, is kept.  One that was borrowed before a fork is
        left alone."""
        with self._freed:
            if handle not in self._busy:
                forking.set_aside(handle)
                return
            is_kept = is_whole and not self.is_closed and len(self._idle) < self._idle_max
            if is_kept:
                self._idle.append(handle)
            self._busy.remove(handle)
            self._freed.notify()
        if not is_kept:
            handle.close()

    def close(self) -> None:
        """Close what is idle and cut what is busy.  Idempotent."""
        with self._freed:
            self.is_closed = True
            idle, self._idle = self._idle, []
            for handle in self._busy:
                handle.cut()
            self._freed.notify_all()
        for handle in idle:
            handle.close()

    def after_fork_in_child(self) -> None:
        forking.set_aside([*self._idle, *self._busy])
        self._freed = threading.Condition()
        self._idle, self._busy, self._opening = [], set(), 0

    def _take(self) -> H | None:
        """An idle connection, now busy, or None and the right to open one."""
        with self._freed:
            if not self._freed.wait_for(self._is_free, self._timeout_s):
                raise DbUnavailable(
                    f"all {self._limit} connections of connections_max were busy for {self._timeout_s:g} s"
                )
            self.check_open()
            if not self._idle:
                self._opening += 1
                return None
            handle = self._idle.pop()
            self._busy.add(handle)
            return handle

    def _is_free(self) -> bool:
        return self.is_closed or bool(self._idle) or len(self._busy) + self._opening < self._limit

    def _connect(self) -> H:
        handle = None
        try:
            handle = self._open_handle()
        finally:
            with self._freed:
                self._opening -= 1
                if handle is not None:
                    self._busy.add(handle)
                if handle is None or self.is_closed:
                    self._freed.notify()
        if self.is_closed:
            self.release(handle, is_whole=False)
            self.check_open()
        return handle
