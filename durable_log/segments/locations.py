"""Where the sealed segments of a log are, for programs that read them without it, as Spark's own readers do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from durable_log.log_api import LogApi, Segment
from durable_log.storage.segmented import SegmentedLog


class SegmentLocations(NamedTuple):
    segments: Sequence[Segment]
    """In order of shard and offset.  ``path`` of each is the absolute path of a file, or the URI of an object, as in
    ``s3://bucket/prefix/0000/NAME.parquet``."""
    storage_options: Mapping[str, str]
    """What a reader of the URIs needs beside its environment, by the names that obstore and deltalake share
    (``endpoint``, ``region``, ``allow_http``, ``access_key_id``, ...).  Empty for files.  May hold a secret: not for a
    log or a page."""


def segment_locations(log: LogApi, shard: int | None = None) -> SegmentLocations:
    """The sealed segments of a shard, or of all, as the manifest lists them now, and how to reach them.

    Reads the manifest, and none of the segments.  Raises LogUnavailable, LogCorrupt.
    """
    options = log.storage_options() if isinstance(log, SegmentedLog) else {}
    return SegmentLocations(log.segments(shard), options)
