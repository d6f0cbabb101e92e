"""What is new in a frame, given what a stream has already.  Pure: the one place that decides about idempotence.

A stream has a last number and ranges before it that are missing.  A frame states its numbers and the number it follows;
what lies between that number and its first was skipped on purpose and never exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pubsub_api.core.frame import Header

Range = tuple[int, int]
"""First and last number, both included."""
Ranges = tuple[Range, ...]


class StreamPosition(NamedTuple):
    """Where a stream stands."""

    last: int
    missing: Ranges


NOWHERE = StreamPosition(0, ())
"""Of a stream that the log has never met.  What came before its first frame will count as missing, so that it is taken
when it is delivered late."""


class Placement(NamedTuple):
    kept: Ranges
    """Numbers of the frame that are new, oldest first; normally all of them, in one range."""
    position: StreamPosition
    """Where the stream stands with them."""
    forgotten: int
    """Numbers that count as held from now on although they never came, because too many ranges are missing."""


def place(header: Header, position: StreamPosition, *, ranges_max: int) -> Placement:
    """Find what is new in a DATA frame."""
    first, after, final = header.first, header.after, header.last
    last, missing = position
    if after == last:  # the next frame of the stream, which is nearly every frame
        return Placement(((first, final),), StreamPosition(final, missing), 0)
    kept = [(max(first, low), min(final, high)) for low, high in missing if low <= final and high >= first]
    if final > last:
        _join(kept, (max(first, last + 1), final))
    left = _without(missing, after + 1, final)
    if after > last:
        left.append((last + 1, after))
    surplus = left[: max(0, len(left) - ranges_max)]
    left = left[len(surplus) :]
    forgotten = sum(high - low + 1 for low, high in surplus)
    return Placement(tuple(kept), StreamPosition(max(last, final), tuple(left)), forgotten)


def extend(position: StreamPosition, head: int, *, ranges_max: int) -> StreamPosition:
    """Where a stream stands when it is learnt that it has events up to ``head``."""
    last, missing = position
    if head <= last:
        return position
    return StreamPosition(head, (*missing, (last + 1, head))[-ranges_max:])


def lacking(position: StreamPosition, ranges: Iterable[Range]) -> StreamPosition:
    """Where a stream stands that no longer has these numbers."""
    missing: list[Range] = []
    for low, high in sorted([*position.missing, *ranges]):
        if missing and low <= missing[-1][1] + 1:
            low, high = missing[-1][0], max(high, missing.pop()[1])
        missing.append((low, high))
    return StreamPosition(position.last, tuple(missing))


def _join(ranges: list[Range], added: Range) -> None:
    """Append a range that lies behind all others, as one with the last of them when they touch."""
    if ranges and ranges[-1][1] + 1 == added[0]:
        added = (ranges.pop()[0], added[1])
    ranges.append(added)


def _without(ranges: Ranges, first: int, last: int) -> list[Range]:
    parts = [part for low, high in ranges for part in ((low, min(high, first - 1)), (max(low, last + 1), high))]
    return [(low, high) for low, high in parts if low <= high]
