"""The ``[pubsub]`` option group, and how a configuration is made from files or from a URL.

A ``conf`` object is always passed; nothing here is global.  Options that the Dragonflow specification names keep their
names, and a Dragonflow file's ``[df]`` group is understood.  Times are seconds unless the name says otherwise.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Sequence

from oslo_config import cfg, types

from pubsub_api.errors import InvalidConfig, UsageError
from pubsub_api.option_names import refuse_unknown
from pubsub_api.runtime.files import check_directory

GROUP = "pubsub"
OLD_GROUP = "df"

MIB = 1024 * 1024
HMAC_KEY_BYTES_MIN = 16
"""As long as a random number that nobody can try through."""

_BAD_VALUE = re.compile(
    r"Value for option \S+ from LocationInfo\(.*detail='(?P<file>.*)'\) is not valid: (?P<problem>.*)"
)


def _opt(name: str, kind: types.ConfigType, default: object, help_text: str, *, secret: bool = False) -> cfg.Opt:
    return cfg.Opt(name, type=kind, default=default, help=help_text, secret=secret, deprecated_group=OLD_GROUP)


def _seconds(name: str, default: float, help_text: str, *, low: float = 0.001, high: float = 86_400.0) -> cfg.Opt:
    return _opt(name, types.Float(min=low, max=high), default, f"{help_text} Seconds.")


def _bytes(name: str, default: int, help_text: str, *, low: int = 1024, high: int = 64 * 1024 * MIB) -> cfg.Opt:
    return _opt(name, types.Integer(min=low, max=high), default, f"{help_text} Bytes.")


def _count(name: str, default: int, help_text: str, *, low: int = 0, high: int = 1_000_000_000) -> cfg.Opt:
    return _opt(name, types.Integer(min=low, max=high), default, help_text)


def _flag(name: str, default: bool, help_text: str) -> cfg.Opt:
    return _opt(name, types.Boolean(), default, help_text)


def _text(name: str, default: str | None, help_text: str, *, secret: bool = False) -> cfg.Opt:
    return _opt(name, types.String(), default, help_text, secret=secret)


SPECIFIED_OPTIONS: Sequence[cfg.Opt] = (
    _flag("enable_df_pub_sub", False, "Controllers follow the bus (true) or the database's own change feed (false)."),
    _text("pub_sub_driver", "zmq", "Driver that moves the events: the name of a heliograph.pubsub_driver entry point."),
    _opt(
        "publishers_ips", types.List(types.String()), ["$local_ip"], "Hosts whose publishers a subscriber listens to."
    ),
    _opt("publisher_port", types.Port(), 8866, "Port of every publisher. 0 lets the system choose one, for discovery."),
    _flag("pub_sub_use_multiproc", True, "Forked workers publish through the publisher service of their host."),
    _opt("publisher_transport", types.String(choices=["tcp", "ipc"]), "tcp", "Transport of a bind-based driver."),
    _text("publisher_bind_address", "$local_ip", "Address a publisher binds to. '*' opens it to every network."),
    _text("pub_sub_multiproc_driver", "zmq_pubsub_multiproc_driver", "Driver between workers and publisher service."),
    _text(
        "publisher_multiproc_socket",
        "/var/run/zmq_pubsub/zmq-publisher-socket",
        "Socket between workers and publisher service. When its directory cannot be made, the same file name is used "
        "in the user's runtime directory.",
    ),
    _text("local_ip", "127.0.0.1", "Address of this host. Closed to the network until told otherwise."),
)

ENVELOPE_OPTIONS: Sequence[cfg.Opt] = (
    _text("publisher_name", "", "Stable name of this publisher across restarts. Empty: host name and program name."),
    _seconds("max_idle_time", 5.0, "A stream that was idle this long announces its head in a hello.", low=0.01),
    _seconds("idle_time_limit", 80.0, "Hellos of a long-idle stream are spaced out up to this interval.", low=0.01),
    _count("hello_rate_max", 500, "Repeated hellos of long-idle streams, all together, per second.", low=1),
    _seconds("message_delay_window", 0.05, "How long a hole waits for late frames before it is repaired."),
    _seconds(
        "catch_up_time",
        0.05,
        "A subscriber that comes later than this for what is due, because it got no processor, first reads for as long "
        "what has come meanwhile: an answer that is there already is not asked for again.",
        high=60.0,
    ),
    _count("missed_hellos_max", 3, "A publisher silent for this many max_idle_time is suspected.", low=2, high=1000),
    _seconds("publisher_forget_time", 300.0, "State of a publisher that vanished is kept this long.", low=0.1),
    _bytes("frame_bytes_max", MIB, "Largest frame sent or accepted; checked before anything is decoded.", low=65_536),
    _count("batch_events_max", 1024, "Most events in one frame.", low=1, high=65_536),
    _bytes("batch_bytes_max", 256 * 1024, "A frame is sent when its events reach this size."),
    _text("hmac_key", None, "Shared key, 16 bytes or more. Frames not signed with it are refused.", secret=True),
    _seconds("clock_skew_max", 60.0, "Timestamps of peers further in the future than this do not move our clock."),
)

QUEUE_OPTIONS: Sequence[cfg.Opt] = (
    _bytes(
        "send_queue_bytes_max", 16 * MIB, "Events waiting to be sent. When it is full, the sender sends them itself."
    ),
    _bytes(
        "receive_queue_bytes_max", 64 * MIB, "Frames waiting for the callback. When it is full, more wait as pending."
    ),
    _bytes(
        "pending_bytes_max",
        64 * MIB,
        "Frames that wait behind holes, or for room before the callback, all streams together. When it is full, the "
        "rest is asked for again, or a resync follows where nothing was lost.",
    ),
    _count("publishers_max", 100_000, "Publishers that a subscriber keeps track of.", low=1),
    _count("streams_max", 1_000_000, "Streams that a publisher or a subscriber keeps track of.", low=1),
)

RESYNC_OPTIONS: Sequence[cfg.Opt] = (
    _seconds("resync_jitter", 1.0, "A resync after loss is delayed by a random part of this.", low=0.0),
    _seconds("resync_interval_min", 1.0, "Resyncs closer together than this are deferred and joined.", low=0.0),
    _seconds("ready_timeout", 1.0, "How long a new link waits for the heads of its publishers before it is used."),
)

REPAIR_OPTIONS: Sequence[cfg.Opt] = (
    _flag("repair", True, "Ask caches for missing ranges before a resync."),
    _seconds("repair_timeout", 0.5, "Wait for the answer to a query; later waits double, first ones adapt."),
    _count(
        "repair_attempts_max", 5, "Queries for the same hole before a resync, quick ones not counted.", low=1, high=100
    ),
    _count(
        "questions_max",
        1000,
        "Queries of a subscriber that wait for answers. When there are more, the oldest is given up, and counted.",
        low=10,
        high=1_000_000,
    ),
    _seconds("query_interval", 0.0, "Ask publishers for their heads this often, for sporadic ones. 0: never.", low=0.0),
    _flag("with_cache", True, "A publisher keeps its recent frames and answers queries for them."),
    _count("history", 1_000_000, "Events that a cache keeps per stream.", low=1),
    _bytes("cache_bytes_max", 128 * MIB, "Frames that a cache keeps, all streams together."),
    _seconds("cache_age_max", 300.0, "Frames older than this leave a cache."),
    _bytes("reply_bytes_max", 512 * 1024, "Frames packed into one reply of a cache."),
)

HISTORY_OPTIONS: Sequence[cfg.Opt] = (
    _count(
        "min_services",
        0,
        "How many of those who keep history durably must hold an event before Publisher.confirm returns.",
        high=1000,
    ),
    _seconds("confirm_interval", 0.1, "First wait before Publisher.confirm asks, and sends, again; it doubles."),
    _seconds("confirm_interval_max", 2.0, "Longest wait before Publisher.confirm asks, and sends, again."),
    _text(
        "history_source",
        "durability",
        "Who keeps the past for subscribers that ask for it: the name of a heliograph.history_source entry point.",
    ),
    _seconds("history_hold_time", 60.0, "How long live events wait for history before they are delivered without it."),
    _seconds(
        "history_read_timeout",
        3600.0,
        "How long one read of history may take. It begins anew then: long enough for the largest history.",
        low=1.0,
    ),
    _seconds("history_retry_interval", 0.5, "How long to wait after a read of history that failed.", high=3600.0),
    _count(
        "history_objects_max",
        1_000_000,
        "Objects of which a subscriber that asks for history remembers what was delivered; then the one that changed "
        "longest ago is forgotten.",
        low=1,
    ),
)

PUBSUB_OPTIONS: Sequence[cfg.Opt] = (
    *SPECIFIED_OPTIONS, *ENVELOPE_OPTIONS, *QUEUE_OPTIONS, *RESYNC_OPTIONS, *REPAIR_OPTIONS, *HISTORY_OPTIONS,
)  # fmt: skip


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator: the bus's own group.  Each driver lists its group itself."""
    return [(GROUP, PUBSUB_OPTIONS)]


def new_conf(config_files: Iterable[str | os.PathLike[str]] = (), args: Sequence[str] = ()) -> cfg.ConfigOpts:
    """A private ``conf`` with the ``[pubsub]`` group, read from the files given and from no others.

    Raises InvalidConfig when a file is missing, cannot be parsed or has a value out of bounds, UsageError when the
    files are no list.
    """
    if isinstance(config_files, str | os.PathLike):
        raise UsageError(f"config_files is a list of files, not one of them: [{os.fspath(config_files)!r}]")
    conf = cfg.ConfigOpts()
    conf.register_opts(PUBSUB_OPTIONS, group=GROUP)
    files = [os.fspath(name) for name in config_files]
    try:
        conf(list(args), project="heliograph", default_config_files=files, default_config_dirs=[])
    except UnicodeDecodeError as error:  # it does not say in which file
        raise InvalidConfig(f"the configuration cannot be used: {', '.join(files)}: not UTF-8: {error}") from error
    except (cfg.Error, OSError) as error:
        raise InvalidConfig(f"the configuration cannot be used: {error}") from error
    check_group(conf, GROUP, PUBSUB_OPTIONS)
    return conf


def check_group(
    conf: cfg.ConfigOpts, group: str, options: Sequence[cfg.Opt], *, others: Sequence[cfg.Opt] = ()
) -> None:
    """Read every option of a group once, so that a bad value is refused at start and not when it is first needed.

    A name in a file of ``conf`` that is none of these options, nor of the ``others`` of the group, is refused as well.
    Raises InvalidConfig.
    """
    refuse_unknown(conf, group, (*options, *others))
    for option in options:
        try:
            conf[group][option.dest]
        except (cfg.Error, ValueError) as error:
            raise InvalidConfig(f"[{group}] {option.name}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What oslo.config has to say about a value, without the parts that only its authors understand."""
    found = _BAD_VALUE.fullmatch(str(error))
    return str(error) if found is None else f"{found['problem']} (in {found['file']})"


def check_combinations(conf: cfg.ConfigOpts) -> None:
    """Refuse options that contradict each other, with the reason."""
    pubsub = conf[GROUP]
    if pubsub.idle_time_limit < pubsub.max_idle_time:
        raise InvalidConfig(
            f"[pubsub] idle_time_limit = {pubsub.idle_time_limit} s is shorter than "
            f"max_idle_time = {pubsub.max_idle_time} s"
        )
    if pubsub.batch_bytes_max > pubsub.frame_bytes_max // 2:
        raise InvalidConfig(
            f"[pubsub] batch_bytes_max = {pubsub.batch_bytes_max} leaves no room in frame_bytes_max = "
            f"{pubsub.frame_bytes_max}: a batch may overshoot by one event, so at most half of it"
        )
    if pubsub.publisher_forget_time < pubsub.missed_hellos_max * pubsub.max_idle_time:
        raise InvalidConfig(
            "[pubsub] publisher_forget_time is shorter than the silence that makes a publisher suspect "
            "(missed_hellos_max * max_idle_time): a live publisher would be forgotten"
        )
    if pubsub.hmac_key is not None and len(pubsub.hmac_key.encode()) < HMAC_KEY_BYTES_MIN:
        raise InvalidConfig(
            f"[pubsub] hmac_key has fewer than {HMAC_KEY_BYTES_MIN} bytes: it could be guessed. Leave it out to send "
            "and accept frames that are not signed"
        )
    if pubsub.confirm_interval_max < pubsub.confirm_interval:
        raise InvalidConfig("[pubsub] confirm_interval_max is shorter than confirm_interval")
    if pubsub.reply_bytes_max > pubsub.frame_bytes_max:
        raise InvalidConfig("[pubsub] reply_bytes_max is larger than frame_bytes_max: no reply could be accepted")


def multiproc_socket(conf: cfg.ConfigOpts) -> pathlib.Path:
    """Where the socket between workers and publisher service lives; makes its directory, private to the user.

    The configured directory when it can be made and written, else the user's runtime directory, else a directory of the
    user under the system's temporary one.  Raises InvalidConfig when none of them can be used, and UnsafeFile when
    everybody could replace the socket.
    """
    configured = pathlib.Path(conf[GROUP].publisher_multiproc_socket)
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    private = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"heliograph-{os.getuid()}"
    for directory in (configured.parent, pathlib.Path(runtime) / "heliograph", private):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK | os.X_OK) and directory.stat().st_uid == os.getuid():
            check_directory(directory)
            return directory / configured.name
    raise InvalidConfig(
        f"[pubsub] publisher_multiproc_socket: no directory for {configured.name} can be made or written"
    )
