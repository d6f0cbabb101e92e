"""What a recorder was told that it has lost, and still wants: which ranges are asked for again, and when.

Sans-IO.  Whoever was asked may have been cut off, or have come back since; so each range is asked for again, at
intervals that double, until the log has it or it was asked for often enough: by then no cache remembers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from durable_log.placing import Range
from pubsub_api.core.resync import LostRange

RANGES_MAX = 1000
"""Ranges that are wanted at once.  With more, the one that is missing longest is given up: the log remembers it."""
_INTERVAL_S = 0.5
_ATTEMPTS_MAX = 7
"""The last question is asked about half a minute after the first one."""

Missing = Callable[[LostRange], Iterable[Range]]
"""What the log lacks of a range."""


class Holes:
    def __init__(self) -> None:
        self._wanted: dict[LostRange, tuple[float, int]] = {}
        """Range -> when it is to be asked for, and how often it was."""
        self.given_up: list[LostRange] = []
        """What nobody had, since the owner looked last."""
        self.recovered = 0
        """Events that came, all in all."""

    def add(self, lost: Iterable[LostRange], now: float) -> None:
        for one in lost:
            if one in self._wanted:
                continue
            if len(self._wanted) >= RANGES_MAX:
                oldest = next(iter(self._wanted))
                del self._wanted[oldest]
                self.given_up.append(oldest)
            self._wanted[one] = (now, 0)

    def next_deadline(self) -> float | None:
        """None when nothing is wanted."""
        return min((due for due, _ in self._wanted.values()), default=None)

    def take_due(self, missing: Missing, now: float) -> list[LostRange]:
        """What is to be asked for now: of each range that is due, the parts that the log lacks."""
        asked: list[LostRange] = []
        for one, (due, attempts) in list(self._wanted.items()):
            if due > now:
                continue
            parts = list(_parts(one, missing(one)))
            if not parts:
                del self._wanted[one]
                self.recovered += size_of([one])
            elif attempts >= _ATTEMPTS_MAX:
                del self._wanted[one]
                self.given_up += parts
                self.recovered += size_of([one]) - size_of(parts)
            else:
                self._wanted[one] = (now + _INTERVAL_S * 2**attempts, attempts + 1)
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
