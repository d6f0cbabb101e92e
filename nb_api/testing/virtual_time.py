"""Time that a test advances: a pause of an hour is over when the test says so."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from nb_api.controller.clock import Timed
from pubsub_api.errors import UsageError, WaitTimeout

PATIENCE_S = 60.0
"""How long controllers may take, in real time, to do what is due."""
_POLL_S = 0.001
_STEPS_MAX = 100_000


class VirtualTime:
    """The clock of controllers in a test: ``Controller(..., clock=time)``.  It advances only by `advance`.

    Thread-safe, but the function of a controller must not call `settle` or `advance`.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._lock = threading.Lock()
        self._attached: weakref.WeakSet[Timed] = weakref.WeakSet()

    def now(self) -> float:
        """Seconds since it was made."""
        return self._now

    def attach(self, timed: Timed) -> None:
        with self._lock:
            self._attached.add(timed)

    def settle(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Block until controllers have done what is due now.  Time does not advance.  Raises WaitTimeout."""
        self._wait(lambda: all(timed.is_resting for timed in self._all()), timeout_s)

    def advance(self, seconds: float, *, timeout_s: float = PATIENCE_S) -> None:
        """Advance from one time at which a run is due to the next, and block each time until the run is done.

        So a key that runs every minute runs sixty times in an hour.  Raises UsageError, WaitTimeout.
        """
        self.advance_by(seconds, self.settle, timeout_s)

    def advance_by(self, seconds: float, settle: Callable[..., None], timeout_s: float) -> None:
        """As `advance`, with a function that is called as ``settle(timeout_s=...)`` instead of `settle`."""
        if not seconds >= 0:
            raise UsageError(f"time cannot go back: {seconds!r} s")
        end = self._now + seconds
        deadline = time.monotonic() + timeout_s
        for _ in range(_STEPS_MAX):
            settle(timeout_s=max(deadline - time.monotonic(), 0.0))
            if self._now >= end:
                return
            due = min([self._now + timed.next_in_s() for timed in self._all()], default=end)
            self._now = min(due, end)
            for timed in self._all():
                timed.time_changed()
        raise WaitTimeout(f"more than {_STEPS_MAX} runs were due within {seconds} s")

    def _all(self) -> list[Timed]:
        with self._lock:
            return list(self._attached)

    def _wait(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_done():
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"controllers were not done within {timeout_s} s")
            time.sleep(_POLL_S)
