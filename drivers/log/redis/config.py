"""The ``[log_redis]`` option group.  Imports nothing foreign, so that options can be listed without the library."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

GROUP = "log_redis"

OPTIONS: Sequence[cfg.Opt] = (
    cfg.StrOpt("key_prefix", default="heliograph:log:",
               help="Put before the name of every key. Logs with different prefixes share a server."),
    cfg.StrOpt("username", secret=True, help="ACL user. Unset: the one in url, else the server's default user."),
    cfg.StrOpt("password", secret=True, help="Password of the user. Unset: the one in url, else none."),
    cfg.StrOpt("ssl_ca_file",
               help="PEM file of the authorities that may sign the server's certificate, for a rediss:// url. Unset: "
                    "the system's."),
    cfg.IntOpt("connections_max", default=64, min=2, max=100_000,
               help="Connections of a process. Each thread that waits for more events holds one."),
    cfg.Opt("wait_slice", type=types.Float(min=0.01, max=60.0), default=0.25,
            help="A blocked wait looks this often whether the log was closed. Seconds."),
    cfg.IntOpt("streams_cached_max", default=100_000, min=1, max=100_000_000,
               help="Streams whose position an appending process remembers, so that it need not ask before it writes."),
)  # fmt: skip


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]
