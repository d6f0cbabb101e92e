"""The ``[pubsub]`` option group, and how a configuration is made from files or from a URL.

A ``conf`` object is always passed; nothing here is global.  Options that the Dragonflow specification names keep their
names, and a Dragonflow file's ``[df]`` group is understood.  Times are seconds unless the name says otherwise.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Sequence

from oslo_config import cfg

from pubsub_api.core.scopes import check_scope
from pubsub_api.errors import InvalidConfig, InvalidTopic, UsageError
from pubsub_api.runtime.files import check_directory
from pubsub_api.runtime.option_names import refuse_unknown
from pubsub_api.runtime.options import DAY_S, KIB, MIB, advanced, count, flag, seconds, size, text, tls_files

GROUP = "pubsub"
OLD_GROUP = "df"
LOG_GROUP = "log"
LOG_URL = text("url", "sqlite:///var/lib/heliograph/log.db",
               "The log: sqlite:///path/log.db for the processes of one host, or "
               "postgresql://[user:password@]host/database or redis://[user:password@]host:port/db for several hosts.",
               secret=True)  # fmt: skip
"""Named when a session is opened, for what is built on it; the bus itself has no log."""

HMAC_KEY_BYTES_MIN = 16
"""As long as a random number of which not all can be tried."""

BATCH_BYTES_MAX = 256 * KIB
"""Larger frames are not faster, and a lost one is a larger loss."""
SEND_QUEUE_BYTES_MAX = 16 * MIB
"""Events waiting to be sent, which are lost when the process is killed.  When it is full, the sender sends them."""
IDLE_TIMES_MAX = 16
"""Hellos of a long-idle stream are spaced out up to so many ``max_idle_time``: four doublings."""
FORGET_SILENCES = 20
"""State of a publisher that vanished is kept for so many times the silence that makes it suspect: five minutes, longer
than a restart."""
RETRY_INTERVAL_S = 0.1
"""A publisher that was restarted is back after about this time."""

_BAD_VALUE = re.compile(
    r"Value for option \S+ from LocationInfo\(.*detail='(?P<file>.*)'\) is not valid: (?P<problem>.*)"
)


def _old(*options: cfg.Opt) -> tuple[cfg.Opt, ...]:
    """The same options, also understood in the group of a Dragonflow file."""
    for option in options:
        option.deprecated_opts = [cfg.DeprecatedOpt(option.name, group=OLD_GROUP)]
    return options


SPECIFIED_OPTIONS: Sequence[cfg.Opt] = (
    flag("enable_df_pub_sub", False, "Controllers follow the bus (true) or the database's own change feed (false)."),
    text("pub_sub_driver", "zmq", "Driver that moves the events: the name of a heliograph.pubsub_driver entry point."),
    cfg.ListOpt("publishers_ips", default=["$local_ip"], help="Hosts whose publishers a subscriber listens to."),
    cfg.PortOpt("publisher_port", default=8866,
                help="Port of every publisher. 0 lets the system choose one, for discovery."),
    flag("pub_sub_use_multiproc", True, "Forked workers publish through the publisher service of their host."),
    text("publisher_bind_address", "$local_ip", "Address a publisher binds to. '*' opens it to every network."),
    text("publisher_multiproc_socket", "/var/run/zmq_pubsub/zmq-publisher-socket",
         "Socket between workers and publisher service. When its directory cannot be made, the same file name is used "
         "in the user's runtime directory."),
    text("local_ip", "127.0.0.1", "Address of this host. Closed to the network until told otherwise."),
    seconds("max_idle_time", 5.0, 0.01, DAY_S, "A stream that was idle this long announces its head in a hello. "
            "Repeats are spaced out, up to sixteen times this."),
    *advanced(
        cfg.StrOpt("publisher_transport", choices=["tcp", "ipc"], default="tcp",
                   help="Transport of a bind-based driver."),
        text("pub_sub_multiproc_driver", "zmq_pubsub_multiproc_driver",
             "Driver between workers and publisher service."),
        seconds("message_delay_window", 0.05, 0.001, DAY_S,
                "How long a hole waits for late frames before it is repaired."),
        flag("with_cache", True, "A publisher keeps its recent frames and answers queries for them."),
    ),
)  # fmt: skip

OPERATOR_OPTIONS: Sequence[cfg.Opt] = (
    text("publisher_name", "", "Stable name of this publisher across restarts. Empty: host name and program name."),
    text("hmac_key", None, "Shared key, 16 bytes or more. Frames not signed with it are refused.", secret=True),
    size("receive_queue_bytes_max", 64 * MIB,
         "Frames waiting for the callback. When it is full, more wait as pending."),
    count("history", 1_000_000, 1, 1_000_000_000, "Events that a cache keeps per stream."),
    size("cache_bytes_max", 128 * MIB, "Frames that a cache keeps, all streams together."),
)  # fmt: skip

LINK_OPTIONS: Sequence[cfg.Opt] = advanced(
    seconds("connect_timeout", 5.0, 0.05, 300.0, "One attempt to connect, handshake included, is given up after this."),
    seconds("retry_interval_max", 2.0, 0.001, 3600.0,
            "Longest wait before a lost link is tried again. The first is a tenth of it, 0.1 seconds at most; later "
            "waits double."),
    seconds("link_timeout", 30.0, 0.3, 3600.0,
            "A link on which the other side is silent for this long is lost; idle ones are tested more often. With "
            "zenoh a third of it is enough, and with redis a sixth of it for an answer."),
    seconds("send_wait", 0.1, 0.0, 60.0,
            "How long a publisher waits for a subscriber that takes no more, before frames are dropped for it, which "
            "is detected and repaired. While it takes nothing the publisher waits once a second at most, with zenoh "
            "once, and ten times as long for a frame larger than 64 kB. 0: not at all. Redis does not wait."),
    cfg.ListOpt("answer_scopes", default=["#"],
                help="Topics about which a publisher or cache hears questions: tenant-7/# or tenant-7/port, # for all. "
                     "Set it where access control lets it answer for these only, with redis and zenoh."),
)  # fmt: skip
"""For every driver, and for workers that lost their publisher service."""

ENVELOPE_OPTIONS: Sequence[cfg.Opt] = advanced(
    count("missed_hellos_max", 3, 2, 1000, "A publisher silent for this many max_idle_time is suspected. Twenty times "
          "later it is forgotten."),
    size("frame_bytes_max", MIB, "Largest frame sent or accepted; checked before anything is decoded.", low=65_536),
    count("batch_events_max", 1024, 1, 65_536, "Most events in one frame."),
    size("pending_bytes_max", 64 * MIB,
         "Frames that wait behind holes, or for room before the callback, all streams together. When it is full, the "
         "rest is asked for again, or a resync follows where nothing was lost."),
    count("streams_max", 1_000_000, 1, 1_000_000_000, "Streams that a publisher or a subscriber keeps track of."),
)  # fmt: skip

REPAIR_OPTIONS: Sequence[cfg.Opt] = advanced(
    count("min_services", 0, 0, 1000,
          "How many services that keep history durably must hold an event before Publisher.confirm returns."),
    seconds("cache_age_max", 300.0, 0.001, DAY_S, "Frames older than this leave a cache."),
    seconds("resync_jitter", 1.0, 0.0, DAY_S, "A resync after loss is delayed by a random part of this. Resyncs that "
            "are closer together than this are joined."),
    seconds("ready_timeout", 1.0, 0.001, DAY_S,
            "How long a new link waits for the heads of its publishers before it is used."),
    seconds("repair_timeout", 0.5, 0.001, DAY_S,
            "Wait for the answer to a query; later waits double, first ones adapt."),
    count("repair_attempts_max", 5, 1, 100, "Queries for the same hole before a resync, quick ones not counted."),
    seconds("query_interval", 0.0, 0.0, DAY_S,
            "Ask publishers for their heads this often, for sporadic ones. 0: never."),
)  # fmt: skip

TLS_OPTIONS: Sequence[cfg.Opt] = advanced(
    *tls_files(),
    flag("tls_client_auth", False,
         "A publisher that listens lets only subscribers in whose certificate is signed by tls_ca_file. Set it on both "
         "sides."),
)  # fmt: skip
"""For drivers that encrypt with TLS; the others refuse them."""

PUBSUB_OPTIONS: Sequence[cfg.Opt] = (
    *_old(*SPECIFIED_OPTIONS, *OPERATOR_OPTIONS, *LINK_OPTIONS, *ENVELOPE_OPTIONS, *REPAIR_OPTIONS),
    *TLS_OPTIONS,
)
_IN_URLS = ("receive_queue_bytes_max", "pub_sub_use_multiproc", "publisher_multiproc_socket")
URL_OPTIONS = tuple(one for one in PUBSUB_OPTIONS if one in (*LINK_OPTIONS, *TLS_OPTIONS) or one.name in _IN_URLS)
"""What the URL of every driver may give, beside the options of the driver's own group."""


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator: the bus's own group.  Each driver lists its group itself."""
    return [(GROUP, PUBSUB_OPTIONS)]


def new_conf(config_files: Iterable[str | os.PathLike[str]] = ()) -> cfg.ConfigOpts:
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
        conf([], project="heliograph", default_config_files=files, default_config_dirs=[])
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
    if pubsub.hmac_key is not None and len(pubsub.hmac_key.encode()) < HMAC_KEY_BYTES_MIN:
        raise InvalidConfig(
            f"[pubsub] hmac_key has fewer than {HMAC_KEY_BYTES_MIN} bytes: it could be guessed. Leave it out to send "
            "and accept frames that are not signed"
        )


def silence_timeout(conf: cfg.ConfigOpts) -> float:
    """Seconds after which a publisher that is not heard is suspected."""
    return float(conf[GROUP].missed_hellos_max * conf[GROUP].max_idle_time)


def forget_time(conf: cfg.ConfigOpts) -> float:
    """Seconds for which the state of a publisher that vanished is kept."""
    return FORGET_SILENCES * silence_timeout(conf)


def batch_bytes_max(conf: cfg.ConfigOpts) -> int:
    """A frame is sent when its events reach this size.  They may overshoot by one event: half of the largest frame."""
    return min(BATCH_BYTES_MAX, int(conf[GROUP].frame_bytes_max) // 2)


def retry_interval(conf: cfg.ConfigOpts) -> float:
    """Seconds before a lost link is tried again for the first time; later waits double up to retry_interval_max."""
    return min(RETRY_INTERVAL_S, float(conf[GROUP].retry_interval_max) / 10)


def answer_scopes(conf: cfg.ConfigOpts) -> tuple[str, ...]:
    """The scopes of questions that reach a publisher or cache.  Raises InvalidConfig for what is no scope."""
    try:
        return tuple(check_scope(scope) for scope in conf[GROUP].answer_scopes)
    except InvalidTopic as error:
        raise InvalidConfig(f"[pubsub] answer_scopes: {error}") from error


def reply_bytes_max(conf: cfg.ConfigOpts) -> int:
    """Frames packed into one reply of a cache: half of the largest frame, so that every receiver accepts it."""
    return int(conf[GROUP].frame_bytes_max) // 2


def multiproc_socket(conf: cfg.ConfigOpts) -> pathlib.Path:
    """Where the socket between workers and publisher service lives; makes its directory, private to the user.

    The configured directory when it can be made and written, else the user's runtime directory, else a directory of the
    user under the system's temporary one.  Raises InvalidConfig when none of them can be used, and UnsafeFile when
    every user could replace the socket.
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
