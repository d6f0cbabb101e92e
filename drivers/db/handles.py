"""Connections to a database: kept, lent to one thread at a time, given up when they break, and forgotten after a fork.

What a connection is, how it is opened and how its errors are called is the business of each driver.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from oslo_config import cfg

from nb_api import config
from nb_api.errors import DbUnavailable
from pubsub_api.errors import Closed
from pubsub_api.runtime import forking

IDLE_MAX = 8
"""Connections of one process that stay open while they are unused."""
IDLE_S = 2.0
"""A connection that was unused for so long is closed at the next occasion: the server has a maximum for all of its
clients, and a new one takes a few milliseconds.  Less than ``connect_timeout``, so that a process that finds no room
gets it from those that do not need theirs."""


@dataclasses.dataclass(frozen=True)
class HandleLimits:
    """How many connections a process has."""

    count_max: int
    idle_max: int
    timeout_s: float
    """How long to wait for one while all are busy."""


def read_limits(conf: cfg.ConfigOpts) -> HandleLimits:
    common = conf[config.GROUP]
    return HandleLimits(common.connections_max, IDLE_MAX, common.operation_timeout)


class Handle(Protocol):
    """A connection."""

    def is_usable(self) -> bool:
        """Whether an idle one still stands, as far as one can tell without asking the server."""

    def cut(self) -> None:
        """End it under the feet of whatever thread uses it, which gets an error at once.  Does not raise."""

    def close(self) -> None:
        """Close it.  Called by the thread that has it alone."""


H = TypeVar("H", bound=Handle)


class Handles(Generic[H]):
    """The connections of one process.  Every method may be called from any thread.

    ``open_handle`` connects; it is called outside of all locks and may raise what it likes.
    """

    def __init__(self, open_handle: Callable[[], H], limits: HandleLimits) -> None:
        self._open_handle = open_handle
        self._limits = limits
        self.is_closed = False
        self._lock = threading.RLock()
        """Of the condition, and entered itself: an interrupt within `Condition.__enter__` would leave it held."""
        self._freed = threading.Condition(self._lock)
        self._idle: list[tuple[H, float]] = []
        """With the time of their last use, which rises."""
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
        with self._lock:
            if handle not in self._busy:
                forking.set_aside(handle)
                return
            is_kept = is_whole and not self.is_closed and len(self._idle) < self._limits.idle_max
            if is_kept:
                self._idle.append((handle, time.monotonic()))
            self._busy.remove(handle)
            self._freed.notify()
        if not is_kept:
            handle.close()
        self.close_idle()

    def close_idle(self) -> None:
        """Close what was unused for a while."""
        oldest = time.monotonic() - IDLE_S
        idle = self._idle
        if not idle or idle[0][1] > oldest:
            return  # as nearly always; without the lock, since the next one looks again
        with self._lock:
            count = sum(used_at <= oldest for _, used_at in self._idle)
            unused, self._idle = self._idle[:count], self._idle[count:]
        for handle, _ in unused:
            handle.close()

    def close(self) -> None:
        """Close what is idle and cut what is busy.  Idempotent."""
        with self._lock:
            self.is_closed = True
            idle, self._idle = self._idle, []
            for handle in self._busy:
                handle.cut()
            self._freed.notify_all()
        for handle, _ in idle:
            handle.close()

    def after_fork_in_child(self) -> None:
        forking.set_aside([*self._idle, *self._busy])
        self._lock = threading.RLock()
        self._freed = threading.Condition(self._lock)
        self._idle, self._busy, self._opening = [], set(), 0

    def _take(self) -> H | None:
        """An idle connection, now busy, or None and the right to open one."""
        with self._lock:
            limits = self._limits
            if not self._idle and not self._freed.wait_for(self._is_free, limits.timeout_s):
                raise DbUnavailable(
                    f"all {limits.count_max} connections of connections_max were busy for {limits.timeout_s:g} s"
                )
            self.check_open()
            if not self._idle:
                self._opening += 1
                return None
            handle, _ = self._idle.pop()
            self._busy.add(handle)
            return handle

    def _is_free(self) -> bool:
        return self.is_closed or bool(self._idle) or len(self._busy) + self._opening < self._limits.count_max

    def _connect(self) -> H:
        handle = None
        try:
            handle = self._open_handle()
        finally:
            with self._lock:
                self._opening -= 1
                if handle is not None:
                    self._busy.add(handle)
                if handle is None or self.is_closed:
                    self._freed.notify()
        if self.is_closed:
            self.release(handle, is_whole=False)
            self.check_open()
        return handle
