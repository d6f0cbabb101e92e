"""The contract that a driver implements.  It is all that a driver needs to know of Heliograph.

A driver moves frames, best effort, between publishers and subscribers, and states in `Capabilities` what it can do.
Heliograph adds order, loss detection, repair, numbering and retries; a driver must not add its own.  The shipped suite
`pubsub_api.testing.conformance` is the definition of a correct driver.

Three rules hold for every method here:

* errors of the foreign library are translated into `pubsub_api.errors` where they occur, and never leave the driver;
* every thread a driver starts has ended when ``close()`` returns, and ``close()`` may be called twice; in a forked
  child it does nothing;
* a handle (socket, session, connection) is used by one thread at a time, and never by a child process after ``fork()``.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal, Protocol, runtime_checkable
from urllib.parse import SplitResult

from oslo_config import cfg

__all__ = [
    "Asked",
    "Capabilities",
    "Connected",
    "Disconnected",
    "LendingReceiver",
    "LinkEvent",
    "LinkReport",
    "PubSubApi",
    "PublisherApi",
    "PublisherReport",
    "QueryHandler",
    "Receiver",
    "SecurityMode",
    "SendRefused",
    "Subscribed",
    "SubscriberApi",
]

SecurityMode = Literal["curve", "tls", "mtls", "password", "acl", "unix-permissions"]
LinkEvent = Literal["connect", "disconnect", "subscribed"]


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What a driver can do under its present configuration.  The table in the documentation is printed from this."""

    bind_based: bool
    """True: the publisher owns the address and subscribers connect to it, so one process per address can publish.
    False: publishers and subscribers connect to something shared (a broker, a router, a bus in memory)."""
    queries: bool
    """``PublisherApi.serve`` and ``SubscriberApi.query`` work."""
    native_wildcards: bool
    """The transport filters ``+`` and ``#`` exactly, at least while a subscriber has few filters: for hundreds of them
    a driver may subscribe to common prefixes.  False: it delivers too much, and the core filters."""
    frame_bytes_max: int
    """The largest frame the transport carries."""
    fork_safe: bool
    """After ``fork()`` a child may open handles of its own.  False: the foreign library does not work in the child."""
    reports: frozenset[LinkEvent]
    """Which link changes a subscriber of this driver reports."""
    security: frozenset[SecurityMode] = frozenset()
    asks_by_scope: bool = False
    """Queries and replies travel under names that contain their scope (`pubsub_api.core.scopes`), so that the access
    control of the transport applies to them.  Then queries are divided by scope."""
    relays: bool = False
    """The owner of an address forwards frames of other publishers, so its reconnection says nothing about theirs."""


@dataclasses.dataclass(frozen=True)
class Connected:
    """The link to ``address`` is up and every filter registered so far is in effect there: a frame sent from now on
    is delivered, best effort.  A driver must not report this only because a socket was opened."""

    address: str
    arrivals: str = dataclasses.field(default="", compare=False)
    """For a shared address: a value that changes, and never returns, whenever a publisher connects there, for the first
    time or again, so that it could have published before this report.  The driver reads it after the filters were in
    effect, and gives it only if the transport delivers to all that are connected, or disconnects them.  Empty: not
    known."""


@dataclasses.dataclass(frozen=True)
class Subscribed:
    """A filter registered while the link was up has taken effect at ``address``."""

    address: str
    topic_filter: str


@dataclasses.dataclass(frozen=True)
class Disconnected:
    """The link to ``address`` is down.  The driver goes on trying to restore it until it is closed."""

    address: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Asked:
    """The query reached that many responders.  Reported by drivers that learn it only after ``query()`` returned."""

    address: str
    query: bytes
    responders: int


@dataclasses.dataclass(frozen=True)
class SendRefused:
    """The transport refused a frame because this publisher lacks permission: no subscriber has received it.
    Reported by drivers whose transport says so, perhaps after ``send`` returned; the publisher drops the frame."""

    address: str
    frame: bytes
    reason: str


LinkReport = Connected | Subscribed | Disconnected | Asked | SendRefused


class Receiver(Protocol):
    """What a subscriber driver calls, from any of its threads, with one call at a time per driver object.

    The methods do not block for long and do not raise."""

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Frames as they were given to ``send``, or as a query handler returned them, in order of arrival.
        Pass all frames that have arrived in one call: each call has a cost."""

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        """A message on a subscribed topic that is not a Heliograph frame (`pubsub_api.core.frame.is_frame`).

        The payload is None when the value of the topic was deleted, on a transport that reports this."""

    def on_link(self, report: LinkReport) -> None:
        """A link has changed."""


@runtime_checkable
class LendingReceiver(Receiver, Protocol):
    """A receiver that can call the callback of the program on a thread that the driver lends to it.

    It spares a lone frame the way to another thread.  Only a driver that can go on receiving in another thread
    meanwhile uses this; a driver may ignore it.
    """

    def on_frames_lent(self, frames: Sequence[bytes], relieve: Callable[[], None]) -> bool:
        """As ``on_frames``, but the call may last as long as a callback of the program.

        When it lasts, another thread calls ``relieve``, and the driver goes on receiving in a new thread.  Then this
        returns True: the calling thread must not use what it shares with the new thread, and must end.  From
        ``relieve`` until this call returns, the receiver may be called from other threads of the driver as well.
        """


QueryHandler = Callable[[bytes], Iterable[bytes]]
"""Takes a QUERY frame, returns REPLY frames for its sender, or none.  Thread-safe; does not block and does not raise.

A driver that asks by scope passes on only queries that arrived under the scope that is in their header."""

PublisherReport = Callable[[LinkReport], None]


class PublisherApi(abc.ABC):
    """The sending end.  Other methods than ``send`` and ``send_many``, which the caller serialises, are thread-safe."""

    @abc.abstractmethod
    def initialize(self, report: PublisherReport) -> None:
        """Bind or connect.  Blocks until the address is owned (bind-based) or for a bounded time (connect-based).

        A bind-based driver raises AddressInUse.  A connect-based driver does not raise when it cannot reach the server:
        it goes on trying, and reports `Connected` when it succeeds and `Disconnected` when the link is lost.
        """

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """The address that subscribers should listen to, with the real port when the system has chosen one."""

    @abc.abstractmethod
    def send(self, topic: str, frame: bytes) -> None:
        """Hand one frame to the transport.  Best effort; blocks for a bounded time at most.

        Raises TransportUnavailable when the transport cannot take the frame now, LimitReached when the frame is larger
        than ``frame_bytes_max`` of the capabilities.  A frame that was taken need not arrive.
        """

    def send_many(self, frames: Sequence[tuple[str, bytes]]) -> None:
        """Hand over several ``(topic, frame)`` pairs in order.  Override it where the transport can pipeline."""
        for topic, frame in frames:
            self.send(topic, frame)

    def settle(self, *, timeout_s: float | None = None) -> None:  # noqa: B027  most transports say it while sending
        """Block until the transport has accepted or refused all frames that were sent before.

        Frames that were refused for lack of permission have been reported as `SendRefused` when this returns.  Blocks
        for a bounded time, also without ``timeout_s``.  Raises WaitTimeout, and TransportUnavailable when frames were
        refused for another reason, or the link was lost before.  The default is right for a transport that refuses a
        frame in ``send`` or not at all.
        """

    @abc.abstractmethod
    def serve(self, handler: QueryHandler) -> None:
        """Answer queries with ``handler`` until ``close``.  Call once, after ``initialize``.  Raises NotSupported."""

    @property
    def handler_errors(self) -> int:
        """How often the query handler raised, which its contract forbids.  The driver must log it, count it and go on:
        `pubsub_api.driver_kit.guarding.GuardedHandler` does that.  The default is right for a driver without queries.
        """
        return 0

    @property
    def counters(self) -> Mapping[str, int]:
        """What this end dropped, refused or repeated since it was made, by name.  They become ``driver`` in the
        statistics.  Read from any thread, also after ``close``.

        The driver chooses the names.  Each name is there from the start, and no number ever shrinks;
        `pubsub_api.driver_kit.counting.Tally` keeps such numbers.  The default is right for an end that drops nothing.
        """
        return {}

    @abc.abstractmethod
    def close(self) -> None:
        """Block for a bounded time until sent frames have left, then release everything.  Idempotent."""


class SubscriberApi(abc.ABC):
    """The receiving end.  Methods may be called from any thread, before or after ``daemonize``."""

    @abc.abstractmethod
    def initialize(self, receiver: Receiver) -> None:
        """Remember the receiver, which is called from ``daemonize`` on.  Opens nothing."""

    @abc.abstractmethod
    def register_topic(self, topic_filter: str) -> bool:
        """Subscribe to a filter; True when it is new.  On a link that is up, `Subscribed` follows when it is in effect.
        Topics of Heliograph itself, which begin with ``$``, are passed here, too, and are matched exactly."""

    @abc.abstractmethod
    def unregister_topic(self, topic_filter: str) -> bool:
        """Drop a filter; True when it was registered.  Filters that overlap with it stay in effect."""

    @abc.abstractmethod
    def register_listen_address(self, address: str) -> bool:
        """Listen to a publisher's address as well; True when it is new.  Raises InvalidConfig on a bad address."""

    @abc.abstractmethod
    def unregister_listen_address(self, address: str) -> bool:
        """Stop listening to an address; True when it was registered.  A link that was up is reported `Disconnected`."""

    @abc.abstractmethod
    def daemonize(self) -> None:
        """Start receiving on threads of the driver.  Does not block.  The driver goes on trying to reach a server that
        it cannot reach, and reports `Connected` when it succeeds."""

    @property
    @abc.abstractmethod
    def is_running(self) -> bool:
        """True from ``daemonize`` to ``close`` while the receiving thread lives."""

    @property
    @abc.abstractmethod
    def receiver_errors(self) -> int:
        """How often the receiver raised, which its contract forbids.  The driver must log it, count it and go on:
        `pubsub_api.driver_kit.guarding.GuardedReceiver` does that."""

    @property
    def counters(self) -> Mapping[str, int]:
        """As `PublisherApi.counters`, for this end."""
        return {}

    @abc.abstractmethod
    def query(self, frame: bytes) -> int | None:
        """Send a QUERY frame to all responders; their REPLY frames arrive through ``on_frames``.

        A driver that asks by scope sends it only to responders of the scope that is the topic in the frame's header.

        Returns the number of responders it was sent to; None when that is not known yet (`Asked` follows), or never
        will be.  With the number, the caller can stop waiting when all have replied.

        Best effort.  Does not block: the caller does time-outs and retries.  Raises NotSupported, and
        TransportUnavailable when no link is up.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop receiving and end every thread; the receiver is not called after this returns.  Idempotent.
        Must not deadlock when the receiver calls it."""


class PubSubApi(abc.ABC):
    """A driver: it makes the two ends for one configuration.  Loaded by entry point, made with ``conf``."""

    options: ClassVar[dict[str, Sequence[cfg.Opt]]] = {}
    """Option group -> options that this driver adds.  Registered on ``conf`` before the constructor is called."""

    uses_tls: ClassVar[bool] = False
    """False: certificates in ``[pubsub]`` are refused, because this driver would encrypt nothing with them."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf

    @classmethod
    @abc.abstractmethod
    def configure_from_url(cls, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        """Translate the parts of a URL into option overrides on ``conf``.  Raises InvalidConfig."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What this driver can do as configured."""

    @abc.abstractmethod
    def listen_addresses(self) -> list[str]:
        """The addresses that a subscriber listens to by default: from the configuration."""

    @abc.abstractmethod
    def get_publisher(self) -> PublisherApi:
        """A new sending end, not yet initialized."""

    @abc.abstractmethod
    def get_subscriber(self) -> SubscriberApi:
        """A new receiving end, not yet initialized."""
