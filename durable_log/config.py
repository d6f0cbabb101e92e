"""The ``[log]`` option group: which log, and the bounds that all drivers keep.  Drivers add groups of their own."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from pubsub_api.config import GROUP as PUBSUB_GROUP
from pubsub_api.config import LOG_GROUP, LOG_URL
from pubsub_api.runtime.options import DAY_S, MIB, advanced, count, seconds, size, text

GROUP = LOG_GROUP
SHARDS_DEFAULT = 16
SHARDS_MAX = 4096

_CENTURY_S = 100 * 365 * DAY_S

OPTIONS: Sequence[cfg.Opt] = (
    LOG_URL,
    cfg.IntOpt("shards", min=1, max=SHARDS_MAX,
               help=f"Shards of a log that is made now; one that exists must have as many. Unset: {SHARDS_DEFAULT} "
                    "for a new log, and whatever an existing one has."),
    text("segment_directory", "",
         "Directory of the sealed segments, or object storage: s3://bucket/prefix, gs://bucket/prefix or "
         "az://container/prefix. Empty: beside the file of an embedded log; a log that several hosts share needs "
         "object storage or a directory that all of them have mounted.", secret=True),
    seconds("retention_age", 0.0, 0.0, _CENTURY_S,
            "What was appended longer ago is dropped, whole frames and segments at a time. 0: never."),
    size("retention_bytes", 0, "The oldest is dropped while the log is larger than this, segments and what is not "
         "sealed together. 0: never.", low=0, high=2**60),
    cfg.ListOpt("retention_topics", default=[],
                help="FILTER=SECONDS, as in audit/#=31536000: how long what is sealed of these topics is kept, in "
                     "place of retention_age. The first filter that matches holds. 0: for ever, as far as "
                     "retention_bytes allows."),
    *advanced(
        cfg.ListOpt("compact_topics", default=[],
                    help="Topic filters. Of the sealed events of these topics only the newest of each object stays."),
        seconds("compact_tombstone_age", 7 * DAY_S, 0.0, _CENTURY_S,
                "A delete in a compacted topic stays this long, for readers that were away."),
        seconds("operation_timeout", 10.0, 0.05, 3600.0,
                "How long one operation may take, waiting for others included. Then the log counts as unavailable."),
        count("seal_events", 200_000, 1, 100_000_000,
              "A shard is sealed when it has this many events that are not, or when one of them is older than "
              "seal_age. A segment has at most five times as many."),
        seconds("seal_age", 600.0, 0.0, 365 * DAY_S, "See seal_events."),
    ),
)  # fmt: skip

FRAME_BYTES_MAX = 16 * MIB
"""Largest frame that is stored, unless the bus sends larger ones: what a reader must have room for."""
SEGMENT_SEALS = 5
"""Events of a segment at most, as a multiple of ``seal_events``: a shard that nothing has sealed for long."""
MAINTENANCE_INTERVAL_S = 10.0
"""How often it is looked whether there is something to seal or to drop: a read of each shard."""
RECORD_BYTES_MAX = MIB
"""Largest value of a record: the progress of a group's stream, or its status.  Larger ones slow down every commit."""
MISSING_RANGES_MAX = 1000
"""Holes that are remembered per stream.  With more, the oldest are forgotten, and what would fill them is refused from
then on."""
SEGMENT_CACHE_BYTES = 64 * MIB
"""Frames rebuilt from segments that a reader keeps for the next read."""
OBJECT_CACHE_BYTES = 256 * MIB
"""Segments fetched from object storage that a reader keeps on disk, in files without a name in the directory of
temporary files."""
STREAM_FORGET_AGE_S = 30 * DAY_S
"""A stream that was idle this long is forgotten.  Should its frames be appended again, they are stored again."""


def frame_bytes_max(conf: cfg.ConfigOpts) -> int:
    """Largest frame that is stored."""
    return max(FRAME_BYTES_MAX, int(conf[PUBSUB_GROUP].frame_bytes_max))


def segment_events(conf: cfg.ConfigOpts) -> int:
    """Events of a segment at most."""
    return SEGMENT_SEALS * int(conf[GROUP].seal_events)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator: the group that all drivers share.  Each driver lists its own."""
    return [(GROUP, OPTIONS)]
