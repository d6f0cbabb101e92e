"""Hybrid logical clock: nanoseconds of the wall clock that never repeat, never run backwards and follow causality.

The logical part lives in the low digits: when the wall clock has not moved, the next value is one nanosecond more.
"""

from __future__ import annotations


class HybridClock:
    """Not thread-safe by lock but by use: `tick` from several threads may hand out equal values, never smaller ones."""

    __slots__ = ("_last", "_skew_max_ns", "rejected")

    def __init__(self, skew_max_ns: int) -> None:
        self._last = 0
        self._skew_max_ns = skew_max_ns
        self.rejected = 0
        """Timestamps of peers that were too far in the future to be believed."""

    def tick(self, wall_ns: int) -> int:
        """A value for something that happens now."""
        last = self._last
        self._last = stamp = wall_ns if wall_ns > last else last + 1
        return stamp

    def observe(self, remote: int, wall_ns: int) -> None:
        """Learn a peer's value: what happens here from now on is later than what it marks."""
        if remote - wall_ns > self._skew_max_ns:
            self.rejected += 1
        elif remote > self._last:
            self._last = remote
