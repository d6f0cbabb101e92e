"""Hybrid logical clock: nanoseconds of the wall clock that never repeat, never run backwards and follow causality.

When the wall clock has not advanced, the next value is one nanosecond more.
"""

from __future__ import annotations


class HybridClock:
    """Has no lock: when several threads call `tick` at the same time, they may get equal values, never smaller ones."""

    __slots__ = ("_last", "_skew_max_ns", "rejected")

    def __init__(self, skew_max_ns: int) -> None:
        self._last = 0
        self._skew_max_ns = skew_max_ns
        self.rejected = 0
        """Number of timestamps of other hosts that were too far in the future, and were ignored."""

    def tick(self, wall_ns: int) -> int:
        """A timestamp for an event that happens now."""
        last = self._last
        self._last = stamp = wall_ns if wall_ns > last else last + 1
        return stamp

    def observe(self, remote: int, wall_ns: int) -> None:
        """A timestamp of another host was received: later values of `tick` are larger."""
        if remote - wall_ns > self._skew_max_ns:
            self.rejected += 1
        elif remote > self._last:
            self._last = remote
