"""The ``[db]`` option group: which database, and the bounds that all drivers keep.  Drivers add groups of their own."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

GROUP = "db"

_MIB = 1024 * 1024


def seconds(name: str, default: float, low: float, high: float, help_text: str) -> cfg.Opt:
    """An option that is a time."""
    return cfg.Opt(name, type=types.Float(min=low, max=high), default=default, help=f"{help_text} Seconds.")


OPTIONS: Sequence[cfg.Opt] = (
    cfg.StrOpt("driver", default="",
               help="Driver: the name of a heliograph.db_driver entry point. Empty: the scheme of url."),
    cfg.StrOpt("url", default="sqlite:///var/lib/heliograph/heliograph.db", secret=True,
               help="The database: sqlite:///path/file.db, postgresql://[user:password@]host:port/database, "
                    "etcd://host:port, redis://[user:password@]host:port/db, or unix:///path/of/redis.sock."),
    seconds("connect_timeout", 5.0, 0.05, 300.0, "How long an attempt to reach the database may take."),
    seconds("operation_timeout", 10.0, 0.05, 3600.0,
            "How long one operation may take, waiting for others included. Then the database counts as unavailable."),
    cfg.IntOpt("value_bytes_max", default=512 * 1024, min=1024, max=64 * _MIB,
               help="Largest value of an object, as msgpack. An event carries it, so frame_bytes_max must have room "
                    "for it. Bytes."),
    cfg.IntOpt("transaction_writes_max", default=500, min=1, max=10_000,
               help="Most writes that one transaction takes; etcd takes fewer."),
    cfg.IntOpt("transaction_bytes_max", default=4 * _MIB, min=1024, max=256 * _MIB,
               help="Most bytes that the values of one transaction of several writes have together, as msgpack."),
    cfg.IntOpt("snapshot_portion", default=2000, min=1, max=1_000_000,
               help="Objects that a snapshot reads at a time."),
)  # fmt: skip


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator: the group that all drivers share.  Each driver lists its own."""
    return [(GROUP, OPTIONS)]
