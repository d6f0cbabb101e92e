"""The ``[zenoh]`` option group, the checked settings, addresses and keys.

It does not import Zenoh, so that options can be listed and checked where Zenoh is not installed.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import urllib.parse
from collections.abc import Sequence
from urllib.parse import SplitResult

from oslo_config import cfg

from pubsub_api import config
from pubsub_api.core.frame import is_frame, name_of
from pubsub_api.core.scopes import check_scope
from pubsub_api.core.topics import CONTROL_TOPIC, check_filter, check_topic
from pubsub_api.errors import InvalidConfig, InvalidTopic
from pubsub_api.runtime.options import TLS_NAMES, advanced, flag, override_from_query, text, tls_files

GROUP = "zenoh"

OPTIONS: Sequence[cfg.Opt] = (
    cfg.StrOpt("mode", default="peer", choices=["peer", "client", "router"],
               help="peer: a publisher listens and subscribers connect to it. client: both connect to the router at "
                    "endpoints. router: like peer, and the publisher also routes between the processes that connect "
                    "to it."),
    cfg.ListOpt("endpoints", default=[],
                help="Addresses to which subscribers, and in client mode publishers, connect: protocol/host:port. "
                     "Empty: made from publishers_ips and publisher_port, encrypted when [pubsub] tls_ca_file or "
                     "tls_cert_file is set."),
    *advanced(
        cfg.ListOpt("listen", default=[],
                    help="Where a publisher listens in peer and router mode: protocol/host:port, port 0 for a free "
                         "one. Empty: made from publisher_bind_address and publisher_port, encrypted when "
                         "[pubsub] tls_ca_file or tls_cert_file is set. It never listens anywhere else."),
        text("key_prefix", "heliograph",
             "Key before every topic: topic a/b has the key heliograph/a/b. Both ends must use the same."),
        text("config_file", None, "Zenoh configuration (JSON5) to start from, for example with access control. The "
             "options of this group are written over it."),
        flag("shared_memory", True, "Move large frames between processes of a host by shared memory."),
        text("user", None, "Name with which this process logs in when it connects."),
        text("password", None, "Password of user.", secret=True),
        text("password_file", None, "File of the users that may connect to this process, user:password lines."),
    ),
)  # fmt: skip

LEASES_PER_TIMEOUT = 3
"""A peer that is silent for this fraction of ``link_timeout`` counts as gone; by default Zenoh's own ten seconds."""
SESSIONS_MAX = 10_000
"""Connections that a listening publisher accepts at the same time, as many as a process has descriptors for."""
BLOCK_WAIT_S = 2.0
"""How long messages that must not be dropped (answers, subscriptions) wait for a congested link before it is closed."""
QUERIES_MAX = 1024
"""Queries that wait: at a subscriber to be sent, at a publisher to be answered."""
QUERY_TIMEOUT_S = 10.0
"""How long a link waits for the answers to a query.  The layer above asks again much earlier."""
DECLARED_MAX = 1024
"""Topics with a declared Zenoh publisher, which sends faster.  A process that sends on more topics declares none,
because each declared one slows down the others."""
SYNC_TIMEOUT_S = 1.0
"""How long publishers may take to confirm that filters are in effect."""
SYNC_RETRY_S = 0.01
SYNC_RETRY_MAX_S = 0.5
"""First and longest pause before publishers that did not confirm filters are asked again; it doubles."""
SYNC_GRACE_S = 3.0
"""If there is no answer for this long, the peer is no publisher of Heliograph, and the filters count as in effect."""

_FILE_OPTIONS = tuple(option.name for option in OPTIONS if option.name.endswith("_file"))
_TLS_FILES = tuple(option.name for option in tls_files())
_SECURE = ("tls", "quic")
_IP_ADDRESS = re.compile(r"(tcp|tls|quic|ws|udp)/(\[[0-9a-fA-F:.%]+\]|[^\s/:\[\]?#]+):(\d{1,5})([?#].*)?")
_PATH_ADDRESS = re.compile(r"unixsock-stream/\S+")
_PREFIX = re.compile(r"[\w.-]+(/[\w.-]+)*")
_OWN_TOPIC = re.compile(r"\$[\w.-]+(/[\w.-]+)*")


@dataclasses.dataclass(frozen=True)
class ZenohSettings:
    """The checked settings, from the options of both groups."""

    mode: str
    endpoints: tuple[str, ...]
    """Addresses to connect to.  Empty when discovery finds them."""
    listen: tuple[str, ...]
    public_address: str
    """The host for subscribers when ``listen`` means every interface."""
    keys: ZenohKeys
    retry_interval_s: float
    answer_scopes: tuple[str, ...]
    options: cfg.ConfigOpts.GroupAttr
    common: cfg.ConfigOpts.GroupAttr
    """The options of all drivers."""

    @property
    def is_bind_based(self) -> bool:
        return self.mode != "client"


def read_settings(conf: cfg.ConfigOpts) -> ZenohSettings:
    """The settings from both groups.  Raises InvalidConfig when options contradict each other or cannot be used."""
    options, pubsub = conf[GROUP], conf.pubsub
    if pubsub.publisher_transport != "tcp":
        raise InvalidConfig(
            f"[pubsub] publisher_transport = {pubsub.publisher_transport} is not for zenoh; "
            f"write [zenoh] listen and endpoints = unixsock-stream/path"
        )
    port = pubsub.publisher_port
    protocol = "tls" if any(getattr(pubsub, name) for name in TLS_NAMES) else "tcp"
    bind = "0.0.0.0" if pubsub.publisher_bind_address == "*" else pubsub.publisher_bind_address
    derived = [make_address(protocol, host, port) for host in pubsub.publishers_ips] if port else []
    settings = ZenohSettings(
        mode=options.mode,
        endpoints=tuple(check_address(address) for address in options.endpoints or derived),
        listen=tuple(
            check_address(address, may_be_ephemeral=True)
            for address in options.listen or [make_address(protocol, bind, port)]
        ),
        public_address=pubsub.local_ip,
        keys=ZenohKeys(options.key_prefix),
        retry_interval_s=config.retry_interval(conf),
        answer_scopes=config.answer_scopes(conf),
        options=options,
        common=pubsub,
    )
    _check(settings)
    return settings


def _check(settings: ZenohSettings) -> None:
    options, common = settings.options, settings.common
    if settings.mode == "client" and not settings.endpoints:
        raise InvalidConfig("[zenoh] mode = client needs the address of a router: set endpoints, or a publisher_port")
    if (options.user is None) != (options.password is None):
        raise InvalidConfig("[zenoh] user and password go together; one of them is not set")
    given_files = {f"[zenoh] {name}": getattr(options, name) for name in _FILE_OPTIONS}
    given_files |= {f"[pubsub] {name}": getattr(common, name) for name in _TLS_FILES}
    for name, path in given_files.items():
        if path is not None and not pathlib.Path(path).is_file():
            raise InvalidConfig(f"{name}: there is no file {path!r}")
    if (common.tls_cert_file is None) != (common.tls_key_file is None):
        raise InvalidConfig("[pubsub] tls_cert_file and tls_key_file go together; one of them is not set")
    addresses = (*settings.endpoints, *settings.listen)
    given = [name for name in TLS_NAMES if getattr(common, name)]
    if given and not any(address.startswith(_SECURE) for address in addresses):
        raise InvalidConfig(
            f"[pubsub] {given[0]} is set, but no address is encrypted; write [zenoh] listen and endpoints as "
            f"tls/host:port"
        )


def make_address(protocol: str, host: str, port: int) -> str:
    return f"{protocol}/[{host}]:{port}" if ":" in host else f"{protocol}/{host}:{port}"


def check_address(address: str, *, may_be_ephemeral: bool = False) -> str:
    """Return the address.  Raises InvalidConfig when Zenoh cannot use it."""
    matched = _IP_ADDRESS.fullmatch(address)
    if matched and (0 if may_be_ephemeral else 1) <= int(matched[3]) <= 65_535:
        return address
    if _PATH_ADDRESS.fullmatch(address):
        return address
    raise InvalidConfig(
        f"{address!r} is not an address of zenoh; write protocol/host:port, as in tcp/127.0.0.1:8866, "
        f"with protocol one of tcp, tls, quic, ws, udp, or unixsock-stream/path"
    )


def split_address(address: str) -> tuple[str, str, int] | None:
    """``(protocol, host, port)`` of a checked address, the host without brackets; None when it has no port."""
    matched = _IP_ADDRESS.fullmatch(address)
    return (matched[1], matched[2].strip("[]"), int(matched[3])) if matched else None


class ZenohKeys:
    """Topics and filters, as Zenoh's keys and key expressions.

    Topic ``a/b`` has the key ``heliograph/a/b`` and ``$control`` the key ``heliograph@control``, which no filter can
    match.  `everything` covers exactly these keys.

    Questions and their answers have the key of their scope (`pubsub_api.core.scopes`), ``heliograph@ask/a/**``, so that
    access control can restrict them like topics.  Publishers confirm filters under the key `sync`.

    A filter is written with ``$*`` before the prefix, ``$*heliograph/a/**``.  It selects the same keys, but as a key
    expression it is not contained in `everything`; `heliograph_drivers.pubsub.zenoh.link` explains the reason.
    """

    def __init__(self, prefix: str) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidConfig(
                f"[zenoh] key_prefix = {prefix!r}: levels of letters, digits, '-', '_', '.' and no more"
            )
        self._prefix = prefix
        parent, slash, name = prefix.rpartition("/")
        self._loose_prefix = f"{parent}{slash}$*{name}"
        self.everything = f"{prefix}$*/**"
        self.sync = f"{prefix}@sync"
        self.data = functools.lru_cache(maxsize=65_536)(self._data)

    def _data(self, topic: str) -> str:
        if topic.startswith("$"):
            return f"{self._prefix}@{_check_own(topic)[1:]}"
        return f"{self._prefix}/{check_topic(topic)}"

    def interest(self, topic_filter: str) -> str:
        """The key expression that selects what the filter selects.  Raises InvalidTopic."""
        if topic_filter.startswith("$"):
            return f"{self._loose_prefix}@{_check_own(topic_filter)[1:]}"
        # Zenoh accepts '*/**' and refuses '**/*'.  A filter has '#' at the end only, so the form is right.
        wild = {"+": "*", "#": "**"}
        levels = [wild.get(level, level) for level in check_filter(topic_filter).split("/")]
        return "/".join([self._loose_prefix, *levels])

    def ask(self, scope: str) -> str:
        """The key expression of questions of that scope, and of their responders.  Raises InvalidTopic."""
        if check_scope(scope) == CONTROL_TOPIC:
            return f"{self._prefix}@ask"
        return f"{self._prefix}@ask/{scope.replace('#', '**')}"

    def is_in_place(self, key: str, frame: bytes) -> bool:
        """Whether a frame came under the key of its topic.  Access control restricts keys, not contents: without this
        check a peer could send frames of topics that the rules forbid."""
        name = name_of(frame)
        rest = key[len(self._prefix) :].encode()
        return rest == b"/" + name or (name[:1] == b"$" and rest == b"@" + name[1:])

    def is_asked_in_place(self, key: str, frame: bytes) -> bool:
        """The same for a question or an answer to it."""
        try:
            return is_frame(frame) and key == self.ask(name_of(frame).decode())
        except (InvalidTopic, UnicodeDecodeError):
            return False

    def topic(self, key: str) -> str:
        """The topic that has this key."""
        rest = key[len(self._prefix) :]
        return f"${rest[1:]}" if rest.startswith("@") else rest[1:]


def _check_own(topic: str) -> str:
    if not _OWN_TOPIC.fullmatch(topic):
        raise InvalidTopic(f"{topic[:80]!r}: topics that begin with '$' are reserved, and look like {CONTROL_TOPIC!r}")
    return topic


def configure_from_url(conf: cfg.ConfigOpts, url: SplitResult) -> None:
    """Set overrides from ``zenoh://[user:password@]host:port?option=value``.  Raises InvalidConfig."""
    if not url.hostname or url.path.strip("/") or url.fragment:
        raise InvalidConfig("a zenoh URL is zenoh://host:port?option=value and nothing else")
    conf.set_override("publishers_ips", [url.hostname], group="pubsub")
    conf.set_override("publisher_bind_address", url.hostname, group="pubsub")
    if url.port is not None:
        conf.set_override("publisher_port", url.port, group="pubsub")
    if url.username is not None:
        conf.set_override("user", urllib.parse.unquote(url.username), group=GROUP)
        conf.set_override("password", urllib.parse.unquote(url.password or ""), group=GROUP)
    override_from_query(conf, url, {GROUP: OPTIONS, config.GROUP: config.URL_OPTIONS})
