"""Which events may be what kills their consumers, and how they are delivered again.

A consumer that dies says nothing about the event that it had.  So everything it may have had is *suspect*, and suspects
are delivered in small pieces, each of which is written down before it is delivered.  Every crash makes the piece that
is suspect smaller, until it is one event, whose deliveries are then counted one by one.  As long as no member dies
nothing is written.

    first crash: everything the consumer could have had; delivered again in pieces of 256 offsets
    second: one piece, delivered again in pieces of 16
    third: one of those, delivered again event by event
    from then on: one event, until it has used up its attempts
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared_subscriptions.core.progress import AcknowledgedOffsets

Suspects = tuple[tuple[int, int, int], ...]
"""From an offset, up to but without another, and how often they were perhaps delivered.  Ascending, not overlapping."""

WIDE_OFFSETS = 10_000
"""How far a consumer may have been beyond what it had reported.  One that was farther is found a crash later."""
PIECES = (256, 16, 1)
"""Offsets in one piece, after so many crashes; later ones are of one event."""


def group_count_max(attempts_max: int) -> int:
    """What a crash with several suspects can raise their count to: no event has used up its attempts in company."""
    return min(len(PIECES), max(attempts_max - 1, 1)) if attempts_max else len(PIECES)


def accuse(suspects: Suspects, start: int, end: int, most: int) -> Suspects:
    """Count a delivery of these offsets, after which their consumer died; ``most`` is as far as that can count."""
    edges = sorted({start, end, *(edge for one, two, _ in suspects for edge in (one, two))})
    counted = []
    for left, right in zip(edges, edges[1:], strict=False):
        count = next((count for one, two, count in suspects if one <= left < two), 0)
        if start <= left < end:
            count = max(count, min(count + 1, most))
        if count:
            counted.append((left, right, count))
    return _joined(counted)


def acquit(suspects: Suspects, done: AcknowledgedOffsets) -> Suspects:
    """Without what is done."""
    return tuple(
        (max(start, done.low), end, count) for start, end, count in suspects if done.missing(start, end) > 0
    )  # fmt: skip


def piece(suspects: Suspects, offset: int, attempts_max: int) -> tuple[int, int]:
    """Where a piece that begins at an offset must end, and how often it was delivered; -1 for no end."""
    for start, end, count in suspects:
        if start <= offset < end:
            is_last = attempts_max and count >= attempts_max - 1
            return min(end, offset + (1 if is_last else PIECES[min(count, len(PIECES)) - 1])), count
        if offset < start:
            return start, 0
    return -1, 0


def _joined(ranges: Iterable[tuple[int, int, int]]) -> Suspects:
    found: list[tuple[int, int, int]] = []
    for start, end, count in ranges:
        if found and found[-1][1:] == (start, count):
            start = found.pop()[0]
        found.append((start, end, count))
    return tuple(found)


def undone(done: AcknowledgedOffsets, start: int, end: int) -> Sequence[tuple[int, int]]:
    """The parts of a range that are not done."""
    found, place = [], max(start, done.low)
    for begin, stop in done.ranges():
        if stop <= place:
            continue
        if begin >= end:
            break
        if begin > place:
            found.append((place, begin))
        place = stop
    if place < end:
        found.append((place, end))
    return found
