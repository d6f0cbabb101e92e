"""Frames made again from the columns of a segment, many at once.

On the wire an event is ``[table, key, action, value, version, timestamp]`` in msgpack.  `encode_events` makes that of
whole columns, in C: what it costs does not depend on how the events stood in frames.  A frame's body is a part of the
result; only the header is made for each.

Nothing is imported from pyarrow until it is needed: a log works without it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from durable_log.log_api import StoredFrame
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind

if TYPE_CHECKING:
    import numpy
    import pyarrow

FEW_VALUES = ("guid", "topic", "table", "action")
"""Columns that say the same again and again: read as dictionaries they cost next to nothing."""

PORTION_EVENTS = 4096
"""Rebuilt together by `FrameRows`: a reader of one event waits for so many."""

_EVENT = b"\x96"  # an array of six elements
_ARRAY32 = struct.Struct(">BI")
MAC_MARK = b"\xc4\x20"
_NUMBER_LIMITS = (1 << 7, 1 << 8, 1 << 16, 1 << 32)
_NUMBER_BYTES = (1, 2, 3, 5, 9)
_NUMBER_MARKS = (0, 0xCC, 0xCD, 0xCE, 0xCF)
_encode = msgspec.msgpack.Encoder().encode


class EncodedEvents:
    """Events in their wire form, one after the other."""

    def __init__(self, joined: pyarrow.BinaryArray) -> None:
        import numpy  # noqa: PLC0415

        _, ends, data = joined.buffers()
        self._ends = numpy.frombuffer(ends, numpy.int32)
        self._data = memoryview(b"" if data is None else data)

    def body(self, start: int, count: int) -> bytes:
        """The body of a frame that has ``count`` events from row ``start`` on."""
        events = self._data[self._ends[start] : self._ends[start + count]]
        return b"".join((_ARRAY32.pack(0xDD, count), events))


def encode_events(rows: pyarrow.RecordBatch) -> EncodedEvents:
    """What our own publishers would send for these rows.  What nulls give is not to be used."""
    import pyarrow  # noqa: PLC0415
    import pyarrow.compute  # noqa: PLC0415

    keys = rows.column("key")
    joined = pyarrow.compute.binary_join_element_wise(
        _encode_names(rows.column("table"), _EVENT),
        _text_marks(pyarrow.compute.binary_length(keys)),
        keys.cast(pyarrow.binary()),
        _encode_names(rows.column("action")),
        rows.column("value"),
        _encode_numbers(rows.column("version").fill_null(0).to_numpy()),
        _encode_numbers(rows.column("timestamp").fill_null(0).to_numpy()),
        b"",
        null_handling="replace",
        null_replacement=b"",
    )
    return EncodedEvents(joined)


def signed(frame: bytes, mac: bytes | None) -> bytes:
    """A frame with the signature that it had, if it had any."""
    return frame if mac is None else b"".join((memoryview(frame)[:-1], MAC_MARK, mac))


class FrameRows:
    """Rows of a segment, from the first one of a frame on, and the frames that they were made of.

    Raises ValueError when the rows are not those of whole frames.
    """

    def __init__(self, rows: pyarrow.Table) -> None:
        import numpy  # noqa: PLC0415

        (self._rows,) = rows.combine_chunks().to_batches()
        counts = self._rows.column("frame_count")
        starts = numpy.flatnonzero(counts.is_valid().to_numpy(zero_copy_only=False))
        ends = numpy.append(starts[1:], self._rows.num_rows)
        if starts[:1].tolist() != [0] or not (counts.take(_indices(starts)).to_numpy() == ends - starts).all():
            raise ValueError("its rows do not make up frames")
        self.bytes: int = self._rows.nbytes
        self._starts = starts
        # The first frame of each portion, and one behind the last.
        beginnings = numpy.arange(0, self._rows.num_rows, PORTION_EVENTS)
        firsts = numpy.unique(numpy.searchsorted(starts, beginnings))
        self._portions = numpy.append(firsts[firsts < len(starts)], len(starts))
        self._offsets = self._rows.column("offset").to_numpy()[starts]

    @property
    def portions(self) -> int:
        return len(self._portions) - 1

    def portion_at(self, offset: int) -> int:
        """The portion that has the frame which covers an offset, should there be one."""
        found = self._offsets[self._portions[:-1]].searchsorted(offset, side="right")
        return max(0, int(found) - 1)

    def portions_of(self, guid: bytes, topic: str, first: int, last: int) -> list[int]:
        """The portions that have any of these numbers of a stream."""
        import numpy  # noqa: PLC0415

        opening = self._rows.take(_indices(self._starts))
        numbers = opening.column("seq").to_numpy()
        is_wanted = (numbers <= last) & (numbers + opening.column("frame_count").to_numpy() > first)
        for name, value in (("guid", guid), ("topic", topic)):
            column = opening.column(name).dictionary_encode()
            known = column.dictionary.to_pylist()
            is_wanted &= column.indices.to_numpy() == (known.index(value) if value in known else -1)
        places = numpy.searchsorted(self._portions, numpy.flatnonzero(is_wanted), side="right") - 1
        return [int(place) for place in numpy.unique(places)]

    def rebuild(self, portion: int) -> list[StoredFrame]:
        """The frames of a portion."""
        low, high = int(self._portions[portion]), int(self._portions[portion + 1])
        start = int(self._starts[low])
        end = int(self._starts[high]) if high < len(self._starts) else self._rows.num_rows
        return list(_frames(self._rows.slice(start, end - start), self._starts[low:high] - start))


def stored_frames(rows: pyarrow.Table) -> Iterator[StoredFrame]:
    """The frames that rows of a segment were made of.  They begin with the first row of a frame."""
    found = FrameRows(rows)
    for portion in range(found.portions):
        yield from found.rebuild(portion)


def _frames(rows: pyarrow.RecordBatch, starts: numpy.ndarray[Any, Any]) -> Iterator[StoredFrame]:
    encoded = encode_events(rows)
    opening = rows.take(_indices(starts))
    names = ("shard", "offset", "guid", "topic", "seq", "appended_ns", "frame_count", "frame_after", "frame_timestamp",
             "frame_flags", "frame_hmac", "frame")  # fmt: skip
    columns = (opening.column(name).to_pylist() for name in names)
    for start, shard, offset, guid, topic, first, appended_ns, count, after, timestamp, flags, mac, original in zip(
        starts.tolist(), *columns, strict=True
    ):
        skipped = 0
        if original is None:
            packed = frames.pack(
                Kind.DATA, guid, topic, encoded.body(start, count), first=first, after=after, count=count,
                timestamp=timestamp, flags=flags,
            )  # fmt: skip
            original = signed(packed, mac)
        else:
            skipped = first - frames.unpack(original, bytes_max=len(original)).first
        yield StoredFrame(shard, offset, count, skipped, appended_ns, original)


def _indices(rows: numpy.ndarray[Any, Any]) -> pyarrow.Array:
    import pyarrow  # noqa: PLC0415

    return pyarrow.array(rows)


# -- msgpack, a column at a time


def _encode_names(column: pyarrow.Array, before: bytes = b"") -> pyarrow.Array:
    """A column of few texts, each of which is encoded once."""
    import pyarrow  # noqa: PLC0415

    few = column.dictionary_encode()
    encoded = pyarrow.array([before + _encode(name) for name in few.dictionary.to_pylist()], pyarrow.binary())
    return encoded.take(few.indices)


def _text_marks(lengths: pyarrow.Array) -> pyarrow.Array:
    """What stands before texts of these many bytes."""
    import pyarrow  # noqa: PLC0415

    few = lengths.dictionary_encode()
    return pyarrow.array(map(_text_mark, few.dictionary.to_pylist()), pyarrow.binary()).take(few.indices)


def _text_mark(length: int) -> bytes:
    if length < 1 << 5:
        return bytes((0xA0 | length,))
    mark, size = (0xD9, 1) if length < 1 << 8 else (0xDA, 2) if length < 1 << 16 else (0xDB, 4)
    return bytes((mark,)) + length.to_bytes(size, "big")


def _encode_numbers(values: numpy.ndarray[Any, Any]) -> pyarrow.Array:
    """A column of numbers that are not negative, each in as few bytes as it needs."""
    import numpy  # noqa: PLC0415
    import pyarrow  # noqa: PLC0415

    rows = len(values)
    kinds = numpy.searchsorted(_NUMBER_LIMITS, values, side="right")
    sizes = numpy.take(_NUMBER_BYTES, kinds)
    # Nine bytes each, of which the last ones are used: a mark, but for small numbers, and the digits.
    digits = numpy.zeros((rows, 9), numpy.uint8)
    digits[:, 1:] = values.astype(">u8").view(numpy.uint8).reshape(rows, 8)
    digits[numpy.arange(rows), 9 - sizes] = numpy.where(kinds == 0, values, numpy.take(_NUMBER_MARKS, kinds))
    ends = numpy.zeros(rows + 1, numpy.int32)
    numpy.cumsum(sizes, out=ends[1:])
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(digits[numpy.arange(9) >= 9 - sizes[:, None]])]
    return pyarrow.Array.from_buffers(pyarrow.binary(), rows, buffers)
