"""How a store with tables keeps frames that are not sealed: a row for each, whatever the store is.

A row's number holds the shard and the offset of the frame's first event, so that the frames of a shard lie one after
the other and finding an offset needs no other index.  Does no I/O: what a store is asked is handed in.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from durable_log.config import MISSING_RANGES_MAX
from durable_log.core.checks import OFFSET_MAX
from durable_log.core.checksums import damaged, frame_checksum, gap, is_sound, pack_numbers
from durable_log.core.placing import StreamPosition, place
from durable_log.log_api import CLOCK_AHEAD_MAX_NS, ShardState, StoredFrame, shard_of
from pubsub_api.core.frame import Header

_OFFSETS = OFFSET_MAX + 1

COLUMNS = "id, count, skipped, appended_ns, stream, first, checksum, frame"
FrameRow = tuple[int, int, int, int, int, int, int, bytes]
"""The values of `COLUMNS`; the checksum is of all the others."""

Batch = Mapping[int, Sequence[tuple[Header, bytes]]]
"""Shard -> frames, in the order of appending."""
Behind = Callable[[int], int]
"""The offset of the first frame behind a row's number, or the end of the shard."""


def row_id(shard: int, offset: int) -> int:
    """The number under which the frame that begins at an offset is stored."""
    return shard * _OFFSETS + offset


def offset_of(row: int) -> int:
    return row % _OFFSETS


def shard_of_row(row: FrameRow) -> int:
    return row[0] // _OFFSETS


# -- appending


def group(frames: Sequence[bytes], headers: Sequence[Header], shards: int) -> Batch:
    """Sort frames by shard.  Frames of one topic keep their order."""
    batch: dict[int, list[tuple[Header, bytes]]] = {}
    known: dict[str, list[tuple[Header, bytes]]] = {}
    for header, frame in zip(headers, frames, strict=True):
        topic = header.topic
        if topic not in known:
            known[topic] = batch.setdefault(shard_of(topic, shards), [])
        known[topic].append((header, frame))
    return batch


class StreamRow:
    """A stream as the store has it: its number there, its key, and where it stands."""

    __slots__ = ("id", "key", "position")

    def __init__(self, number: int, key: bytes, position: StreamPosition) -> None:
        self.id = number
        self.key = key
        self.position = position


class PlacedFrames(NamedTuple):
    """What is to be written to one shard."""

    rows: list[FrameRow]
    streams: list[StreamRow]
    """Those that were met, at their new positions."""
    end: int
    bytes: int
    forgotten: int
    """Missing numbers that were forgotten because a stream had too many holes."""


def place_frames(
    shard: int,
    end: int,
    now_ns: int,
    frames: Sequence[tuple[Header, bytes]],
    find_stream: Callable[[bytes, str], StreamRow],
) -> PlacedFrames:
    """Make rows of what is new, from a shard's end on.  Each stream is asked for once."""
    streams, rows = dict[tuple[bytes, str], StreamRow](), list[FrameRow]()
    beginning, size, forgotten = row_id(shard, 0), 0, 0
    for header, frame in frames:
        stream = streams.get((header.guid, header.topic))
        if stream is None:
            stream = streams[header.guid, header.topic] = find_stream(header.guid, header.topic)
        placement = place(header, stream.position, ranges_max=MISSING_RANGES_MAX)
        stream.position = placement.position
        forgotten += placement.forgotten
        for first, last in placement.kept:
            count = last - first + 1
            row, skipped = beginning + end, first - header.first
            checksum = frame_checksum(frame, row, count, skipped, now_ns, stream.id, first)
            rows.append((row, count, skipped, now_ns, stream.id, first, checksum, frame))
            end += count
            size += len(frame)
    return PlacedFrames(rows, list(streams.values()), end, size, forgotten)


def stamp(now_ns: int, before_ns: int) -> int:
    """When something is appended now, after what was appended before: a clock that was set back must not put `find` in
    disorder, unless it was far ahead."""
    return max(now_ns, before_ns) if before_ns <= now_ns + CLOCK_AHEAD_MAX_NS else now_ns


# -- reading


def take_sound(
    rows: Iterable[FrameRow], shard: int, offset: int, *, events_max: int, bytes_max: int
) -> list[StoredFrame]:
    """What `durable_log.storage.segmented.take` would find, up to the first frame that is damaged or missing.

    Nothing is called for a frame but what looks at its bytes: this is where the time goes that reading a log takes.
    """
    beginning, place = row_id(shard, 0), row_id(shard, offset)
    stop, size, taken = place + events_max, 0, list[StoredFrame]()
    crc32, pack, new, add = zlib.crc32, pack_numbers, tuple.__new__, taken.append
    try:
        for row, count, skipped, appended_ns, stream, first, checksum, frame in rows:
            if crc32(frame, crc32(pack(row, count, skipped, appended_ns, stream, first))) != checksum:
                break
            size += len(frame)
            if not row <= place < row + count or (size > bytes_max and taken):
                break
            add(new(StoredFrame, (shard, row - beginning, count, skipped, appended_ns, frame)))
            place = row + count
            if place >= stop:
                break
    except (TypeError, struct.error):  # of a damaged row nothing is certain, not even the types
        pass
    return taken


def stored_frames(shard: int, rows: Iterable[FrameRow], behind: Behind) -> Iterator[StoredFrame]:
    """Raises LogCorrupt when it comes to a frame that is damaged."""
    beginning = row_id(shard, 0)
    for row, count, skipped, appended_ns, stream, first, checksum, frame in rows:
        if not is_sound(checksum, frame, row, count, skipped, appended_ns, stream, first):
            raise damaged(shard, row - beginning, behind(row))
        yield StoredFrame(shard, row - beginning, count, skipped, appended_ns, frame)


def end_of(row: FrameRow) -> int:
    """Where a frame ends; when it is damaged, where it can end at the earliest."""
    number, count, skipped, appended_ns, stream, first, checksum, frame = row
    is_whole = is_sound(checksum, frame, number, count, skipped, appended_ns, stream, first)
    return offset_of(number) + (count if is_whole else 1)


def find_time(
    found: ShardState, appended_ns: int, last_between: Callable[[int, int], Sequence[FrameRow]], behind: Behind
) -> int:
    """The first offset appended at or after a time, by bisection: times never fall within a shard.

    ``last_between`` gives the last row between two numbers of rows, both included.  Raises LogCorrupt when it meets
    what is damaged or gone.
    """
    shard, low, high = found.shard, max(found.sealed, found.start), found.end
    while low < high:
        middle = (low + high) // 2
        rows = last_between(row_id(shard, low), row_id(shard, middle))
        frame = next(stored_frames(shard, rows, behind), None)
        if frame is None or frame.end <= middle:
            raise gap(shard, low if frame is None else frame.end, behind(row_id(shard, middle)))
        if frame.appended_ns >= appended_ns:
            high = frame.offset
        else:
            low = frame.end
    return low
