"""Changes that wait for a reader that iterates over them: bounded, and an overflow is told."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from nb_api.core.copy.differences import CacheChange, Resynced
from pubsub_api.errors import Closed
from pubsub_api.runtime.coroutines import AwaitableCondition


class ChangeQueue:
    """When it overflows, everything in it is replaced by one `Resynced` of kind ``overrun``.

    Until that is taken nothing more is kept: a reader that takes it reads the whole cache, which is newer.
    ``wants_changed`` is called when `is_overrun` has changed.  ``turn`` is held while the cache changes, so that what
    happens after the overrun was taken is not missed.
    """

    errors: ClassVar[int] = 0
    """Of callbacks: there is none here."""

    def __init__(self, size_max: int, wants_changed: Callable[[], None], turn: AbstractContextManager[None]) -> None:
        self._size_max = size_max
        self._wants_changed = wants_changed
        self._turn = turn
        self._changed = AwaitableCondition()
        self._changes: deque[CacheChange] = deque()
        self._overrun: Resynced | None = None
        self._is_closed = False
        self._first = 0
        """How many of the objects that were there at the beginning have not been taken."""
        self.overruns = 0

    @property
    def is_overrun(self) -> bool:
        return self._overrun is not None

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_primed(self) -> bool:
        """The objects that were there at the beginning have been taken."""
        return not self._first

    @property
    def waiting(self) -> int:
        """Changes that were not taken."""
        return len(self._changes) + self.is_overrun

    def prime(self, changes: Sequence[CacheChange], now: float) -> None:  # noqa: ARG002  as that of `CallbackQueue`
        """Begin with these, the objects that are there; they do not count as changes that were not taken in time."""
        with self._changed:
            self._size_max += len(changes)
            self._changes.extend(changes)
            self._first = len(changes)
            self._changed.notify_all()

    def add(self, changes: Sequence[CacheChange], revision: int) -> None:
        """Called with ``turn`` held."""
        with self._changed:
            if self._overrun is not None:
                return
            if len(self._changes) + len(changes) > self._size_max:
                self._changes.clear()
                self._first = 0
                self._overrun = Resynced("overrun", "the changes were not taken in time", revision)
                self.overruns += 1
                self._wants_changed()
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
                self._first -= self._first > 0
                return self._changes.popleft()
        try:
            with self._turn, self._changed:
                overrun, self._overrun = self._overrun, None
                self._wants_changed()
                return overrun
        except Closed:
            return None

    def wait(self, timeout_s: float) -> bool:
        """Wait until `get` gives something, or nothing ever again; False when it gives nothing."""
        with self._changed:
            self._changed.wait_for(lambda: self.waiting > 0 or self._is_closed, timeout_s)
            return self.waiting > 0

    async def wait_in_loop(self, timeout_s: float | None) -> bool:
        """For a coroutine: wait until `get` gives something, or nothing ever again; False when the time is over."""
        is_ready = await self._changed.wait_for_in_loop(lambda: self.waiting > 0 or self._is_closed, timeout_s)
        return is_ready and self.waiting > 0

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
