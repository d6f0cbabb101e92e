"""Which events of some segments stay when they are compacted: found with little memory, however many objects there are.

Theory of operation.  What decides about an event is read once, from a few columns, and written to a file without a
name, in which the rows of each row group are sorted into buckets by a hash of their key.  Then one bucket after the
other is looked at.  All events of an object are in one bucket, so only the objects of one are in memory at a time,
about `BUCKET_EVENTS`.  The result is a bit for each offset.
"""

from __future__ import annotations

import bisect
import dataclasses
import mmap
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from durable_log.log_api import Segment
from durable_log.segments.columns import import_pyarrow
from durable_log.segments.files import SegmentReader
from pubsub_api.core.frame import Flag
from pubsub_api.core.topics import FilterSet

if TYPE_CHECKING:
    import numpy
    import pyarrow

BUCKET_EVENTS = 100_000
"""Events of a bucket, unless an object has more: as many objects are in memory at most, about 50 MB."""

NEVER_NS = 1 << 62
_ALWAYS = 1 << 62
_READ = ("topic", "table", "key", "action", "frame_flags", "guid", "seq", "version", "timestamp", "offset",
         "appended_ns")  # fmt: skip
_SPILLED = ("topic", "table", "key", "guid", "seq", "version", "timestamp", "offset", "appended_ns", "is_delete",
            "is_signed")  # fmt: skip

Object = tuple[str, str, str]
"""Topic, table and key."""


class _Rank(NamedTuple):
    """What decides whether an event is older than another one of its object."""

    guid: bytes
    seq: int
    version: int
    timestamp: int
    offset: int
    appended_ns: int
    is_delete: bool

    def is_older(self, other: _Rank) -> bool:
        if self.version > other.version:
            return False
        if self.guid == other.guid:
            return self.seq < other.seq
        return (self.timestamp, self.offset) < (other.timestamp, other.offset)


@dataclasses.dataclass(slots=True)
class _Found:
    """What the segments have of an object."""

    ranks: list[_Rank] = dataclasses.field(default_factory=list)
    """Its events of which none is older than another; nearly always one."""
    last: int = 0
    """The last offset of any of its events, `_ALWAYS` when one is in a frame that stays whole."""


class OffsetBits:
    """A bit for each offset of a range."""

    def __init__(self, first: int, end: int) -> None:
        import numpy  # noqa: PLC0415

        self._first = first
        self._bits = numpy.zeros((end - first + 7) // 8, numpy.uint8)

    def add(self, offsets: numpy.ndarray[Any, Any]) -> None:
        import numpy  # noqa: PLC0415

        places = offsets - self._first
        numpy.bitwise_or.at(self._bits, places >> 3, numpy.left_shift(1, places & 7).astype(numpy.uint8))

    def __contains__(self, offset: int) -> bool:
        place = offset - self._first
        return bool(self._bits[place >> 3] >> (place & 7) & 1)

    def count(self, first: int, end: int) -> int:
        """How many are set from one offset up to but without another."""
        import numpy  # noqa: PLC0415

        low, high = first - self._first, end - self._first
        bits = numpy.unpackbits(self._bits[low >> 3 : (high + 7) >> 3], bitorder="little")
        return int(bits[low & 7 : (low & 7) + high - low].sum())


@dataclasses.dataclass
class Kept:
    """What stays."""

    offsets: OffsetBits
    objects: int = 0
    """Objects of which something stays."""
    oldest_delete_ns: int = NEVER_NS
    """When the oldest delete was appended that stays because it is young, or only this time."""


def find_kept(
    reader: SegmentReader,
    segments: Sequence[Segment],
    filters: FilterSet,
    *,
    expired_ns: int,
    hot: Callable[[], set[Object]],
) -> Kept:
    """Find what stays of neighbouring segments: all but what another event of them makes superfluous.

    Deletes that were appended before ``expired_ns`` go when nothing else of their object is left; ``hot`` says of which
    objects something is not sealed yet, and is called when it matters.  Raises LogCorrupt, OSError.
    """
    kept = Kept(OffsetBits(segments[0].first, segments[-1].end))
    buckets = max(1, -(-sum(segment.rows for segment in segments) // BUCKET_EVENTS))
    ends = [segment.end for segment in segments]
    with _Buckets(buckets) as spilled:
        for segment in segments:
            for batch in reader.batches(segment, segment.first, segment.end, _READ):
                spilled.add(_split(batch, filters, kept.offsets))
        for bucket in range(buckets):
            newest = _newest(spilled.read(bucket))
            kept.objects += len(newest)
            _decide(newest, kept, ends, expired_ns, hot)
    return kept


def _split(batch: pyarrow.RecordBatch, filters: FilterSet, kept: OffsetBits) -> pyarrow.RecordBatch:
    """The rows of which some may go; the others are kept at once."""
    arrow = import_pyarrow()
    from pyarrow import compute  # noqa: PLC0415

    topics = batch.column("topic").dictionary_encode()
    matching = arrow.array([filters.match(topic) for topic in topics.dictionary.to_pylist()], arrow.bool_())
    is_subject = compute.and_(matching.take(topics.indices), batch.column("table").is_valid())
    flags = compute.fill_null_forward(batch.column("frame_flags"))  # the first row of a frame has them
    is_signed = compute.not_equal(compute.bit_wise_and(flags, int(Flag.SIGNED)), 0)
    stays = compute.or_(compute.invert(is_subject), is_signed)
    kept.add(batch.column("offset").filter(stays).to_numpy())
    columns = {name: batch.column(name) for name in _READ} | {
        "is_delete": compute.equal(batch.column("action"), "delete"), "is_signed": is_signed,
    }  # fmt: skip
    return arrow.RecordBatch.from_pydict({name: columns[name] for name in _SPILLED}).filter(is_subject)


class _Buckets:
    """Rows in a file without a name, each batch of them sorted by bucket."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._bounds: list[numpy.ndarray[Any, Any]] = []
        """Of each batch, where its buckets begin."""
        self._writer: Any = None

    def __enter__(self) -> _Buckets:
        self._file = tempfile.TemporaryFile()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, batch: pyarrow.RecordBatch) -> None:
        arrow = import_pyarrow()
        import numpy  # noqa: PLC0415

        if self._writer is None:
            self._writer = arrow.ipc.new_file(self._file, batch.schema)
        hashes = (zlib.crc32(key.encode()) % self._count for key in batch.column("key").to_pylist())
        buckets = numpy.fromiter(hashes, numpy.int64, batch.num_rows)
        order = numpy.argsort(buckets, kind="stable")
        self._bounds.append(buckets[order].searchsorted(numpy.arange(self._count + 1)))
        self._writer.write_batch(batch.take(arrow.array(order)))

    def read(self, bucket: int) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a bucket.  Nothing can be added after it."""
        arrow = import_pyarrow()
        if self._writer is None:
            return
        self._writer.close()
        self._file.flush()
        # Mapped: of each batch only what is looked at is read.
        mapped = arrow.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        reader = arrow.ipc.open_file(mapped)
        for number, bounds in enumerate(self._bounds):
            first, end = int(bounds[bucket]), int(bounds[bucket + 1])
            yield reader.get_batch(number).slice(first, end - first)


def _newest(batches: Iterable[pyarrow.RecordBatch]) -> dict[Object, _Found]:
    newest: dict[Object, _Found] = {}
    guids: dict[bytes, bytes] = {}
    for batch in batches:
        rows = zip(*(batch.column(name).to_pylist() for name in _SPILLED), strict=True)
        for topic, table, key, guid, seq, version, timestamp, offset, appended_ns, is_delete, is_signed in rows:
            guid = guids.setdefault(guid, guid)
            rank = _Rank(guid, seq, version, timestamp, offset, appended_ns, is_delete)
            found = newest.setdefault((topic, table, key), _Found())
            found.last = max(found.last, _ALWAYS if is_signed else rank.offset)
            if not any(rank.is_older(one) for one in found.ranks):
                found.ranks[:] = [one for one in found.ranks if not one.is_older(rank)]
                found.ranks.append(rank)
    return newest


def _decide(
    newest: dict[Object, _Found], kept: Kept, ends: Sequence[int], expired_ns: int, hot: Callable[[], set[Object]]
) -> None:
    import numpy  # noqa: PLC0415

    offsets: list[int] = []
    for name, found in newest.items():
        is_alone = len(found.ranks) == 1 and found.last != _ALWAYS
        for rank in found.ranks:
            if rank.is_delete and is_alone:
                segment_end = ends[bisect.bisect_right(ends, rank.offset)]
                if rank.appended_ns < expired_ns and found.last < segment_end:
                    if name not in hot():
                        continue
                else:
                    kept.oldest_delete_ns = min(kept.oldest_delete_ns, rank.appended_ns)
            offsets.append(rank.offset)
    kept.offsets.add(numpy.array(offsets, numpy.int64))
