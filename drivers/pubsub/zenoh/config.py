"""The ``[zenoh]`` option group, the addresses and the keys: all of the driver that needs no Zenoh to be understood.

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
                    "endpoints. router: as peer, and the publisher's process routes between all that connect to it."),
    cfg.ListOpt("endpoints", default=[],
                help="Where subscribers, and in client mode publishers, connect to: protocol/host:port. Empty: made "
                     "from publishers_ips and publisher_port, encrypted when [pubsub] tls_ca_file or tls_cert_file is "
                     "set."),
    *advanced(
        cfg.ListOpt("listen", default=[],
                    help="Where a publisher listens in peer and router mode: protocol/host:port, port 0 for a free "
                         "one. Empty: made from publisher_bind_address and publisher_port, encrypted when "
                         "[pubsub] tls_ca_file or tls_cert_file is set. Nothing else is ever listened on."),
        text("key_prefix", "heliograph",
             "Key under which topics live: topic a/b has the key heliograph/a/b. Both ends must use the same."),
        text("config_file", None, "Zenoh configuration (JSON5) to start from, for example with access control. The "
             "options of this group are written over it."),
        flag("shared_memory", True, "Move large frames between processes of a host by shared memory."),
        text("user", None, "Name by which this process makes itself known when it connects."),
        text("password", None, "Password of user.", secret=True),
        text("password_file", None, "File of the users that may connect to this process, user:password lines."),
    ),
)  # fmt: skip

LEASES_PER_TIMEOUT = 3
"""A peer that was silent for such a part of ``link_timeout`` counts as gone: Zenoh's own ten seconds."""
SESSIONS_MAX = 10_000
"""Connections that a listening publisher accepts at the same time: what the descriptors of a process allow."""
BLOCK_WAIT_S = 2.0
"""How long a congested link may hold up what must not be dropped (answers, subscriptions) before it is closed."""
QUERIES_MAX = 1024
"""Queries that wait: at a subscriber to be sent, at a publisher to be answered."""
QUERY_TIMEOUT_S = 10.0
"""How long answers to a query are awaited.  The layer above asks again long before."""
DECLARED_MAX = 1024
"""Topics that get a declared Zenoh publisher, which sends faster.  A process that sends on more topics declares none,
because each one declared slows down all that are not."""
SYNC_TIMEOUT_S = 1.0
"""How long publishers may take to confirm that filters are in effect."""
SYNC_RETRY_S = 0.01
SYNC_RETRY_MAX_S = 0.5
"""First and longest wait before publishers that did not confirm filters are asked again; it doubles."""
SYNC_GRACE_S = 3.0
"""A link without an answer for this long has no publisher of Heliograph behind it; its filters are taken to be in
effect."""

_FILE_OPTIONS = tuple(option.name for option in OPTIONS if option.name.endswith("_file"))
_TLS_FILES = tuple(option.name for option in tls_files())
_SECURE = ("tls", "quic")
_IP_ADDRESS = re.compile(r"(tcp|tls|quic|ws|udp)/(\[[0-9a-fA-F:.%]+\]|[^\s/:\[\]?#]+):(\d{1,5})([?#].*)?")
_PATH_ADDRESS = re.compile(r"unixsock-stream/\S+")
_PREFIX = re.compile(r"[\w.-]+(/[\w.-]+)*")
_OWN_TOPIC = re.compile(r"\$[\w.-]+(/[\w.-]+)*")


@dataclasses.dataclass(frozen=True)
class ZenohSettings:
    """What the options of both groups say, checked, in the words of this driver."""

    mode: str
    endpoints: tuple[str, ...]
    """Where to connect to.  Empty when only discovery can tell."""
    listen: tuple[str, ...]
    public_address: str
    """What subscribers are told when ``listen`` names no host in particular."""
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
    """Translate both groups.  Raises InvalidConfig when options contradict each other or cannot be used."""
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
    """Return an address that Zenoh can use as it stands.  Raises InvalidConfig otherwise."""
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
    match.  `everything` covers all of them and exactly them.

    Questions and their answers have the key of their scope (`pubsub_api.core.scopes`), ``heliograph@ask/a/**``, so that
    access control can restrict them as it restricts topics.  `sync` is where publishers confirm filters.

    A filter is written with ``$*`` before the prefix, ``$*heliograph/a/**``.  It selects the same keys, and as a key
    expression it is not contained in `everything`; `heliograph_drivers.pubsub.zenoh.link` tells why that matters.
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
        # Zenoh wants key expressions in one form, '*/**' and not '**/*'.  With '#' at the end that is what comes out.
        wild = {"+": "*", "#": "**"}
        levels = [wild.get(level, level) for level in check_filter(topic_filter).split("/")]
        return "/".join([self._loose_prefix, *levels])

    def ask(self, scope: str) -> str:
        """The key expression of questions of that scope, and of their responders.  Raises InvalidTopic."""
        if check_scope(scope) == CONTROL_TOPIC:
            return f"{self._prefix}@ask"
        return f"{self._prefix}@ask/{scope.replace('#', '**')}"

    def is_in_place(self, key: str, frame: bytes) -> bool:
        """Whether a frame came under the key of its topic: access control restricts keys, not what is in frames."""
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
        raise InvalidTopic(f"{topic[:80]!r}: what begins with '$' is reserved, and has the form of {CONTROL_TOPIC!r}")
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
