"""What of a partition is done: everything before a low watermark, and ranges above it.

Acknowledgements come in any order.  Kept this way they cost next to nothing when they come in order, and a handover
repeats nothing that was acknowledged, also in the middle of what is not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import msgspec


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a partition is: the value that is reported, granted and stored."""

    generation: int = 0
    """Rises with every seek of the group: what was acknowledged before says nothing about what comes after."""
    low: int = 0
    """Every offset before this one is done."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Done as well: from the first number on, up to but without the second.  Ascending, never touching."""
    attempts: dict[int, int] = {}
    """Offset -> how often it was delivered in vain."""
    delays: dict[int, float] = {}
    """In reports about a portion: events that are given back undone -> seconds until they are to be tried again."""
    expired: int = 0
    """In reports: offsets that retention dropped before the owner could read them."""
    damaged: tuple[tuple[int, int], ...] = ()
    """In reports: what the owner has come to and the log cannot give, from the first number on, without the second."""


class AcknowledgedOffsets:
    """A growing set of offsets: all before `low`, and ranges above it."""

    __slots__ = ("_ends", "_starts", "low")

    def __init__(self, low: int = 0, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.low = low
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> int:
        """Add the offsets from ``start`` up to but without ``end``.  Returns how many of them are new."""
        start = max(start, self.low)
        if start >= end:
            return 0
        if start == self.low and not self._starts:
            self.low = end
            return end - start
        added = self._insert(start, end)
        if self._starts[0] <= self.low:
            self.low = self._ends[0]
            del self._starts[0], self._ends[0]
        return added

    def _insert(self, start: int, end: int) -> int:
        # Ranges from `first` up to `beyond` overlap or touch the new one and melt into it.
        first, beyond = bisect_left(self._ends, start), bisect_right(self._starts, end)
        known = 0
        if first < beyond:
            known = sum(self._ends[place] - self._starts[place] for place in range(first, beyond))
            start, end = min(start, self._starts[first]), max(end, self._ends[beyond - 1])
        self._starts[first:beyond] = [start]
        self._ends[first:beyond] = [end]
        return end - start - known

    def merge(self, progress: GroupProgress) -> int:
        """Add what another progress knows.  Returns how many offsets are new."""
        added = self.add(0, progress.low)
        return added + sum(self.add(start, end) for start, end in progress.ranges)

    def missing(self, start: int, end: int) -> int:
        """How many offsets of a range are not in the set."""
        start = max(start, self.low)
        known = sum(min(stop, end) - max(begin, start) for begin, stop in self.ranges() if stop > start and begin < end)
        return max(0, end - start) - known

    def ranges(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    @property
    def highest(self) -> int:
        """The offset after the last one in the set."""
        return self._ends[-1] if self._ends else self.low

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        place = bisect_right(self._starts, offset) - 1
        return offset < self.low or (place >= 0 and offset < self._ends[place])

    def __len__(self) -> int:
        """How many ranges stand above the low watermark."""
        return len(self._starts)


def snapshot(
    acknowledged: AcknowledgedOffsets,
    generation: int,
    attempts: dict[int, int],
    delays: dict[int, float] | None = None,
    expired: int = 0,
    damaged: Iterable[tuple[int, int]] = (),
) -> GroupProgress:
    """The value to report.  Attempts of what is done are dropped, also from ``attempts`` itself."""
    for offset in [offset for offset in attempts if offset in acknowledged]:
        del attempts[offset]
    return GroupProgress(
        generation, acknowledged.low, tuple(acknowledged.ranges()), dict(attempts), dict(delays or {}), expired,
        tuple(damaged),
    )  # fmt: skip


def covers(left: GroupProgress, right: GroupProgress) -> bool:
    """Whether everything that ``right`` has done is done in ``left`` too, in the same or a later generation."""
    if left.generation != right.generation:
        return left.generation > right.generation
    return AcknowledgedOffsets(left.low, left.ranges).merge(right) == 0
