"""The ``[publisher_service]`` option group: the service, and the workers' side of the hop to it."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

from pubsub_api import config

GROUP = "publisher_service"

_MIB = 1024 * 1024


def _seconds(name: str, default: float, low: float, high: float, help_text: str, *, mutable: bool = False) -> cfg.Opt:
    kind = types.Float(min=low, max=high)
    return cfg.Opt(name, type=kind, default=default, help=f"{help_text} Seconds.", mutable=mutable)


def _count(name: str, default: int, low: int, high: int, help_text: str, *, mutable: bool = False) -> cfg.Opt:
    return cfg.Opt(name, type=types.Integer(min=low, max=high), default=default, help=help_text, mutable=mutable)


WORKER_OPTIONS: Sequence[cfg.Opt] = (
    _count("window_events_max", 65_536, 1, 100_000_000,
           "Events that a worker holds until the service has acknowledged them."),
    _count("window_bytes_max", 16 * _MIB, 1024, 64 * 1024 * _MIB,
           "The same in bytes. When either is reached, sending waits."),
    _seconds("send_timeout", 30.0, 0.0, 86_400.0,
             "How long sending waits for room in the window before it raises a retriable error."),
    _seconds("reconnect_interval", 0.05, 0.001, 3600.0,
             "First wait before a worker connects again; later waits double, with jitter."),
    _seconds("reconnect_interval_max", 2.0, 0.001, 3600.0, "Longest wait before a worker connects again."),
)  # fmt: skip

SERVICE_OPTIONS: Sequence[cfg.Opt] = (
    _count("workers_max", 1024, 1, 65_536, "Workers connected at the same time. More are refused.", mutable=True),
    _count("workers_remembered_max", 10_000, 1, 10_000_000,
           "Workers whose last batch number is kept, connected or not, so that nothing is published twice."),
    _count("read_bytes_max", 256 * 1024, 4096, 64 * _MIB,
           "Bytes read from one worker before the next one gets its turn.", mutable=True),
    _count("journal_bytes_max", 64 * _MIB, 0, 64 * 1024 * _MIB,
           "Size of the journal beside the socket, from which a restarted service knows what its predecessor "
           "published, and repairs it. 0: no journal; then subscribers resync after the service died. Bytes."),
    _seconds("drain_timeout", 10.0, 0.0, 3600.0,
             "How long a service that was told to stop goes on taking what workers have sent.", mutable=True),
    _seconds("hello_timeout", 10.0, 0.01, 3600.0, "A connection that has not greeted for this long is closed.",
             mutable=True),
    cfg.StrOpt("health", default="unix", choices=["off", "unix", "http"],
               help="Where the service tells how it is: on a socket file beside its own, over HTTP on loopback, or not."
               ),
    cfg.PortOpt("health_port", default=8867, help="Port of health = http, on 127.0.0.1. 0 lets the system choose one."),
    cfg.StrOpt("log_level", choices=["debug", "info", "warning", "error"], mutable=True,
               help="What the service logs; it wins over the command line. Read again at SIGHUP."),
)  # fmt: skip

DUTY_OPTIONS: Sequence[cfg.Opt] = (
    cfg.ListOpt("watch_tables", default=[],
                help="Tables that controllers write without a bus. The elected service publishes every change of "
                     "them, whoever made it. Needs [pubsub] enable_df_pub_sub."),
    _count("watch_portion", 500, 1, 10_000, "Changes of the database that are read and published in one go."),
    _seconds("watch_note_interval", 1.0, 0.01, 3600.0,
             "How far the watched tables were followed is noted this often. What came after the last note is "
             "published again by the next service that is elected, and recognised by its version."),
    _seconds("database_retry_interval", 0.5, 0.01, 3600.0,
             "First wait before a database that was away when the service started is tried again; later waits double, "
             "with jitter."),
    _seconds("database_retry_interval_max", 15.0, 0.01, 3600.0, "Longest wait before it is tried again."),
    _count("outbox_shown_max", 1000, 1, 10_000, "The status counts at most so many changes in the outbox."),
)  # fmt: skip

OPTIONS: Sequence[cfg.Opt] = (*WORKER_OPTIONS, *SERVICE_OPTIONS, *DUTY_OPTIONS)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


def register(conf: cfg.ConfigOpts) -> None:
    """Register what ``conf`` lacks, and read every value once.  Raises InvalidConfig."""
    conf.register_opts(config.PUBSUB_OPTIONS, group=config.GROUP)
    conf.register_opts(OPTIONS, group=GROUP)
    config.check_group(conf, config.GROUP, config.PUBSUB_OPTIONS)
    config.check_group(conf, GROUP, OPTIONS)
