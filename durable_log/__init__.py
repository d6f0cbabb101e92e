"""A sharded, durable, replayable log of frames.

`open` takes a URL or a configuration and returns a `LogApi`::

    with durable_log.open("sqlite:///dir/log.db") as log:
        log.append(frames)
"""

from durable_log.errors import (
    LogCorrupt,
    LogError,
    LogNotFound,
    LogReplaced,
    LogUnavailable,
    OffsetTooOld,
    RecordConflict,
    SegmentsRefused,
)
from durable_log.loading import open_log as open
from durable_log.log_api import (
    Appended,
    DroppedRange,
    LogApi,
    Record,
    Segment,
    ShardState,
    StoredFrame,
    StreamState,
    shard_of,
)
from durable_log.segments.arrow import arrow_batches
from durable_log.segments.locations import SegmentLocations, segment_locations

__all__ = [
    "Appended",
    "DroppedRange",
    "LogApi",
    "LogCorrupt",
    "LogError",
    "LogNotFound",
    "LogReplaced",
    "LogUnavailable",
    "OffsetTooOld",
    "Record",
    "RecordConflict",
    "Segment",
    "SegmentLocations",
    "SegmentsRefused",
    "ShardState",
    "StoredFrame",
    "StreamState",
    "arrow_batches",
    "open",
    "segment_locations",
    "shard_of",
]
