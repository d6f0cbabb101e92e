"""How long to wait before the next attempt: twice as long after each failure, up to a limit, until one succeeds."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """The pauses between attempts.  Not thread-safe.  Reads no clock.

    ``jitter`` returns numbers from 0 to 1, as `random.random` does.  It shortens each pause to between half and all of
    its length, so that processes that failed together do not retry together.  By default pauses are exact.
    """

    def __init__(self, first_s: float, limit_s: float, *, jitter: Callable[[], float] = lambda: 1.0) -> None:
        """When ``first_s`` is longer than ``limit_s``, every pause is ``first_s``."""
        self._first_s = self._pause_s = first_s
        self._limit_s = max(first_s, limit_s)
        self._jitter = jitter

    def next_s(self) -> float:
        """Seconds to wait after another failed attempt."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._limit_s)
        return pause_s * (0.5 + 0.5 * self._jitter())

    def reset(self) -> None:
        """An attempt succeeded: begin with the first pause again."""
        self._pause_s = self._first_s
