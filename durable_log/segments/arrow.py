"""Any range of a shard as Arrow record batches, hot or sealed, for computing with events."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from durable_log.errors import LogCorrupt
from durable_log.log_api import LogApi, Segment
from durable_log.segments.columns import events_batch
from durable_log.storage.segmented import SegmentedLog

if TYPE_CHECKING:
    import pyarrow

BATCH_EVENTS = 8_192
BATCH_BYTES = 16 << 20


def arrow_batches(
    log: LogApi, shard: int, start: int, end: int, *, columns: Sequence[str] | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """Events ``start`` up to but without ``end`` of a shard, in order; ``columns`` are names of `EVENT_COLUMNS`.

    Sealed ranges are read as they are in the files, hot ones are decoded in bulk.  Stops early at the end of the shard.
    Raises OffsetTooOld, LogCorrupt, DriverDependencyMissing.
    """
    segments = log.segments(shard) if isinstance(log, SegmentedLog) else []
    offset = start
    while offset < end:
        segment = _covering(segments, offset)
        if segment is not None and isinstance(log, SegmentedLog):
            try:
                for batches, following in log.segment_reader.portions(segment, offset, end, columns):
                    yield from batches
                    offset = following
                offset = segment.end
            except LogCorrupt:
                if log.is_listed(segment):
                    raise
                segments = log.segments(shard)  # it was dropped or compacted meanwhile
            continue
        frames = log.read(shard, offset, events_max=BATCH_EVENTS, bytes_max=BATCH_BYTES)
        if not frames or frames[0].offset >= end:
            return
        batch = events_batch(frames)
        places = batch.column("offset").to_numpy()
        low, high = (int(places.searchsorted(limit)) for limit in (offset, end))
        batch = batch.slice(low, high - low)
        yield batch if columns is None else batch.select(list(columns))
        offset = frames[-1].end


def _covering(segments: Sequence[Segment], offset: int) -> Segment | None:
    position = bisect.bisect_right(segments, offset, key=operator.attrgetter("first")) - 1
    found = segments[position] if position >= 0 else None
    return found if found is not None and found.end > offset else None
