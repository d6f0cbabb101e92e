"""`get` of a member: an iteration that goes on with every call."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator

from pubsub_api.core.events import GroupEvent
from pubsub_api.errors import UsageError

Turns = Generator[GroupEvent | None, None, None]
"""Events, and None whenever the time is over."""


class GettingTurns:
    """Keeps the iteration between two calls.  One thread at a time; a second one is refused and changes nothing."""

    def __init__(self, begin: Callable[[Callable[[], None], Callable[[], float]], Turns]) -> None:
        """``begin`` makes an iteration: of what checks the member, and of what says until when to wait."""
        self._begin = begin
        self._turns: Turns | None = None
        self._until = math.inf
        self._in_use = threading.Lock()

    def next(self, check: Callable[[], None], timeout_s: float | None) -> GroupEvent | None:
        """None when the time is over or it is closed.  Raises UsageError, and what the iteration raises."""
        if not self._in_use.acquire(blocking=False):
            raise UsageError("another thread or task waits in get: one at a time; several can iterate")
        try:
            self._until = math.inf if timeout_s is None else time.monotonic() + timeout_s
            if self._turns is None:
                self._turns = self._begin(check, lambda: self._until)
            try:
                return next(self._turns, None)
            except BaseException:
                self._turns = None  # it has ended
                raise
        finally:
            self._in_use.release()

    def close(self) -> None:
        """What was got last and not acknowledged goes back."""
        if self._turns is not None:
            with contextlib.suppress(ValueError):  # a thread waits in it, and is let go
                self._turns.close()
