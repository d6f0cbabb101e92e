"""The ``[publisher_service]`` option group: the service, and the workers that send to it."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from pubsub_api import config
from pubsub_api.runtime.options import DAY_S, KIB, MIB, advanced, seconds, size

GROUP = "publisher_service"

OPTIONS: Sequence[cfg.Opt] = (
    cfg.StrOpt("health", default="unix", choices=["off", "unix", "http"],
               help="Where the service tells how it is: on a socket file beside its own, over HTTP on loopback, or not."
               ),
    cfg.PortOpt("health_port", default=8867, help="Port of health = http, on 127.0.0.1. 0 lets the system choose one."),
    cfg.ListOpt("watch_tables", default=[],
                help="Tables that controllers write without a bus. The elected service publishes every change of "
                     "them, from every writer. Needs [pubsub] enable_df_pub_sub."),
    *advanced(
        cfg.StrOpt("log_level", choices=["debug", "info", "warning", "error"], mutable=True,
                   help="What the service logs; it wins over the command line. Read again at SIGHUP."),
        seconds("send_timeout", 30.0, 0.0, DAY_S,
                "How long sending waits for room in the window before it raises a retriable error."),
        size("journal_bytes_max", 64 * MIB,
             "Size of the journal beside the socket, from which a restarted service knows what its predecessor "
             "published, and repairs it. 0: no journal; then subscribers resync after the service died.", low=0),
    ),
)  # fmt: skip

WINDOW_EVENTS_MAX = 65_536
WINDOW_BYTES_MAX = 16 * MIB
"""What a worker may hold, of memory as well, until the service has acknowledged it.  Then sending waits."""
WORKERS_MAX = 1024
"""Workers connected at the same time, far more than a host has cores.  More are refused, and try again."""
WORKERS_REMEMBERED_MAX = 10_000
"""Workers whose last batch number is kept, connected or not, so that nothing is published twice."""
READ_BYTES_MAX = 256 * KIB
"""Bytes read from one worker before the next one gets its turn: a millisecond."""
DRAIN_TIMEOUT_S = 10.0
"""How long a service that was told to stop goes on taking what workers have sent: less than systemd waits."""
HELLO_TIMEOUT_S = 10.0
"""A connection that has not greeted for this long is closed."""
WATCH_PORTION = 500
"""Changes of the database that are read and published in one go."""
WATCH_NOTE_INTERVAL_S = 1.0
"""How far the watched tables were followed is noted this often.  What came after the last note is published again by
the next service that is elected, and recognised by its version."""
OUTBOX_SHOWN_MAX = 1000
"""The status counts at most so many changes in the outbox: counting is a read of the database."""


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


def register(conf: cfg.ConfigOpts) -> None:
    """Register what ``conf`` lacks, and read every value once.  Raises InvalidConfig."""
    conf.register_opts(config.PUBSUB_OPTIONS, group=config.GROUP)
    conf.register_opts(OPTIONS, group=GROUP)
    config.check_group(conf, config.GROUP, config.PUBSUB_OPTIONS)
    config.check_group(conf, GROUP, OPTIONS)
