"""Events of a log as Arrow columns, decoded in bulk.

The columns of a sealed segment are those of `EVENT_COLUMNS`, one row per event, and those of `FRAME_COLUMNS`, which are
set in the first row of each frame and null in the others.  From both together `durable_log.segments.rebuilding` makes
the frame again, byte for byte.  Where that is not possible, ``frame`` has the original: of a frame with headers, of one
that another program encoded otherwise, of one that is stored in part, and of one whose events cannot be decoded.  What
cannot be decoded is null in all columns that come from the body.

Nothing is imported from pyarrow until it is needed: a log works without it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from durable_log.log_api import StoredFrame
from durable_log.segments.rebuilding import MAC_MARK, encode_events, signed
from pubsub_api.core import frame as frames
from pubsub_api.core.events import VERSION_MAX, Action, pack_body
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
_NIL = b"\xc0"
_ROWS_TOGETHER = 256
"""Few enough that the processor still has them at hand, and so many that small frames cost little."""
_SIGNED = int(Flag.SIGNED)


class _Row(msgspec.Struct, array_like=True, gc=False):
    """An event as it is on the wire, its value left alone.  Numbers that no Arrow column can hold are refused."""

    table: str
    key: str
    action: Action
    value: msgspec.Raw = msgspec.Raw(_NIL)
    version: _Number = 0
    timestamp: _Number = 0


_UNDECODABLE = _Row(*[None] * 6)  # type: ignore[arg-type]
"""In the place of an event that cannot be decoded."""

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
        self.tables: list[str] = []
        self.keys: list[str] = []
        self.actions: list[str] = []
        self.values: list[msgspec.Raw] = []
        self.versions: list[int] = []
        self.timestamps: list[int] = []
        self.headers: list[Header] = []
        self.is_whole: list[bool] = []
        """Whether all events of the frame count, and could be decoded."""
        self.has_nulls = False
        self._rows: list[_Row] = []

    def add(self, stored: StoredFrame) -> None:
        header = stored.header()
        self.headers.append(header)
        rows = _rows(stored.frame, header)
        self.is_whole.append(rows is not None and stored.count == header.count)
        if rows is None:
            self.has_nulls = True
            self._rows += itertools.repeat(_UNDECODABLE, stored.count)
        elif stored.count == len(rows):
            self._rows += rows
        else:
            self._rows += rows[stored.skipped : stored.skipped + stored.count]
        if len(self._rows) >= _ROWS_TOGETHER:
            self.end()

    def end(self) -> None:
        """Put what was decoded into the columns."""
        rows, self._rows = self._rows, []
        self.tables += [row.table for row in rows]
        self.keys += [row.key for row in rows]
        self.actions += [row.action for row in rows]
        self.values += [row.value for row in rows]
        self.versions += [row.version for row in rows]
        self.timestamps += [row.timestamp for row in rows]


def events_batch(stored: Sequence[StoredFrame], *, with_frames: bool = False) -> pyarrow.RecordBatch:
    """One record batch of all events of these frames of a shard that count.

    With ``with_frames`` it has all columns of a segment.  An event that cannot be decoded is a row with nulls, never an
    error: one bad publisher must not stop all readers of the log.
    """
    arrow = import_pyarrow()
    decoded = _Decoded()
    for one in stored:
        decoded.add(one)
    decoded.end()
    arrays = _spread(stored, decoded.headers) | {
        "table": _few_names(decoded.tables), "key": decoded.keys, "action": _few_names(decoded.actions),
        "value": _raw_array(decoded.values, has_nulls=decoded.has_nulls),
        "version": decoded.versions, "timestamp": decoded.timestamps,
    }  # fmt: skip
    target = schema(with_frames=False)
    batch = arrow.RecordBatch.from_arrays(
        [_array(arrow, arrays[field.name], field.type) for field in target], schema=target
    )
    if not with_frames:
        return batch
    own = _at_first_rows(stored, list(_boundaries(stored, decoded, batch)))
    return arrow.RecordBatch.from_arrays([*batch.columns, *own], schema=schema(with_frames=True))


def _rows(frame: bytes, header: Header) -> list[_Row] | None:
    try:
        rows = _decode_rows(frames.body(frame, header))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return rows if len(rows) == header.count else None


def _boundaries(
    stored: Sequence[StoredFrame], decoded: _Decoded, batch: pyarrow.RecordBatch
) -> Iterator[tuple[Any, ...]]:
    """Each frame's own columns: what rebuilds it, or the original when that does not give the same bytes."""
    encoded = encode_events(batch)
    start = 0
    for one, header, is_whole in zip(stored, decoded.headers, decoded.is_whole, strict=True):
        mac = one.frame[header.body_end + len(MAC_MARK) :] if header.flags & _SIGNED else None
        if (
            is_whole
            and header.timestamp <= VERSION_MAX
            and one.frame
            == signed(_frame_like(header, encoded.body(start, one.count), header.first, header.after, one.count), mac)
        ):
            yield one.count, header.after, header.timestamp, header.flags, mac, None
        else:
            yield one.count, header.after, min(header.timestamp, VERSION_MAX), header.flags, None, one.frame
        start += one.count


def events_of_frame(frame: bytes, first: int, count: int, *, after: int) -> bytes:
    """A frame of ``count`` events of an unsigned one, from number ``first`` on, each as it stands there."""
    header = frames.unpack(frame, bytes_max=len(frame))
    skipped = first - header.first
    events = _split(frames.body(frame, header))[skipped : skipped + count]
    body = pack_body([bytes(event) for event in events])
    return _frame_like(header, body, first, after, count)


def _frame_like(header: Header, body: bytes, first: int, after: int, count: int) -> bytes:
    """A frame of the same stream and time, as our own publishers make it, without a signature."""
    return frames.pack(
        Kind.DATA, header.guid, header.topic, body, first=first, after=after, count=count,
        timestamp=header.timestamp, flags=header.flags,
    )  # fmt: skip


def _encode_without_length(items: Sequence[object]) -> memoryview:
    """The items in msgpack, one after the other."""
    marker_bytes = 1 if len(items) < 16 else 3 if len(items) < 65_536 else 5
    return memoryview(_encode(items))[marker_bytes:]


def _raw_array(values: Sequence[msgspec.Raw], *, has_nulls: bool) -> Any:
    """Raw values as a binary column: joined in C, without an object for each."""
    arrow = import_pyarrow()
    if has_nulls:
        return arrow.array([None if value is None else bytes(value) for value in values], arrow.binary())
    import numpy  # noqa: PLC0415

    ends = numpy.zeros(len(values) + 1, numpy.int32)
    numpy.cumsum(numpy.fromiter(map(len, values), numpy.int32, len(values)), out=ends[1:])
    buffers = [None, arrow.py_buffer(ends), arrow.py_buffer(_encode_without_length(values))]
    return arrow.Array.from_buffers(arrow.binary(), len(values), buffers)


def _few_names(values: Sequence[str]) -> Any:
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


def _at_first_rows(stored: Sequence[StoredFrame], boundaries: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The frames' own columns: set in the first row of each frame, null in the others."""
    arrow = import_pyarrow()
    import numpy  # noqa: PLC0415

    counts = numpy.fromiter((one.count for one in stored), numpy.int64, len(stored))
    is_first = numpy.zeros(counts.sum(), numpy.bool_)
    is_first[numpy.cumsum(counts) - counts] = True
    rows = arrow.array(numpy.cumsum(is_first) - 1, mask=~is_first)
    columns = zip(*boundaries, strict=True)
    return [
        arrow.array(column, getattr(arrow, kind)()).take(rows)
        for kind, column in zip(FRAME_COLUMNS.values(), columns, strict=True)
    ]


def _array(arrow: Any, values: Any, kind: Any) -> Any:
    return values if isinstance(values, arrow.Array) else arrow.array(values, kind)
