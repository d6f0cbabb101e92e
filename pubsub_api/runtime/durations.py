"""Durations counted in classes, which `pubsub_api.reporting` exposes as histograms."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the classes: from one change on an idle machine to a database that cannot be reached.  Longer
durations are in one more class."""
_NOTED_MAX = 64


@dataclasses.dataclass(frozen=True)
class DurationHistogram:
    """Counted durations: ``counts`` has one number for each of `BOUNDS_S`, and one for longer durations."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def at_most(self, share: float) -> float:
        """The bound below which this share of all durations lies: `at_most(0.99)` is about the 99th percentile."""
        cumulative = 0
        for bound_s, count in zip(BOUNDS_S, self.counts, strict=False):
            cumulative += count
            if cumulative >= share * self.count:
                return bound_s
        return float("inf")


class DurationCounter:
    """Counts durations.  Has no lock: when two threads add at the same time, one addition may be lost.

    Durations are only noted at first, and counted many at a time.  That takes less time when something else runs
    between two of them, as between two changes: the code and the data for it have left the processor's caches then.
    """

    __slots__ = ("_counts", "_noted", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._noted: list[float] = []
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        noted = self._noted
        noted.append(seconds)
        if len(noted) >= _NOTED_MAX:
            self._count()

    def _count(self) -> None:
        noted, counts, sum_s = self._noted, self._counts, 0.0
        try:
            while noted:
                seconds = noted.pop()
                counts[bisect_left(BOUNDS_S, seconds)] += 1
                sum_s += seconds
        except IndexError:
            pass  # another thread has counted the last one
        self._sum_s += sum_s

    def read(self) -> DurationHistogram:
        self._count()
        return DurationHistogram(tuple(self._counts), self._sum_s)
