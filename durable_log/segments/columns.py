"""Events of a log as Arrow columns, decoded in bulk, and back to the frames they came from.

The columns of a sealed segment are those of `EVENT_COLUMNS`, one row per event, and those of `FRAME_COLUMNS`, which are
set in the first row of each frame and null in the others.  From both together a frame is rebuilt byte for byte.  Where
that is not possible, ``frame`` has the original: of a frame with headers, of one that another program encoded
otherwise, of one that is stored in part, and of one whose events cannot be decoded.  What cannot be decoded is null in
all columns that come from the body.

Nothing is imported from pyarrow until it is needed: a log works without it.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from durable_log.log_api import StoredFrame
from pubsub_api.core import frame as frames
from pubsub_api.core.events import VERSION_MAX, Action
from pubsub_api.core.frame import Flag, Header, Kind
from pubsub_api.errors import DriverDependencyMissing

if TYPE_CHECKING:
    import pyarrow

EVENT_COLUMNS = {
    "shard": "int32", "offset": "int64", "guid": "binary", "topic": "string", "seq": "int64", "table": "string",
    "key": "string", "action": "string", "value": "binary", "version": "int64", "timestamp": "int64",
    "appended_ns": "int64",
}  # fmt: skip
"""Name -> Arrow type.  ``value`` is msgpack."""

FRAME_COLUMNS = {
    "frame_count": "int32", "frame_after": "int64", "frame_timestamp": "int64", "frame_flags": "int32",
    "frame_hmac": "binary", "frame": "binary",
}  # fmt: skip
"""How the events stood in frames.  `durable_log` reads them; others need not."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]
_MAC_MARK = b"\xc4\x20"
_NIL = b"\xc0"
_ARRAY32 = struct.Struct(">BI")


class _Row(msgspec.Struct, array_like=True, gc=False):
    """An event as it is on the wire, its value left alone.  Numbers that no Arrow column can hold are refused."""

    table: str
    key: str
    action: Action
    value: msgspec.Raw = msgspec.Raw(_NIL)
    version: _Number = 0
    timestamp: _Number = 0


_decode_rows = msgspec.msgpack.Decoder(list[_Row]).decode
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


def import_pyarrow() -> Any:
    """The pyarrow module.  Raises DriverDependencyMissing, which names the pip extra."""
    try:
        import numpy  # noqa: F401, PLC0415
        import pyarrow  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise DriverDependencyMissing(
            f"sealed segments need the Python library {error.name!r}: pip install 'heliograph[log]'"
        ) from error
    return pyarrow


@functools.lru_cache(maxsize=2)
def schema(*, with_frames: bool) -> pyarrow.Schema:
    """Of a segment, or of `events_batch` alone."""
    arrow = import_pyarrow()
    columns = EVENT_COLUMNS | FRAME_COLUMNS if with_frames else EVENT_COLUMNS
    return arrow.schema([(name, getattr(arrow, kind)()) for name, kind in columns.items()])


class _Decoded:
    """The columns that grow event by event, and what each frame contributes once."""

    def __init__(self) -> None:
        self.tables: list[str | None] = []
        self.keys: list[str | None] = []
        self.actions: list[str | None] = []
        self.values: list[msgspec.Raw | None] = []
        self.versions: list[int | None] = []
        self.timestamps: list[int | None] = []
        self.headers: list[Header] = []
        self.has_nulls = False

    def add(self, stored: StoredFrame) -> Sequence[_Row] | None:
        """Decode one frame; returns the rows of all its events, None when they cannot be decoded."""
        header = stored.header()
        self.headers.append(header)
        rows = _rows(stored.frame, header)
        if rows is None:
            self.has_nulls = True
            for column in (self.tables, self.keys, self.actions, self.values, self.versions, self.timestamps):
                column.extend(itertools.repeat(None, stored.count))
            return None
        counted = rows
        if stored.count != len(rows):
            counted = rows[stored.skipped : stored.skipped + stored.count]
        self.tables += [row.table for row in counted]
        self.keys += [row.key for row in counted]
        self.actions += [row.action for row in counted]
        self.values += [row.value for row in counted]
        self.versions += [row.version for row in counted]
        self.timestamps += [row.timestamp for row in counted]
        return rows


def events_batch(stored: Sequence[StoredFrame], *, with_frames: bool = False) -> pyarrow.RecordBatch:
    """One record batch of all events of these frames of a shard that count.

    With ``with_frames`` it has all columns of a segment.  An event that cannot be decoded is a row with nulls, never an
    error: one bad publisher must not stop all readers of the log.
    """
    arrow = import_pyarrow()
    decoded = _Decoded()
    boundaries: list[tuple[Any, ...]] = []
    for one in stored:
        rows = decoded.add(one)
        if with_frames:
            boundaries.append(_boundary(one, decoded.headers[-1], rows))
    arrays = _spread(stored, decoded.headers) | {
        "table": _few_names(decoded.tables), "key": decoded.keys, "action": _few_names(decoded.actions),
        "value": _raw_array(decoded.values, has_nulls=decoded.has_nulls),
        "version": decoded.versions, "timestamp": decoded.timestamps,
    }  # fmt: skip
    if with_frames:
        arrays |= _at_first_rows(stored, boundaries)
    target = schema(with_frames=with_frames)
    return arrow.RecordBatch.from_arrays(
        [_array(arrow, arrays[field.name], field.type) for field in target], schema=target
    )


def stored_frames(batch: pyarrow.RecordBatch | pyarrow.Table) -> Iterator[StoredFrame]:
    """The frames that a batch of a segment's rows was made of.  The batch begins with the first row of a frame."""
    columns = [batch.column(name).to_pylist() for name in (*EVENT_COLUMNS, *FRAME_COLUMNS)]
    (shards, offsets, guids, topics, numbers, tables, keys, actions, values, versions, timestamps, appended,
     counts, afters, frame_timestamps, flags, macs, originals) = columns  # fmt: skip
    start = 0
    while start < len(offsets):
        count = counts[start]
        end = start + count
        original, skipped = originals[start], 0
        if original is None:
            span = slice(start, end)
            raws = map(msgspec.Raw, values[span])
            rows = list(
                zip(tables[span], keys[span], actions[span], raws, versions[span], timestamps[span], strict=True)
            )
            header = Header(
                Kind.DATA, flags[start], guids[start], numbers[start], afters[start], count, frame_timestamps[start],
                topics[start], 0, 0,
            )  # fmt: skip
            original = _build(header, rows, macs[start])
        else:
            skipped = numbers[start] - frames.unpack(original, bytes_max=len(original)).first
        yield StoredFrame(shards[start], offsets[start], count, skipped, appended[start], original)
        start = end


def _rows(frame: bytes, header: Header) -> list[_Row] | None:
    try:
        rows = _decode_rows(frames.body(frame, header))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return rows if len(rows) == header.count else None


def _boundary(stored: StoredFrame, header: Header, rows: Sequence[_Row] | None) -> tuple[Any, ...]:
    """The frame's own columns: what rebuilds it, or the original when that does not give the same bytes."""
    mac = stored.frame[header.body_end + len(_MAC_MARK) :] if header.flags & Flag.SIGNED else None
    is_whole = rows is not None and stored.count == header.count
    if is_whole and header.timestamp <= VERSION_MAX and _build(header, rows or (), mac) == stored.frame:
        return (stored.count, header.after, header.timestamp, header.flags, mac, None)
    return (stored.count, header.after, min(header.timestamp, VERSION_MAX), header.flags, None, stored.frame)


def _build(header: Header, rows: Sequence[object], mac: bytes | None) -> bytes:
    """A frame as our own publishers make it."""
    body = b"".join((_ARRAY32.pack(0xDD, len(rows)), _encode_without_length(rows)))
    frame = frames.pack(
        header.kind, header.guid, header.topic, body, first=header.first, after=header.after, count=header.count,
        timestamp=header.timestamp, flags=header.flags,
    )  # fmt: skip
    return frame if mac is None else b"".join((memoryview(frame)[:-1], _MAC_MARK, mac))


def events_of_frame(frame: bytes, first: int, count: int, *, after: int) -> bytes:
    """A frame of ``count`` events of an unsigned one, from number ``first`` on, each as it stands there."""
    header = frames.unpack(frame, bytes_max=len(frame))
    skipped = first - header.first
    events = _split(frames.body(frame, header))[skipped : skipped + count]
    return _build(header._replace(first=first, after=after, count=count), events, None)


def _encode_without_length(items: Sequence[object]) -> memoryview:
    """The items in msgpack, one after the other."""
    marker_bytes = 1 if len(items) < 16 else 3 if len(items) < 65_536 else 5
    return memoryview(_encode(items))[marker_bytes:]


def _raw_array(values: Sequence[msgspec.Raw | None], *, has_nulls: bool) -> Any:
    """Raw values as a binary column: joined in C, without an object for each."""
    arrow = import_pyarrow()
    if has_nulls:
        return arrow.array([None if value is None else bytes(value) for value in values], arrow.binary())
    import numpy  # noqa: PLC0415

    ends = numpy.zeros(len(values) + 1, numpy.int32)
    numpy.cumsum(numpy.fromiter(map(len, values), numpy.int32, len(values)), out=ends[1:])  # type: ignore[arg-type]
    buffers = [None, arrow.py_buffer(ends), arrow.py_buffer(_encode_without_length(values))]
    return arrow.Array.from_buffers(arrow.binary(), len(values), buffers)


def _few_names(values: list[str | None]) -> Any:
    """A column of text that says the same again and again: each name is converted once."""
    arrow = import_pyarrow()
    if not values or values.count(values[0]) == len(values):
        return arrow.repeat(arrow.scalar(values[0] if values else None, arrow.string()), len(values))
    import numpy  # noqa: PLC0415

    known = {value: index for index, value in enumerate(dict.fromkeys(values))}
    indices = numpy.fromiter(map(known.__getitem__, values), numpy.int32, len(values))
    return arrow.array(list(known), arrow.string()).take(arrow.array(indices))


def _spread(stored: Sequence[StoredFrame], headers: Sequence[Header]) -> dict[str, Any]:
    """The columns that are the same, or count up, within a frame: made per frame, in C."""
    arrow = import_pyarrow()
    import numpy  # noqa: PLC0415

    counts = numpy.fromiter((one.count for one in stored), numpy.int64, len(stored))
    positions = numpy.arange(counts.sum()) - numpy.repeat(numpy.cumsum(counts) - counts, counts)

    def numbers(values: Iterable[int]) -> Any:
        return numpy.repeat(numpy.fromiter(values, numpy.int64, len(stored)), counts)

    def names(values: Sequence[object], kind: Any) -> Any:
        known = {value: index for index, value in enumerate(dict.fromkeys(values))}
        indices = numpy.repeat(numpy.fromiter((known[value] for value in values), numpy.int32, len(stored)), counts)
        return arrow.DictionaryArray.from_arrays(indices, arrow.array(list(known), kind)).dictionary_decode()

    return {
        "shard": numbers(one.shard for one in stored).astype(numpy.int32),
        "offset": numbers(one.offset for one in stored) + positions,
        "seq": numbers(head.first + one.skipped for head, one in zip(headers, stored, strict=True)) + positions,
        "appended_ns": numbers(one.appended_ns for one in stored),
        "guid": names([head.guid for head in headers], arrow.binary()),
        "topic": names([head.topic for head in headers], arrow.string()),
    }


def _at_first_rows(stored: Sequence[StoredFrame], boundaries: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """The frames' own columns: set in the first row of each frame, null in the others."""
    arrow = import_pyarrow()
    import numpy  # noqa: PLC0415

    counts = numpy.fromiter((one.count for one in stored), numpy.int64, len(stored))
    is_first = numpy.zeros(counts.sum(), numpy.bool_)
    is_first[numpy.cumsum(counts) - counts] = True
    rows = arrow.array(numpy.cumsum(is_first) - 1, mask=~is_first)
    columns = zip(*boundaries, strict=True)
    return {
        name: arrow.array(column, getattr(arrow, kind)()).take(rows)
        for (name, kind), column in zip(FRAME_COLUMNS.items(), columns, strict=True)
    }


def _array(arrow: Any, values: Any, kind: Any) -> Any:
    return values if isinstance(values, arrow.Array) else arrow.array(values, kind)
