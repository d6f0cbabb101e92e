"""The contract a driver implements.  It is all that a driver needs to know of Heliograph.

A driver moves frames, best effort, between publishers and subscribers, and states in `Capabilities` what it can do.
Order, loss detection, repair, numbering and retries live above it; a driver that adds its own is wrong.  The shipped
suite `pubsub_api.testing.conformance` is the definition of correct.

Three rules hold for every method here:

* errors of the foreign library are translated into `pubsub_api.errors` where they occur, and never leave it raw;
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
    False: everybody connects to something shared (a broker, a router, a bus in memory)."""
    queries: bool
    """``PublisherApi.serve`` and ``SubscriberApi.query`` work."""
    native_wildcards: bool
    """The transport itself filters ``+`` and ``#`` exactly, as long as a subscriber has few filters: a driver may
    declare hundreds of them by their common beginnings.  Otherwise it over-delivers and the core filters."""
    frame_bytes_max: int
    """The largest frame the transport carries."""
    fork_safe: bool
    """After ``fork()`` a child may open handles of its own.  False: the foreign library cannot live in the child."""
    reports: frozenset[LinkEvent]
    """Which link changes a subscriber of this driver reports."""
    security: frozenset[SecurityMode] = frozenset()
    asks_by_scope: bool = False
    """Questions and answers travel in places named after their scope (`pubsub_api.core.scopes`), so that the access
    control of the transport holds for them.  Then questions are divided by scope."""
    relays: bool = False
    """The owner of an address passes on what others publish, so that its return tells nothing of theirs."""


@dataclasses.dataclass(frozen=True)
class Connected:
    """The link to ``address`` is up and every filter registered so far is in effect there: a frame sent from now on
    is delivered, best effort.  A driver must not report this merely because a socket opened."""

    address: str
    arrivals: str = dataclasses.field(default="", compare=False)
    """Where the address is shared: a value that is never the same again once a publisher has come there, connected for
    the first time or again, and could have published before this report.  Read after the filters were in effect, and
    only told by a transport that delivers to all that are connected, or disconnects them.  Empty: not known."""


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
    """``query`` reached that many responders.  Reported by drivers that learn it only after ``query()`` returned."""

    address: str
    query: bytes
    responders: int


@dataclasses.dataclass(frozen=True)
class SendRefused:
    """The transport did not let this publisher send a frame, for lack of permission: no subscriber has got it.
    Reported by drivers whose transport says so, perhaps after ``send`` returned; the publisher forgets the frame."""

    address: str
    frame: bytes
    reason: str


LinkReport = Connected | Subscribed | Disconnected | Asked | SendRefused


class Receiver(Protocol):
    """What a subscriber driver calls.  Calls may come from any thread of the driver, one at a time per driver object;
    none of them blocks for long and none of them raises."""

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Frames as they were given to ``send``, or as a query handler returned them, in order of arrival.
        Pass all that are at hand in one call: the cost of a call is per call, not per frame."""

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        """A message on a subscribed topic that is not a Heliograph frame (`pubsub_api.core.frame.is_frame`).

        None for the payload says that the topic's value was deleted, on a transport that can say so."""

    def on_link(self, report: LinkReport) -> None:
        """A change of a link, as a value."""


@runtime_checkable
class LendingReceiver(Receiver, Protocol):
    """A receiver that can use the driver's own thread to call its user, which spares a lone frame the way to another.

    A driver that can go on receiving in another thread while this one is away looks for it; others never need to.
    """

    def on_frames_lent(self, frames: Sequence[bytes], relieve: Callable[[], None]) -> bool:
        """As ``on_frames``, except that the call may last as long as a callback of the user does.

        When it lasts, ``relieve`` is called from another thread: the driver goes on receiving in a new one.  True says
        that this happened: the calling thread is not needed any more, must not touch what it shares with its successor,
        and ends.  Until this call returns, the receiver may be called from other threads of the driver as well.
        """


QueryHandler = Callable[[bytes], Iterable[bytes]]
"""Takes a QUERY frame, returns REPLY frames for the asker (none is allowed).  Thread-safe, quick, does not raise.

A driver that asks by scope passes on only what came in the place of the scope in the frame's header."""

PublisherReport = Callable[[LinkReport], None]


class PublisherApi(abc.ABC):
    """The sending end.  The caller serialises ``send`` and ``send_many``; the rest may be called from any thread."""

    @abc.abstractmethod
    def initialize(self, report: PublisherReport) -> None:
        """Bind or connect.  Blocks until the address is owned (bind-based) or for a bounded time (connect-based).

        A bind-based driver raises AddressInUse; a connect-based one whose server is absent does not raise: it goes on
        trying and reports `Connected` when it succeeds, `Disconnected` when the link is lost.
        """

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """The address subscribers should listen to, with the real port when an ephemeral one was asked for."""

    @abc.abstractmethod
    def send(self, topic: str, frame: bytes) -> None:
        """Hand one frame to the transport.  Best effort; blocks for a bounded time at most.

        Raises TransportUnavailable when the transport refused the frame for now, LimitReached when the frame is larger
        than ``frame_bytes_max`` of the capabilities.  Silence does not mean delivery.
        """

    def send_many(self, frames: Sequence[tuple[str, bytes]]) -> None:
        """Hand over several ``(topic, frame)`` pairs in order.  Override it where the transport can pipeline."""
        for topic, frame in frames:
            self.send(topic, frame)

    def settle(self, *, timeout_s: float | None = None) -> None:  # noqa: B027  most transports say it while sending
        """Return when the transport has said of all that was sent before whether it refuses it.

        For callers that must know: what was refused for lack of permission was reported as `SendRefused` by then.
        Bounded, also without a time.  Raises WaitTimeout, and TransportUnavailable when something else was refused or
        the link was lost before all was said.  A driver whose transport refuses nothing later leaves this as it is.
        """

    @abc.abstractmethod
    def serve(self, handler: QueryHandler) -> None:
        """Answer queries with ``handler`` until ``close``.  Call once, after ``initialize``.  Raises NotSupported."""

    @property
    def handler_errors(self) -> int:
        """How often the query handler raised, which its contract forbids.  The driver logs it, counts it and goes on:
        hold a `pubsub_api.driver_kit.guarding.GuardedHandler` in the handler's place, which does that.  A driver
        without queries leaves this as it is."""
        return 0

    @property
    def counters(self) -> Mapping[str, int]:
        """What this end dropped, refused or did again since it was made, by name.  They become ``driver`` in the
        statistics.  Read from any thread, now and then, also after ``close``.

        The names are the driver's own, each is there from the start, and no number ever shrinks; a
        `pubsub_api.driver_kit.counting.Tally` keeps such numbers.  An end that drops nothing leaves this as it is.
        """
        return {}

    @abc.abstractmethod
    def close(self) -> None:
        """Give what was sent a bounded time to leave, then release everything.  Idempotent."""


class SubscriberApi(abc.ABC):
    """The receiving end.  Methods may be called from any thread, before or after ``daemonize``."""

    @abc.abstractmethod
    def initialize(self, receiver: Receiver) -> None:
        """Remember whom to call.  Opens nothing yet."""

    @abc.abstractmethod
    def register_topic(self, topic_filter: str) -> bool:
        """Subscribe to a filter; True when it is new.  On a live link `Subscribed` follows when it is in effect.
        ``$``-topics of Heliograph itself are passed here too and are matched exactly."""

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
        """Start receiving on threads of the driver.  Returns at once; a server that is absent is awaited, with
        `Connected` as the news that it came."""

    @property
    @abc.abstractmethod
    def is_running(self) -> bool:
        """True from ``daemonize`` to ``close`` while the receiving thread lives."""

    @property
    @abc.abstractmethod
    def receiver_errors(self) -> int:
        """How often the receiver raised, which its contract forbids.  The driver logs it, counts it and goes on: hold
        a `pubsub_api.driver_kit.guarding.GuardedReceiver` in the receiver's place, which does that."""

    @property
    def counters(self) -> Mapping[str, int]:
        """As `PublisherApi.counters`, of this end."""
        return {}

    @abc.abstractmethod
    def query(self, frame: bytes) -> int | None:
        """Send a QUERY frame to everyone that serves queries; the REPLY frames arrive through ``on_frames``.

        A driver that asks by scope asks those who answer in the scope that stands as the topic in the frame's header.

        Returns how many responders it was sent to, None when that is not known yet (`Asked` follows) or never will be.
        A caller that knows the number need not wait for answers that will never come.

        Best effort, does not block and does not wait: time-outs and retries belong to the caller.  Raises NotSupported,
        or TransportUnavailable when no link is up.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop receiving and end every thread; no call to the receiver happens after it returns.  Idempotent.
        Called from within the receiver it must not deadlock."""


class PubSubApi(abc.ABC):
    """A driver: a factory of the two ends under one configuration.  Loaded by entry point, made with ``conf``."""

    options: ClassVar[dict[str, Sequence[cfg.Opt]]] = {}
    """Option group -> options that this driver adds.  Registered on ``conf`` before the constructor is called."""

    uses_tls: ClassVar[bool] = False
    """False: certificates in ``[pubsub]`` are refused, because nothing would be encrypted with them."""

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
        """The addresses a subscriber listens to when it is given no others: from the configuration."""

    @abc.abstractmethod
    def get_publisher(self) -> PublisherApi:
        """A new sending end, not yet initialized."""

    @abc.abstractmethod
    def get_subscriber(self) -> SubscriberApi:
        """A new receiving end, not yet initialized."""
