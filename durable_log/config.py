"""The ``[log]`` option group: which log, and the bounds that all drivers keep.  Drivers add groups of their own."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

GROUP = "log"
SHARDS_DEFAULT = 16
SHARDS_MAX = 4096

_MIB = 1024 * 1024
_DAY_S = 86_400.0


def _seconds(name: str, default: float, low: float, high: float, help_text: str) -> cfg.Opt:
    return cfg.Opt(name, type=types.Float(min=low, max=high), default=default, help=f"{help_text} Seconds.")


OPTIONS: Sequence[cfg.Opt] = (
    cfg.StrOpt("driver", default="",
               help="Driver: the name of a heliograph.log_driver entry point. Empty: the scheme of url."),
    cfg.StrOpt("url", default="sqlite:///var/lib/heliograph/log.db", secret=True,
               help="The log: sqlite:///path/log.db for the processes of one host, or "
                    "redis://[user:password@]host:port/db for several hosts."),
    cfg.IntOpt("shards", min=1, max=SHARDS_MAX,
               help=f"Shards of a log that is made now; one that exists must have as many. Unset: {SHARDS_DEFAULT} "
                    "for a new log, and whatever an existing one has."),
    _seconds("connect_timeout", 5.0, 0.05, 300.0, "How long an attempt to reach the store may take."),
    _seconds("operation_timeout", 10.0, 0.05, 3600.0,
             "How long one operation may take, waiting for others included. Then the log counts as unavailable."),
    cfg.IntOpt("frame_bytes_max", default=16 * _MIB, min=65_536, max=512 * _MIB,
               help="Largest frame that is stored. Bytes."),
    cfg.IntOpt("record_bytes_max", default=_MIB, min=1024, max=64 * _MIB, help="Largest value of a record. Bytes."),
    cfg.IntOpt("missing_ranges_max", default=1000, min=1, max=1_000_000,
               help="Holes that are remembered per stream. With more, the oldest are forgotten, and what would fill "
                    "them is refused from then on."),
    cfg.StrOpt("segment_directory", default="",
               help="Directory of the sealed segments. Empty: beside the file of an embedded log; a log that several "
                    "hosts share needs a directory that all of them have mounted."),
    cfg.IntOpt("segment_cache_bytes", default=64 * _MIB, min=0, max=64 * 1024 * _MIB,
               help="Frames rebuilt from segments that a reader keeps for the next read. Bytes."),
    cfg.IntOpt("segment_events", default=1_000_000, min=1, max=100_000_000,
               help="Events of a segment at most."),
    cfg.IntOpt("seal_events", default=200_000, min=1, max=100_000_000,
               help="A shard is sealed when it has this many events that are not, or when one of them is older than "
                    "seal_age."),
    _seconds("seal_age", 600.0, 0.0, 365 * _DAY_S, "See seal_events."),
    _seconds("maintenance_interval", 10.0, 0.05, _DAY_S, "How often it is looked whether there is something to seal "
             "or to drop."),
    _seconds("retention_age", 0.0, 0.0, 100 * 365 * _DAY_S,
             "What was appended longer ago is dropped, whole frames and segments at a time. 0: never."),
    _seconds("stream_forget_age", 30 * _DAY_S, 60.0, 100 * 365 * _DAY_S,
             "A stream that was idle this long is forgotten. Should its frames be appended again, they are stored "
             "again."),
    cfg.ListOpt("compact_topics", default=[],
                help="Topic filters. Of the sealed events of these topics only the newest of each object stays."),
    _seconds("compact_tombstone_age", 7 * _DAY_S, 0.0, 100 * 365 * _DAY_S,
             "A delete in a compacted topic stays this long, for those who were away."),
    cfg.IntOpt("compact_objects_max", default=5_000_000, min=1, max=1_000_000_000,
               help="Objects of a shard that compaction keeps in memory. A shard with more is not compacted."),
    cfg.IntOpt("retention_bytes", default=0, min=0, max=2**60,
               help="The oldest is dropped while the log is larger than this, segments and what is not sealed "
                    "together. 0: never. Bytes."),
)  # fmt: skip


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator: the group that all drivers share.  Each driver lists its own."""
    return [(GROUP, OPTIONS)]
