"""The ``[longpoll]`` option group, the addresses, and what the rest of the driver reads of them, checked once.

Imports nothing foreign, so that options can be listed and checked where the library is not installed.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import urllib.parse
from collections.abc import Sequence
from urllib.parse import SplitResult

from oslo_config import cfg, types

from drivers.pubsub.longpoll.actions import LinkSettings
from drivers.pubsub.longpoll.mailbox import Bounds, Policy
from drivers.pubsub.longpoll.session import PublisherSettings
from pubsub_api import config
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import InvalidConfig, InvalidTopic

GROUP = "longpoll"
SCHEME = "longpoll"
MIB = 1024 * 1024
_POLICIES_REMEMBERED = 65_536


def _seconds(name: str, default: float, low: float, high: float, help_text: str) -> cfg.Opt:
    return cfg.Opt(name, type=types.Float(min=low, max=high), default=default, help=f"{help_text} Seconds.")


def _bytes(name: str, default: int, help_text: str) -> cfg.Opt:
    kind = types.Integer(min=64 * 1024, max=64 * 1024 * MIB)
    return cfg.Opt(name, type=kind, default=default, help=f"{help_text} Bytes.")


def _count(name: str, default: int, high: int, help_text: str) -> cfg.Opt:
    return cfg.Opt(name, type=types.Integer(min=1, max=high), default=default, help=help_text)


TIME_OPTIONS: Sequence[cfg.Opt] = (
    _seconds("poll_interval", 10.0, 0.05, 3600.0, "A poll for which there is nothing is answered, and repeated, after "
             "this time: the sign of life of both sides."),
    _seconds("poll_grace", 5.0, 0.05, 3600.0, "A publisher whose answer to a poll is this late is taken for dead."),
    _seconds("session_timeout", 30.0, 0.1, 3600.0, "A subscriber that has not polled for this long is taken for dead, "
             "and what the publisher holds for it is freed. If it lives, it is told and begins anew."),
    _seconds("command_timeout", 5.0, 0.05, 300.0, "A batch of commands that is not answered in this time is repeated."),
    _seconds("connect_timeout", 5.0, 0.1, 300.0, "One attempt to connect, handshake included, is given up after this."),
    _seconds("retry_min", 0.1, 0.01, 60.0, "First wait before a lost link is tried again; later waits double."),
    _seconds("retry_max", 2.0, 0.01, 600.0, "Longest wait before a lost link is tried again."),
    _seconds("query_timeout", 10.0, 0.1, 3600.0, "How long answers to a query are awaited."),
    _seconds("send_wait", 0.1, 0.0, 60.0, "How long a sender waits for a subscriber whose mailbox is full, once in "
             "send_wait_interval at most. 0: not at all."),
    _seconds("send_wait_interval", 1.0, 0.01, 3600.0, "After a subscriber was waited for in vain, none is for this "
             "time: one that stands still costs the others send_wait once in it."),
    _seconds("linger", 1.0, 0.0, 60.0, "How long close() waits: of a publisher until subscribers have fetched what was "
             "sent, of a subscriber until publishers know that it leaves."),
)  # fmt: skip

LIMIT_OPTIONS: Sequence[cfg.Opt] = (
    cfg.ListOpt("latest_topics", default=[],
                help="Topic filters. Of what waits for a slow subscriber on such a topic only the newest frame is "
                     "kept; the numbers that are skipped are announced and counted."),
    cfg.ListOpt("lossy_topics", default=[],
                help="Topic filters. Frames on such topics are the first to go, oldest first, when the mailbox of a "
                     "slow subscriber is full; the numbers that are skipped are announced and counted."),
    _count("mailbox_frames_max", 50_000, 10_000_000, "Frames that wait at the publisher for one subscriber. When "
           "they are too many, and latest_topics and lossy_topics make no room, it is reset: it repairs or resyncs."),
    _bytes("mailbox_bytes_max", 32 * MIB, "The same bound in bytes, 200 for each frame beside its own."),
    _count("reply_frames_max", 5000, 1_000_000, "Frames in one answer to a poll."),
    _bytes("reply_bytes_max", 4 * MIB, "Frames in one answer to a poll; a larger one goes alone."),
    _count("command_batch_max", 2000, 65_536, "Subscriptions and their ends in one batch."),
    _count("sessions_max", 10_000, 1_000_000, "Subscribers of one publisher; more are refused, and try again."),
    _count("subscriptions_max", 2_000_000, 1_000_000_000, "Subscriptions at one publisher, all subscribers together."),
    _count("queries_max", 256, 65_536, "Queries that a publisher answers, or a subscriber asks, at the same time."),
    _bytes("receive_queue_bytes_max", 16 * MIB, "Frames of a subscriber that wait for the receiver. While there are "
           "more, it does not poll, and the publisher's mailbox fills."),
)  # fmt: skip

SECURITY_OPTIONS: Sequence[cfg.Opt] = (
    cfg.BoolOpt("tls", default=False, help="Encrypt every link. Set it on both sides."),
    cfg.StrOpt("tls_root_ca", help="PEM file of the authorities that may sign the other side's certificate."),
    cfg.StrOpt("tls_listen_certificate", help="PEM file of the certificate of a publisher."),
    cfg.StrOpt("tls_listen_private_key", help="PEM file of the private key of tls_listen_certificate."),
    cfg.StrOpt("tls_connect_certificate", help="PEM file of the certificate that a subscriber shows."),
    cfg.StrOpt("tls_connect_private_key", help="PEM file of the private key of tls_connect_certificate."),
    cfg.BoolOpt("tls_client_auth", default=False,
                help="A publisher lets only subscribers in whose certificate is signed by tls_root_ca."),
    cfg.StrOpt("tls_server_name", help="Name in the publisher's certificate, where it is not the host of its address."),
)  # fmt: skip

OPTIONS: Sequence[cfg.Opt] = (*TIME_OPTIONS, *LIMIT_OPTIONS, *SECURITY_OPTIONS)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


_FILES = tuple(option.name for option in SECURITY_OPTIONS if option.name.endswith(("_ca", "_certificate", "_key")))
_ADDRESS = re.compile(rf"{SCHEME}://(\[[0-9a-fA-F:.%]+\]|[^\s/:\[\]?#@]+):(\d{{1,5}})")
_PORT_MAX = 65_535


@dataclasses.dataclass(frozen=True)
class Tls:
    """The contents of the PEM files; None where the option is not set."""

    root_ca: bytes | None
    listen_certificate: bytes | None = dataclasses.field(repr=False)
    listen_private_key: bytes | None = dataclasses.field(repr=False)
    connect_certificate: bytes | None = dataclasses.field(repr=False)
    connect_private_key: bytes | None = dataclasses.field(repr=False)
    client_auth: bool
    server_name: str | None


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the options of both groups say, checked, in the words of this driver."""

    bind_host: str
    port: int
    public_host: str
    """What subscribers are told when every interface is bound."""
    listen_addresses: tuple[str, ...]
    publisher: PublisherSettings
    link: LinkSettings
    frame_bytes_max: int
    """The largest frame that the session layer accepts: what a query may be."""
    tls: Tls | None
    options: cfg.ConfigOpts.GroupAttr


def read_settings(conf: cfg.ConfigOpts) -> Settings:
    """Translate both groups.  Raises InvalidConfig when options contradict each other or cannot be used."""
    config.check_group(conf, GROUP, OPTIONS)
    options, pubsub = conf[GROUP], conf[config.GROUP]
    _check(options)
    if pubsub.publisher_transport != "tcp":
        raise InvalidConfig(
            f"[pubsub] publisher_transport = {pubsub.publisher_transport} is not for longpoll, which needs tcp"
        )
    port = pubsub.publisher_port
    return Settings(
        bind_host="0.0.0.0" if pubsub.publisher_bind_address == "*" else pubsub.publisher_bind_address,
        port=port,
        public_host=pubsub.local_ip,
        listen_addresses=tuple(make_address(host, port) for host in pubsub.publishers_ips) if port else (),
        publisher=_publisher_settings(options, pubsub.hmac_key.encode() if pubsub.hmac_key else None),
        link=LinkSettings(
            poll_interval_s=options.poll_interval,
            poll_grace_s=options.poll_grace,
            command_timeout_s=options.command_timeout,
            batch_max=options.command_batch_max,
            retry_min_s=options.retry_min,
            retry_max_s=options.retry_max,
        ),
        frame_bytes_max=pubsub.frame_bytes_max,
        tls=_read_tls(options),
        options=options,
    )


def _check(options: cfg.ConfigOpts.GroupAttr) -> None:
    if options.retry_min > options.retry_max:
        raise InvalidConfig("[longpoll] retry_min is longer than retry_max")
    if options.session_timeout <= options.retry_max:
        raise InvalidConfig(
            "[longpoll] session_timeout is not longer than retry_max: a session would be forgotten before its link is "
            "tried again"
        )


def _publisher_settings(options: cfg.ConfigOpts.GroupAttr, key: bytes | None) -> PublisherSettings:
    return PublisherSettings(
        bounds=Bounds(
            frames_max=options.mailbox_frames_max,
            bytes_max=options.mailbox_bytes_max,
            reply_frames_max=options.reply_frames_max,
            reply_bytes_max=options.reply_bytes_max,
        ),
        poll_interval_s=options.poll_interval,
        session_timeout_s=options.session_timeout,
        sessions_max=options.sessions_max,
        subscriptions_max=options.subscriptions_max,
        policy_of=functools.lru_cache(_POLICIES_REMEMBERED)(Policies(options.latest_topics, options.lossy_topics)),
        key=key,
    )


class Policies:
    """Which policy a topic has.  Raises InvalidConfig for what is not a filter, or is in both lists."""

    def __init__(self, latest: Sequence[str], lossy: Sequence[str]) -> None:
        try:
            self._latest, self._lossy = FilterSet(latest), FilterSet(lossy)
        except InvalidTopic as error:
            raise InvalidConfig(f"[longpoll] latest_topics and lossy_topics: {error}") from error
        both = sorted(set(latest) & set(lossy))
        if both:
            raise InvalidConfig(f"[longpoll] {both[0]!r} is in latest_topics and in lossy_topics")

    def __call__(self, topic: str) -> Policy:
        if self._latest.match(topic):
            return Policy.LATEST
        return Policy.LOSSY if self._lossy.match(topic) else Policy.LOSSLESS


def _read_tls(options: cfg.ConfigOpts.GroupAttr) -> Tls | None:
    given = [name for name in _FILES if getattr(options, name) is not None]
    if not options.tls:
        if given or options.tls_client_auth:
            raise InvalidConfig(f"[longpoll] {(*given, 'tls_client_auth')[0]} is set, but tls is not: nothing would be "
                                f"encrypted")  # fmt: skip
        return None
    for side in ("tls_listen", "tls_connect"):
        if (f"{side}_certificate" in given) != (f"{side}_private_key" in given):
            raise InvalidConfig(
                f"[longpoll] {side}_certificate and {side}_private_key go together; one of them is not set"
            )
    if options.tls_client_auth and options.tls_root_ca is None:
        raise InvalidConfig("[longpoll] tls_client_auth needs tls_root_ca, to check certificates with")
    files = {name.removeprefix("tls_"): _read_file(name, getattr(options, name)) for name in _FILES}
    return Tls(**files, client_auth=options.tls_client_auth, server_name=options.tls_server_name)


def _read_file(name: str, path: str | None) -> bytes | None:
    try:
        return None if path is None else pathlib.Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(f"[longpoll] {name}: {path!r} cannot be read: {error.strerror}") from error


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
    """Set overrides from ``longpoll://host:port?option=value``.  A host that stands for every interface is bound to; it
    is nothing a subscriber can listen to, so ``publishers_ips`` keeps its value then.  Raises InvalidConfig."""
    try:
        host, port = url.hostname, url.port
        given = urllib.parse.parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
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
    _set_options(conf, url, given)


def _set_options(conf: cfg.ConfigOpts, url: SplitResult, given: list[tuple[str, str]]) -> None:
    known = {option.name for option in OPTIONS}
    seen: set[str] = set()
    for name, value in given:
        if name not in known or name in seen:
            problem = "is given twice" if name in seen else f"is no option of [longpoll]: {', '.join(sorted(known))}"
            raise InvalidConfig(f"{url.geturl()}: {name!r} {problem}")
        seen.add(name)
        try:
            conf.set_override(name, value.split(",") if name.endswith("_topics") else value, group=GROUP)
        except ValueError as error:
            raise InvalidConfig(f"{url.geturl()}: {name}: {error}") from error
