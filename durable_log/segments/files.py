"""Sealed segments: Parquet files with an index of their own, written once, checked before they are believed.

A file has the columns of `durable_log.segments.columns`, rows in order of their offsets, row groups that begin with a
frame, and in its metadata which numbers of which streams each row group has.  Its size and SHA-256 are in the manifest,
outside of the file; the first process that opens it compares them, so a byte that was flipped or cut off gives
LogCorrupt and nothing else. The metadata also say which log made the file, and its offsets, so that a manifest can be
made of the files alone.
"""

from __future__ import annotations

import base64
import bisect
import collections
import contextlib
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from durable_log.errors import LogError
from durable_log.log_api import DroppedRange, Segment, StoredFrame
from durable_log.segments import columns
from durable_log.segments.columns import EVENT_COLUMNS, import_pyarrow
from durable_log.segments.group_cache import GroupCache
from durable_log.segments.rebuilding import FEW_VALUES, FrameRows
from durable_log.segments.store import FoundSegment, SegmentName, SegmentStore, corrupt, digest

if TYPE_CHECKING:
    import pyarrow

FORMAT_VERSION = 2
ROW_GROUP_EVENTS = 65_536
ROW_GROUP_BYTES = 32 << 20

_INDEX = b"heliograph.index"
_OPENED_MAX = 256
"""Segments of which a reader remembers what their files say."""
_COUNTING_COLUMNS = ("offset", "seq", "version", "timestamp", "appended_ns")


class _StreamRange(msgspec.Struct, array_like=True):
    """Numbers of a stream in a row group.  Others may be missing between the two."""

    group: int
    guid: bytes
    topic: str
    first: int
    last: int


class _Index(msgspec.Struct, array_like=True):
    version: int
    identity: str
    """Of the log that made the file."""
    shards: int
    """How many shards it has."""
    shard: int
    first: int
    end: int
    offsets: list[int]
    """First offset of each row group."""
    streams: list[_StreamRange]
    lost: str = ""
    """As in `Segment`, and the next one too."""
    dropped: tuple[DroppedRange, ...] = ()


# -- writing


def encode_lost(ranges: Iterable[tuple[int, int]]) -> str:
    """What `Segment.lost` says of ranges of offsets."""
    return " ".join(f"{first}-{end}" for first, end in ranges)


class SegmentEnding(NamedTuple):
    """What is known of a segment when all of it is written."""

    end: int
    lost: str = ""
    """As in `Segment`, and the next one too."""
    dropped: tuple[DroppedRange, ...] = ()


def write_segment(
    store: SegmentStore,
    maker: tuple[str, int],
    shard: int,
    first: int,
    portions: Iterable[pyarrow.RecordBatch],
    ending: Callable[[], SegmentEnding],
) -> Segment:
    """Write a segment and stage it (`SegmentStore.stage`).  Until it is published only readers that find it in the
    manifest look at it.

    ``maker`` is the log: its identity, and how many shards it has.  ``portions`` are batches with all columns of a
    segment, in order, each beginning with a frame; each becomes a row group.  ``ending`` is asked when all are written.
    Raises LogError when there is no room for it, LogUnavailable.
    """
    summary = _Summary(*maker, shard, first)
    index = summary.index
    with store.new_file(shard) as path:
        try:
            with _new_parquet(path) as writer:
                for batch in portions:
                    summary.add(batch)
                    writer.write_batch(batch, row_group_size=batch.num_rows)
                index.end, index.lost, index.dropped = ending()
                # As text: the format allows nothing else there, and Polars insists on it.
                writer.add_key_value_metadata({_INDEX: base64.b64encode(msgspec.msgpack.encode(index))})
            size, sha256 = path.stat().st_size, digest(path)
            final = store.stage(path, shard, SegmentName.new(first, index.end, index.identity), sha256)
        except OSError as error:
            raise LogError(
                f"a segment cannot be written in {store.place}; its events stay where they are: {error}"
            ) from error
    return Segment(
        shard, first, index.end, final, summary.rows, size, sha256,
        summary.appended_min, summary.appended_max, summary.timestamp_min, summary.timestamp_max, lost=index.lost,
        dropped=index.dropped,
    )  # fmt: skip


def _new_parquet(path: pathlib.Path) -> Any:
    return import_pyarrow().parquet.ParquetWriter(
        path, columns.schema(with_frames=True), compression="zstd", write_page_checksum=True,
        use_dictionary=[name for name, kind in EVENT_COLUMNS.items() if kind == "string" or name == "guid"],
        column_encoding=dict.fromkeys(_COUNTING_COLUMNS, "DELTA_BINARY_PACKED"),
    )  # fmt: skip


class _Summary:
    """What is said about a file beside its rows."""

    def __init__(self, identity: str, shards: int, shard: int, first: int) -> None:
        self.rows = 0
        self.index = _Index(FORMAT_VERSION, identity, shards, shard, first, first, [], [])
        self.appended_min = self.appended_max = self.timestamp_min = self.timestamp_max = 0

    def add(self, batch: pyarrow.RecordBatch) -> None:
        arrow = import_pyarrow()
        group = len(self.index.offsets)
        self.index.offsets.append(batch.column("offset")[0].as_py())
        table = arrow.Table.from_batches([batch])
        ranges = table.group_by(["guid", "topic"]).aggregate([("seq", "min"), ("seq", "max")])
        self.index.streams += [
            _StreamRange(group, row["guid"], row["topic"], row["seq_min"], row["seq_max"]) for row in ranges.to_pylist()
        ]
        self.appended_min, self.appended_max = self._widen(
            batch.column("appended_ns"), self.appended_min, self.appended_max
        )
        self.timestamp_min, self.timestamp_max = self._widen(
            batch.column("timestamp"), self.timestamp_min, self.timestamp_max
        )
        self.rows += batch.num_rows

    @staticmethod
    def _widen(column: Any, low: int, high: int) -> tuple[int, int]:
        import pyarrow.compute  # noqa: PLC0415

        found = pyarrow.compute.min_max(column).as_py()
        if found["min"] is None:
            return low, high
        return (min(low, found["min"]) if low else found["min"]), max(high, found["max"])


# -- reading


class _Opened:
    """What is kept of a file that was checked.  No descriptor is held."""

    def __init__(self, metadata: Any, index: _Index) -> None:
        self.metadata = metadata
        self.index = index
        self.streams: dict[tuple[bytes, str], list[_StreamRange]] = {}
        for one in index.streams:
            self.streams.setdefault((one.guid, one.topic), []).append(one)


class Description(NamedTuple):
    """What a file says of itself."""

    identity: str
    """Of the log that made it."""
    shards: int
    """How many that log has."""
    segment: Segment


def describe(store: SegmentStore, found: FoundSegment) -> Description:
    """Read all of a segment, published or not.  Raises LogCorrupt when it is not sound, LogUnavailable."""
    shard, name, path = found
    bare = Segment(shard, name.first, name.end, path, 0, 0, "", 0, 0, 0, 0)
    summary = _Summary("", 0, shard, name.first)
    with _translated(bare), store.opened(bare) as file:
        with import_pyarrow().parquet.ParquetFile(file, page_checksum_verification=True) as opened:
            index = _decode_index(bare, opened.metadata)
            for group in range(opened.num_row_groups):
                for batch in opened.read_row_group(group, use_threads=False).combine_chunks().to_batches():
                    summary.add(batch)
        size, sha256 = os.stat(file).st_size, digest(file)
    segment = bare._replace(
        rows=summary.rows, bytes=size, sha256=sha256, appended_ns_min=summary.appended_min,
        appended_ns_max=summary.appended_max, timestamp_min=summary.timestamp_min, timestamp_max=summary.timestamp_max,
        lost=index.lost, dropped=index.dropped,
    )  # fmt: skip
    return Description(index.identity, index.shards, segment)


def _decode_index(segment: Segment, metadata: Any) -> _Index:
    """The file's own index, compared with what is known of it.  Raises LogCorrupt, msgspec.MsgspecError, ValueError."""
    encoded = base64.b64decode((metadata.metadata or {}).get(_INDEX, b""))
    version = msgspec.msgpack.decode(encoded, type=list)[:1]
    if version != [FORMAT_VERSION]:
        raise corrupt(segment, f"has format {version}; this release reads {FORMAT_VERSION}")
    index = msgspec.msgpack.decode(encoded, type=_Index)
    if (index.shard, index.first, index.end) != (segment.shard, segment.first, segment.end):
        raise corrupt(segment, f"says that it is shard {index.shard}, offsets {index.first} to {index.end}")
    return index


class SegmentReader:
    """Reads segments of a log and remembers, within bounds, what it has checked and rebuilt.  For any thread."""

    def __init__(self, store: Callable[[], SegmentStore], *, cache_bytes_max: int) -> None:
        """``store`` is called when something is read: a log that has nothing sealed may have no place for it."""
        self._store = store
        self._lock = threading.Lock()
        self._opened: collections.OrderedDict[str, _Opened] = collections.OrderedDict()
        self._groups = GroupCache(bytes_max=cache_bytes_max)

    def frames(self, segment: Segment, offset: int) -> Iterator[StoredFrame]:
        """Frames from the one that covers ``offset`` on; the next one when compaction has removed it."""
        offsets = self._open(segment).index.offsets
        for group in range(max(0, bisect.bisect_right(offsets, offset) - 1), len(offsets)):
            rows = self._rows(segment, group)
            for portion in range(rows.portion_at(offset), rows.portions):
                yield from (one for one in self._frames(segment, group, rows, portion) if one.end > offset)

    def topics(self, segment: Segment) -> set[str]:
        """The topics of which the segment has events."""
        return {topic for _, topic in self._open(segment).streams}

    def stream_ranges(self, segment: Segment, guid: bytes, topic: str) -> list[tuple[int, int, int]]:
        """``(first, last, row group)`` of what the segment has of a stream."""
        found = self._open(segment).streams.get((guid, topic), ())
        return [(one.first, one.last, one.group) for one in found]

    def stream_frames(
        self, segment: Segment, group: int, guid: bytes, topic: str, first: int, last: int
    ) -> list[tuple[int, StoredFrame]]:
        """The frames that have any of these numbers of a stream in a row group, each with the number of its first event
        that counts."""
        rows = self._rows(segment, group)
        frames = [one for portion in rows.portions_of(guid, topic, first, last)
                  for one in self._frames(segment, group, rows, portion)]  # fmt: skip
        numbered = [(header.first + one.skipped, one) for one in frames
                    if ((header := one.header()).guid, header.topic) == (guid, topic)]  # fmt: skip
        return [(number, one) for number, one in numbered if number <= last and number + one.count > first]

    def find(self, segment: Segment, appended_ns: int) -> int:
        """The first offset appended at or after a time; the end of the segment when there is none."""
        for batch in self.batches(segment, segment.first, segment.end, ["offset", "appended_ns"]):
            times = batch.column("appended_ns").to_numpy()
            position = int(times.searchsorted(appended_ns))
            if position < len(times):
                return int(batch.column("offset")[position].as_py())
        return segment.end

    def batches(
        self, segment: Segment, start: int, end: int, names: Sequence[str] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """The rows of these offsets as they are in the file, a row group at a time, only the columns asked for."""
        return (batch for some, _ in self.portions(segment, start, end, names) for batch in some)

    def portions(
        self, segment: Segment, start: int, end: int, names: Sequence[str] | None = None
    ) -> Iterator[tuple[list[pyarrow.RecordBatch], int]]:
        """The same, each row group with the offset where the next one goes on."""
        wanted = list(EVENT_COLUMNS) if names is None else list(names)
        offsets = self._open(segment).index.offsets
        first = max(0, bisect.bisect_right(offsets, start) - 1)
        for group in range(first, bisect.bisect_left(offsets, end)):
            following = offsets[group + 1] if group + 1 < len(offsets) else segment.end
            is_cut = offsets[group] < start or end < following
            # Offsets are read too, to cut: compaction may have removed some.
            table = self._read_group(segment, group, [*wanted, *({"offset"} - set(wanted) if is_cut else ())])
            if is_cut:
                places = table.column("offset").to_numpy()
                low, high = (int(places.searchsorted(limit)) for limit in (start, end))
                table = table.slice(low, high - low)
            yield table.select(wanted).combine_chunks().to_batches(), following

    def forget(self, segment: Segment) -> None:
        """Drop what is remembered of a file, because it is gone or another has its place."""
        with self._lock:
            self._opened.pop(segment.path, None)
        self._groups.forget(segment.path)

    def _open(self, segment: Segment) -> _Opened:
        with self._lock:
            opened = self._opened.get(segment.path)
            if opened is not None:
                self._opened.move_to_end(segment.path)
                return opened
        store = self._store()
        store.check(segment)
        with _translated(segment), store.opened(segment) as path:
            metadata = import_pyarrow().parquet.read_metadata(path)
            index = _decode_index(segment, metadata)
        opened = _Opened(metadata, index)
        with self._lock:
            self._opened[segment.path] = opened
            while len(self._opened) > _OPENED_MAX:
                self._opened.popitem(last=False)
        return opened

    def _read_group(
        self, segment: Segment, group: int, names: Sequence[str] | None = None, *, dictionaries: Sequence[str] = ()
    ) -> pyarrow.Table:
        opened = self._open(segment)
        with _translated(segment), self._store().opened(segment) as path:
            file = import_pyarrow().parquet.ParquetFile(
                path, metadata=opened.metadata, page_checksum_verification=True, read_dictionary=dictionaries
            )
            with file:
                return file.read_row_group(group, columns=names, use_threads=False)

    def _rows(self, segment: Segment, group: int) -> FrameRows:
        def read() -> FrameRows:
            table = self._read_group(segment, group, dictionaries=FEW_VALUES)
            with _translated(segment):
                return FrameRows(table)

        return self._groups.rows((segment.path, group), read)

    def _frames(self, segment: Segment, group: int, rows: FrameRows, portion: int) -> list[StoredFrame]:
        with _translated(segment):
            return self._groups.frames((segment.path, group), rows, portion)


@contextlib.contextmanager
def _translated(segment: Segment) -> Iterator[None]:
    """What goes wrong inside is the file's fault: it was checked, so it was sealed so, or has changed since."""
    arrow = import_pyarrow()
    try:
        yield
    except FileNotFoundError as error:
        raise corrupt(segment, "is missing") from error
    except (arrow.ArrowException, OSError, msgspec.MsgspecError, KeyError, ValueError, TypeError) as error:
        raise corrupt(segment, f"cannot be read: {error}") from error
