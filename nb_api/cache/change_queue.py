"""Changes that wait for a reader that iterates over them: bounded, and an overflow is told."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from nb_api.core.differences import CacheChange, Resynced


class ChangeQueue:
    """When it overflows, everything in it is replaced by one `Resynced` of kind ``overrun``.

    Until that is taken nothing more is kept: a reader that takes it reads the whole cache, which is newer.
    ``want_differences`` is called with whether differences are wanted.  ``turn`` is held while the cache changes, so
    that what happens after the overrun was taken is not missed.
    """

    def __init__(
        self, size_max: int, want_differences: Callable[[bool], None], turn: AbstractContextManager[object]
    ) -> None:
        self._size_max = size_max
        self._want_differences = want_differences
        self._turn = turn
        self._changed = threading.Condition()
        self._changes: deque[CacheChange] = deque()
        self._overrun: Resynced | None = None
        self._is_closed = False
        self.overruns = 0

    def put(self, changes: Sequence[CacheChange], revision: int) -> None:
        """Called with ``turn`` held."""
        with self._changed:
            if self._overrun is not None:
                return
            if len(self._changes) + len(changes) > self._size_max:
                self._changes.clear()
                self._overrun = Resynced("overrun", "nobody took the changes in time", revision)
                self.overruns += 1
                self._want_differences(False)
            else:
                self._changes.extend(changes)
            self._changed.notify_all()

    def get(self, timeout_s: float | None = None) -> CacheChange | None:
        """The next change; None when the time is over or the queue is closed and empty."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._changes and self._overrun is None:
                rest_s = None if deadline is None else deadline - time.monotonic()
                if self._is_closed or (rest_s is not None and rest_s <= 0):
                    return None
                self._changed.wait(rest_s)
            if self._overrun is None:
                return self._changes.popleft()
        with self._turn, self._changed:
            overrun, self._overrun = self._overrun, None
            self._want_differences(True)
            return overrun

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
