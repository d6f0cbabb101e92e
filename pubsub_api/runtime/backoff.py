"""How long to wait before the next attempt: twice as long each time, up to a limit, until one succeeds."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """The pauses between attempts.  One thread at a time may use it; it reads no clock.

    ``jitter`` gives numbers from 0 to 1, as `random.random` does: each pause is then between half of it and the whole,
    so that many who began together do not stay in step.  Without it pauses are exact.
    """

    def __init__(self, first_s: float, limit_s: float, *, jitter: Callable[[], float] = lambda: 1.0) -> None:
        """A first pause that is longer than the limit is kept: nothing doubles then."""
        self._first_s = self._pause_s = first_s
        self._limit_s = max(first_s, limit_s)
        self._jitter = jitter

    def next_s(self) -> float:
        """The pause after one more attempt that failed."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._limit_s)
        return pause_s * (0.5 + 0.5 * self._jitter())

    def reset(self) -> None:
        """An attempt succeeded: the next pause is the first again."""
        self._pause_s = self._first_s
