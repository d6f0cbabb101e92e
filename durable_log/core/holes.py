"""Ranges of events that the bus has given up and that are still wanted: which are asked for again, and when.

Sans-IO.  A cache may have been cut off when it was asked, and be back since; so each range is asked for again, at
intervals that double, until it is stored or was asked for often enough: by then no cache remembers it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from durable_log.core.placing import Range
from pubsub_api.core.receiving.resync_requests import LostRange

Missing = Callable[[LostRange], Iterable[Range]]
"""What is lacking of a range, and perhaps around it."""


class Holes:
    """Bounded: when there is no room, the range that is missing longest is given up."""

    def __init__(self, *, ranges_max: int, interval_s: float, attempts_max: int) -> None:
        self._ranges_max = ranges_max
        self._interval_s = interval_s
        self._attempts_max = attempts_max
        self._wanted: dict[LostRange, tuple[float, int]] = {}
        """Range -> when it is to be asked for, and how often it was."""
        self.given_up: list[LostRange] = []
        """What no cache had, since the owner looked last."""
        self.recovered = 0
        """Events that came, all in all."""
        self.recovered_ranges = 0
        """Ranges of which everything came."""
        self.forgotten_ranges = 0
        """Ranges that no cache had all of, or for which there was no room."""

    def __len__(self) -> int:
        return len(self._wanted)

    def add(self, lost: Iterable[LostRange], now: float) -> None:
        for one in lost:
            if one in self._wanted or not self._ranges_max:
                continue
            if len(self._wanted) >= self._ranges_max:
                oldest = next(iter(self._wanted))
                del self._wanted[oldest]
                self.given_up.append(oldest)
                self.forgotten_ranges += 1
            self._wanted[one] = (now, 0)

    def next_deadline(self) -> float:
        """Infinite when nothing is wanted."""
        return min((due for due, _ in self._wanted.values()), default=math.inf)

    def take_due(self, missing: Missing, now: float) -> list[LostRange]:
        """What is to be asked for now: of each range that is due, the parts that are lacking."""
        asked: list[LostRange] = []
        for one, (due, attempts) in list(self._wanted.items()):
            if due > now:
                continue
            parts = list(_parts(one, missing(one)))
            if not parts:
                del self._wanted[one]
                self.recovered += size_of([one])
                self.recovered_ranges += 1
            elif attempts >= self._attempts_max:
                del self._wanted[one]
                self.given_up += parts
                self.forgotten_ranges += 1
                self.recovered += size_of([one]) - size_of(parts)
            else:
                self._wanted[one] = (now + self._interval_s * 2**attempts, attempts + 1)
                asked += parts
        return asked


def size_of(ranges: Iterable[LostRange]) -> int:
    """How many events they are."""
    return sum(one.last - one.first + 1 for one in ranges)


def _parts(one: LostRange, ranges: Iterable[Range]) -> Iterator[LostRange]:
    for low, high in ranges:
        first, last = max(low, one.first), min(high, one.last)
        if first <= last:
            yield LostRange(one.publisher, one.guid, one.topic, first, last)
