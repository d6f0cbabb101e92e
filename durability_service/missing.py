"""Ranges of events that the bus has given up and that are still wanted: whom it asked may have been cut off.

Sans-IO.  Each range is asked for again, at intervals that double, until it is durable here or was asked for often
enough: by then no cache remembers it.
"""

from __future__ import annotations

from collections.abc import Iterable

from durability_service.ranges import DurableRanges
from pubsub_api.core.resync import LostRange


class MissingRanges:
    """Bounded: when there is no room, the range that is missing longest is forgotten."""

    def __init__(self, durable: DurableRanges, *, ranges_max: int, interval_s: float, attempts_max: int) -> None:
        self._durable = durable
        self._ranges_max = ranges_max
        self._interval_s = interval_s
        self._attempts_max = attempts_max
        self._missing: dict[LostRange, tuple[float, int]] = {}
        """Range -> when it is to be asked for, and how often it was."""
        self.recovered = 0
        """Ranges that are durable after all."""
        self.forgotten = 0
        """Ranges that nobody had, or for which there was no room."""

    def __len__(self) -> int:
        return len(self._missing)

    def add(self, lost: Iterable[LostRange], now: float) -> None:
        """The bus gave these up."""
        for one in lost:
            if one in self._missing or not self._ranges_max:
                continue
            if len(self._missing) >= self._ranges_max:
                self._missing.pop(next(iter(self._missing)))
                self.forgotten += 1
            self._missing[one] = (now, 0)

    def next_deadline(self) -> float:
        return min((due for due, _ in self._missing.values()), default=float("inf"))

    def take_due(self, now: float) -> list[LostRange]:
        """What is to be asked for now: of each range that is due, the parts that are still missing."""
        wanted: list[LostRange] = []
        for one, (due, attempts) in list(self._missing.items()):
            if due > now:
                continue
            parts = list(self._still_missing(one))
            if not parts:
                del self._missing[one]
                self.recovered += 1
            elif attempts >= self._attempts_max:
                del self._missing[one]
                self.forgotten += 1
            else:
                self._missing[one] = (now + self._interval_s * 2**attempts, attempts + 1)
                wanted += parts
        return wanted

    def _still_missing(self, one: LostRange) -> Iterable[LostRange]:
        stream = (bytes.fromhex(one.guid), one.topic)
        for first, last in self._durable.missing(stream, one.first, one.last):
            yield LostRange(one.publisher, one.guid, one.topic, first, last)
