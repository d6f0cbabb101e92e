"""The ``[longpoll]`` option group, addresses, and the checked settings that the driver reads from them.

It does not import gRPC, so that options can be listed and checked where gRPC is not installed.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
from collections.abc import Sequence
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.pubsub.longpoll.core.actions import LinkSettings
from heliograph_drivers.pubsub.longpoll.core.mailbox import Bounds, MailboxPolicy
from heliograph_drivers.pubsub.longpoll.core.session import LongpollPublisherSettings
from pubsub_api import config
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import InvalidConfig, InvalidTopic
from pubsub_api.runtime.options import MIB, TLS_NAMES, advanced, count, override_from_query, text, tls_files

GROUP = "longpoll"
SCHEME = "longpoll"
_POLICIES_REMEMBERED = 65_536


OPTIONS: Sequence[cfg.Opt] = advanced(
    cfg.ListOpt("latest_topics", default=[],
                help="Topic filters. Of the frames that wait for a slow subscriber on such a topic only the newest is "
                     "kept; the skipped numbers are announced and counted."),
    cfg.ListOpt("lossy_topics", default=[],
                help="Topic filters. Frames on such topics are dropped first, oldest first, when the mailbox of "
                     "a slow subscriber is full; the skipped numbers are announced and counted."),
    count("mailbox_frames_max", 50_000, 1, 10_000_000, "Frames that wait at the publisher for one subscriber. When "
          "there are more, or more than 32 MiB, and latest_topics and lossy_topics make no room, the subscriber is "
          "reset: it repairs or resyncs."),
    text("tls_server_name", None, "Name in the publisher's certificate, if it is not the host of its address."),
)  # fmt: skip

POLLS_PER_TIMEOUT = 3
"""An idle poll is answered, and repeated, this often in ``link_timeout``, so that both sides see that the other
lives."""
SESSION_TIMEOUT_S = 30.0
"""A subscriber that has not polled for this long, or for ``link_timeout``, is considered dead, and the publisher frees
its mailbox.  If it lives, it gets an error and begins a new session.  Shorter interruptions lose nothing."""
POLL_GRACE_S = 5.0
"""A publisher whose answer to a poll is this late is considered dead: longer than the pauses of a busy machine."""
SESSIONS_MAX = 10_000
"""Subscribers of one publisher, as many as a process has descriptors for; more are refused, and try again."""
MAILBOX_BYTES_MAX = 32 * MIB
"""The limit of a mailbox in bytes; each frame counts 200 beside its own."""
REPLY_FRAMES_MAX = 5000
REPLY_BYTES_MAX = 4 * MIB
"""Limits of one answer to a poll; the default size limit of a gRPC message.  A larger frame is sent alone."""
COMMAND_BATCH_MAX = 2000
"""Commands in one batch: a few milliseconds of the publisher's time."""
SUBSCRIPTIONS_MAX = 2_000_000
"""Subscriptions of all subscribers at one publisher: about 500 MB."""
QUERIES_MAX = 256
"""Queries that a publisher answers, or a subscriber asks, at the same time."""
QUERY_TIMEOUT_S = 10.0
"""How long a link waits for the answers to a query.  The layer above asks again much earlier."""
SEND_WAIT_INTERVAL_S = 1.0
"""After a wait for a slow subscriber has timed out, the publisher does not wait for any subscriber during this time, so
that one that stands still costs the others a tenth of the time."""
LINGER_S = 1.0
"""How long close() waits: a publisher until subscribers have fetched all frames, a subscriber until publishers know
that it leaves."""


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


_FILES = tuple(option.name for option in tls_files())
_ADDRESS = re.compile(rf"{SCHEME}://(\[[0-9a-fA-F:.%]+\]|[^\s/:\[\]?#@]+):(\d{{1,5}})")
_PORT_MAX = 65_535


@dataclasses.dataclass(frozen=True)
class Tls:
    """The contents of the PEM files; None where the option is not set."""

    ca_file: bytes | None
    cert_file: bytes | None = dataclasses.field(repr=False)
    key_file: bytes | None = dataclasses.field(repr=False)
    client_auth: bool
    server_name: str | None


@dataclasses.dataclass(frozen=True)
class LongpollSettings:
    """The checked settings, from the options of both groups."""

    bind_host: str
    port: int
    public_host: str
    """The host for subscribers when the publisher binds every interface."""
    listen_addresses: tuple[str, ...]
    publisher: LongpollPublisherSettings
    link: LinkSettings
    frame_bytes_max: int
    """The largest frame that the session layer accepts, and so the largest query."""
    tls: Tls | None
    connect_timeout_s: float
    send_wait_s: float
    """How long a publisher waits for a subscriber whose mailbox is full."""
    receive_queue_bytes_max: int


def read_settings(conf: cfg.ConfigOpts) -> LongpollSettings:
    """The settings from both groups.  Raises InvalidConfig when options contradict each other or cannot be used."""
    config.check_group(conf, GROUP, OPTIONS)
    options, pubsub = conf[GROUP], conf[config.GROUP]
    if pubsub.publisher_transport != "tcp":
        raise InvalidConfig(
            f"[pubsub] publisher_transport = {pubsub.publisher_transport} is not for longpoll, which needs tcp"
        )
    port = pubsub.publisher_port
    return LongpollSettings(
        bind_host="0.0.0.0" if pubsub.publisher_bind_address == "*" else pubsub.publisher_bind_address,
        port=port,
        public_host=pubsub.local_ip,
        listen_addresses=tuple(make_address(host, port) for host in pubsub.publishers_ips) if port else (),
        publisher=_publisher_settings(options, pubsub),
        link=LinkSettings(
            poll_interval_s=pubsub.link_timeout / POLLS_PER_TIMEOUT,
            poll_grace_s=POLL_GRACE_S,
            command_timeout_s=pubsub.connect_timeout,
            batch_max=COMMAND_BATCH_MAX,
            retry_min_s=config.retry_interval(conf),
            retry_max_s=pubsub.retry_interval_max,
        ),
        frame_bytes_max=pubsub.frame_bytes_max,
        tls=_read_tls(options, pubsub),
        connect_timeout_s=pubsub.connect_timeout,
        send_wait_s=pubsub.send_wait,
        # Links do not poll while this queue is full; the layer above has a larger queue.
        receive_queue_bytes_max=pubsub.receive_queue_bytes_max // 4,
    )


def _publisher_settings(
    options: cfg.ConfigOpts.GroupAttr, pubsub: cfg.ConfigOpts.GroupAttr
) -> LongpollPublisherSettings:
    return LongpollPublisherSettings(
        bounds=Bounds(
            frames_max=options.mailbox_frames_max,
            bytes_max=MAILBOX_BYTES_MAX,
            reply_frames_max=REPLY_FRAMES_MAX,
            reply_bytes_max=REPLY_BYTES_MAX,
        ),
        poll_interval_s=pubsub.link_timeout / POLLS_PER_TIMEOUT,
        # At least twice the longest pause: the link must try again before its session is forgotten.
        session_timeout_s=max(SESSION_TIMEOUT_S, pubsub.link_timeout, 2 * pubsub.retry_interval_max),
        sessions_max=SESSIONS_MAX,
        subscriptions_max=SUBSCRIPTIONS_MAX,
        policy_of=functools.lru_cache(_POLICIES_REMEMBERED)(Policies(options.latest_topics, options.lossy_topics)),
        key=pubsub.hmac_key.encode() if pubsub.hmac_key else None,
    )


class Policies:
    """The policy of each topic.  Raises InvalidConfig for an invalid filter, and for one in both lists."""

    def __init__(self, latest: Sequence[str], lossy: Sequence[str]) -> None:
        try:
            self._latest, self._lossy = FilterSet(latest), FilterSet(lossy)
        except InvalidTopic as error:
            raise InvalidConfig(f"[longpoll] latest_topics and lossy_topics: {error}") from error
        both = sorted(set(latest) & set(lossy))
        if both:
            raise InvalidConfig(f"[longpoll] {both[0]!r} is in latest_topics and in lossy_topics")

    def __call__(self, topic: str) -> MailboxPolicy:
        if self._latest.match(topic):
            return MailboxPolicy.LATEST
        return MailboxPolicy.LOSSY if self._lossy.match(topic) else MailboxPolicy.LOSSLESS


def _read_tls(options: cfg.ConfigOpts.GroupAttr, common: cfg.ConfigOpts.GroupAttr) -> Tls | None:
    """The TLS files; None when no option of TLS is set: then links are not encrypted."""
    given = [name for name in TLS_NAMES if getattr(common, name)]
    if not given:
        return None
    if ("tls_cert_file" in given) != ("tls_key_file" in given):
        raise InvalidConfig("[pubsub] tls_cert_file and tls_key_file go together; one of them is not set")
    if common.tls_client_auth and common.tls_ca_file is None:
        raise InvalidConfig("[pubsub] tls_client_auth needs tls_ca_file, to check certificates with")
    files = {name.removeprefix("tls_"): _read_file(name, getattr(common, name)) for name in _FILES}
    return Tls(**files, client_auth=common.tls_client_auth, server_name=options.tls_server_name)


def _read_file(name: str, path: str | None) -> bytes | None:
    try:
        return None if path is None else pathlib.Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(f"[pubsub] {name}: {path!r} cannot be read: {error.strerror}") from error


# -- addresses and URLs


def make_address(host: str, port: int) -> str:
    return f"{SCHEME}://[{host}]:{port}" if ":" in host else f"{SCHEME}://{host}:{port}"


def check_address(address: str) -> str:
    """Return the ``host:port`` that an address names.  Raises InvalidConfig."""
    matched = _ADDRESS.fullmatch(address)
    if matched is None or not 0 < int(matched[2]) <= _PORT_MAX:
        raise InvalidConfig(f"{address!r} is not an address of longpoll; write {SCHEME}://host:port")
    return f"{matched[1]}:{matched[2]}"


def configure_from_url(conf: cfg.ConfigOpts, url: SplitResult) -> None:
    """Set overrides from ``longpoll://host:port?option=value``.  A host that means every interface is only bound:
    subscribers cannot connect to it, so ``publishers_ips`` keeps its value.  Raises InvalidConfig."""
    try:
        host, port = url.hostname, url.port
    except ValueError as error:
        raise InvalidConfig(f"{url.geturl()}: {error}") from error
    if not host or url.username is not None or url.fragment or url.path.strip("/"):
        raise InvalidConfig(f"{url.geturl()}: a longpoll URL is {SCHEME}://host:port?option=value")
    conf.set_override("publisher_transport", "tcp", group=config.GROUP)
    conf.set_override("publisher_bind_address", host, group=config.GROUP)
    if host not in ("0.0.0.0", "::", "*"):
        conf.set_override("publishers_ips", [host], group=config.GROUP)
    if port is not None:
        conf.set_override("publisher_port", port, group=config.GROUP)
    override_from_query(conf, url, {GROUP: OPTIONS, config.GROUP: config.URL_OPTIONS})
