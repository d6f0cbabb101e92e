"""The ``[db]`` option group: which database, and the bounds that all drivers keep.  Drivers add groups of their own."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from pubsub_api.runtime.options import KIB, MIB, advanced, count, seconds, size, text, tls_files

GROUP = "db"

OPTIONS: Sequence[cfg.Opt] = (
    text("url", "sqlite:///var/lib/heliograph/heliograph.db",
         "The database, whose scheme names the driver: sqlite:///path/file.db, "
         "postgresql://[user:password@]host:port/database?schema=name, "
         "etcd://[user:password@]host:port[,host:port...]/prefix, redis://[user:password@]host:port/db?prefix=name, or "
         "unix:///path/of/redis.sock.",
         secret=True),
    seconds("operation_timeout", 10.0, 0.05, 3600.0,
            "How long one operation may take, waiting for others included. Then the database counts as unavailable."),
    *advanced(
        count("connections_max", 64, 2, 10_000, "Connections of one process to a database server. Every running call, "
              "every wait and, with PostgreSQL, every open snapshot holds one. With etcd transactions have as many of "
              "their own."),
        size("value_bytes_max", 512 * KIB, "Largest value of an object, as msgpack. An event carries it, so "
             "frame_bytes_max must have room for it.", high=64 * MIB),
        *tls_files(),
    ),
)  # fmt: skip

CONNECT_TIMEOUT_S = 5.0
"""How long an attempt to reach the database may take: longer than a name server and a handshake over a slow link."""
SNAPSHOT_PORTION = 2000
"""Objects that a snapshot reads at a time: some milliseconds of the database, and about a megabyte."""
SNAPSHOT_IDLE_TIMEOUT_S = 60.0
"""How long a snapshot of PostgreSQL or Redis may stand still between two portions.  While one is open, the server keeps
what is overwritten; a reader that takes a minute for one portion has died."""
TRANSACTION_WRITES_MAX = 500
"""Most writes that one transaction takes: a few milliseconds during which others wait.  etcd takes fewer."""


def connect_timeout(conf: cfg.ConfigOpts) -> float:
    """Seconds for an attempt to reach the database: part of an operation, so never longer than one."""
    return min(CONNECT_TIMEOUT_S, float(conf[GROUP].operation_timeout))


def transaction_bytes_max(conf: cfg.ConfigOpts) -> int:
    """Most bytes that the values of one transaction of several writes have together, as msgpack: a few large ones."""
    return 8 * int(conf[GROUP].value_bytes_max)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator: the group that all drivers share.  Each driver lists its own."""
    return [(GROUP, OPTIONS)]
