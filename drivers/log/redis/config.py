"""The ``[log_redis]`` option group.  Imports nothing foreign, so that options can be listed without the library."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from pubsub_api.runtime.options import advanced, text, tls_files

GROUP = "log_redis"

OPTIONS: Sequence[cfg.Opt] = advanced(
    text("key_prefix", "heliograph:log:",
         "Put before the name of every key. Logs with different prefixes share a server."),
    *tls_files()[:1],
)  # fmt: skip

CONNECT_TIMEOUT_S = 5.0
"""How long an attempt to reach the server may take."""
CONNECTIONS_MAX = 64
"""Connections of a process.  Each thread that waits for more events holds one."""
WAIT_SLICE_S = 0.25
"""A blocked wait looks this often whether the log was closed."""
REPLICAS_MIN = 1
"""Replicas that have every write before it counts as done, where sentinels or a cluster may make one of them the
master.  With more, one server that is away would stop a log of three."""
STREAMS_CACHED_MAX = 100_000
"""Streams whose position an appending process remembers, so that it need not ask before it writes."""


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]
