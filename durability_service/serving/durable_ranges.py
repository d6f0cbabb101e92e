"""Which numbers of which streams are durable here, to answer publishers that ask."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator

from pubsub_api.core.receiving.resync_requests import LostRange

Stream = tuple[bytes, str]
"""GUID of the publisher, topic."""


class DurableRanges:
    """Ranges of numbers, joined where they touch.  The streams touched longest ago are forgotten first."""

    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._ranges: OrderedDict[Stream, tuple[list[int], list[int]]] = OrderedDict()
        self.forgotten = 0

    def add(self, stream: Stream, first: int, last: int) -> None:
        """Numbers ``first`` to ``last`` are durable."""
        if stream not in self._ranges and len(self._ranges) >= self._streams_max:
            self._ranges.popitem(last=False)
            self.forgotten += 1
        firsts, lasts = self._ranges.setdefault(stream, ([], []))
        self._ranges.move_to_end(stream)
        start = bisect.bisect_left(lasts, first - 1)
        end = bisect.bisect_right(firsts, last + 1)
        if start < end:
            first, last = min(first, firsts[start]), max(last, lasts[end - 1])
        firsts[start:end], lasts[start:end] = [first], [last]

    def has(self, stream: Stream, first: int, last: int) -> bool:
        firsts, lasts = self._ranges.get(stream, ([], []))
        position = bisect.bisect_left(lasts, last)
        return position < len(firsts) and firsts[position] <= first

    def missing_of(self, one: LostRange) -> Iterator[tuple[int, int]]:
        """The parts of what the bus has given up that are not durable."""
        return self.missing((bytes.fromhex(one.guid), one.topic), one.first, one.last)

    def missing(self, stream: Stream, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The parts of a range that are not durable."""
        for known_first, known_last in zip(*self._ranges.get(stream, ([], [])), strict=True):
            if known_last < first:
                continue
            if known_first > last:
                break
            if known_first > first:
                yield first, known_first - 1
            first = known_last + 1
        if first <= last:
            yield first, last

    def __len__(self) -> int:
        return len(self._ranges)
