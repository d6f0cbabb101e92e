"""Whose turn it is to change a local cache and to tell of it: one thread at a time, and not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

_WAIT_S = 0.1
"""How often a thread that waits looks whether the cache was closed."""


class Turn:
    """A lock that its holder may take again, and that no thread waits for when the cache is closed."""

    __slots__ = ("_lock", "check")

    def __init__(self, check: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self.check = check
        """Raises when waiting has become useless."""

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread has it, so that it must not wait for what others do in their turn."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # as `threading.Condition` asks it

    def wait_free(self, timeout_s: float) -> bool:
        """Wait until what others do in their turn now is done; False when they take longer."""
        if not self._lock.acquire(timeout=timeout_s):
            return False
        self._lock.release()
        return True

    def __enter__(self) -> None:
        """Raises what ``check`` raises."""
        if self._lock.acquire(False):  # nearly always, in a third of the time
            return
        while not self._lock.acquire(timeout=_WAIT_S):
            self.check()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
