"""Durations counted in classes, which `pubsub_api.reporting` exposes as histograms."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the classes: from one change on an idle machine to a database that cannot be reached.  Longer
durations are in one more class."""


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
    """Counts durations.  Has no lock: when two threads add at the same time, one addition may be lost."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def read(self) -> DurationHistogram:
        return DurationHistogram(tuple(self._counts), self._sum_s)
