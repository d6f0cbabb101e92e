"""A session: one configuration, one driver, and the publishers and subscribers made from them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oslo_config import cfg

from pubsub_api import config, loading, opening, settings, tracing
from pubsub_api.cache_node import CacheNode, CacheStatistics, FrameStore
from pubsub_api.config import GROUP
from pubsub_api.core.clock import HybridClock
from pubsub_api.core.durability import Durability
from pubsub_api.core.errors import Closed, UsageError
from pubsub_api.core.frame import GUID_BYTES
from pubsub_api.core.sending.publisher import Predecessor
from pubsub_api.core.settings import History
from pubsub_api.driver import Capabilities, PubSubApi
from pubsub_api.publishing.default_name import default_name
from pubsub_api.publishing.publisher import Publisher
from pubsub_api.publishing.statistics import PublisherStatistics
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.plugins import without_password
from pubsub_api.settings import CLOCK_SKEW_MAX_S
from pubsub_api.subscribing import history as histories
from pubsub_api.subscribing.dispatching import Callbacks, OnEvent, OnEvents, OnFrames, OnResync, in_batches
from pubsub_api.subscribing.history import HistorySource
from pubsub_api.subscribing.history_gate import HistoryGate
from pubsub_api.subscribing.past import Past, understood
from pubsub_api.subscribing.scheme import QUEUE, SHARED, GroupMember, OnGroupEvent, OnGroupEvents, scheme_of
from pubsub_api.subscribing.statistics import SubscriberStatistics
from pubsub_api.subscribing.subscriber import Subscriber

HISTORY_HOLD_S = 60.0
"""How long live events wait for history before they are delivered without it: longer than a durability service that was
just elected needs to answer, and short for a program that receives nothing meanwhile."""
HISTORY_OBJECTS_MAX = 1_000_000
"""Objects for which a subscriber with history remembers what was delivered, about 100 bytes each.  Beyond this, the
object whose last change is the oldest is forgotten."""
_HISTORY_READ_TIMEOUT_S = 3600.0
"""A read of history that takes longer is repeated: long enough for the largest."""
_HISTORY_RETRY_S = 0.5
"""Pause after a failed read of history."""


class Session(Closeable):
    """Makes publishers, subscribers and caches, and closes those that are still open when it is closed."""

    def __init__(self, conf: cfg.ConfigOpts, driver: PubSubApi) -> None:
        self._conf = conf
        self._driver = driver
        self._children: dict[int, Publisher | Subscriber | CacheNode | GroupMember] = {}
        """By running number.  Those that were closed are removed when the next one is made."""
        self._children_made = 0
        self._is_closed = False
        # One clock for all: an event published after another was received has a later timestamp than that one.
        self._clock = HybridClock(int(CLOCK_SKEW_MAX_S * 1e9))

    @property
    def conf(self) -> cfg.ConfigOpts:
        return self._conf

    @property
    def capabilities(self) -> Capabilities:
        """What the selected driver can do."""
        return self._driver.capabilities

    def _about(self) -> str:
        addresses = map(without_password, self._driver.listen_addresses())
        return f"of {type(self._driver).__name__} {', '.join(addresses)}"

    def publisher(
        self, *, name: str = "", predecessor: Predecessor | None = None, guid: bytes | None = None
    ) -> Publisher:
        """A new publisher.  ``name`` must be the same after a restart; by default ``publisher_name``, or host and
        program.

        ``guid`` is for a program that sends the same events in the same order again after a crash: with the same GUID
        they get the same numbers, and subscribers that received them before drop them.  By default each publisher has
        a new GUID.  Raises AddressInUse on a bind-based driver whose address is in use, UsageError for a GUID of
        another length.
        """
        self._check_open()
        if guid is not None and len(guid) != GUID_BYTES:
            raise UsageError(f"a GUID has {GUID_BYTES} bytes, not {len(guid)}")
        pubsub = self._conf[GROUP]
        publisher = Publisher(
            self._driver,
            settings.publisher_settings(self._conf, self._driver.capabilities),
            name=name or pubsub.publisher_name,
            backlog_bytes_max=config.SEND_QUEUE_BYTES_MAX,
            clock=self._clock,
            predecessor=predecessor,
            guid=guid,
        )
        if tracing.active is not None:
            tracing.active.trace_publisher(publisher, has_batches=True)
        self._adopt(publisher)
        return publisher

    def subscriber(
        self,
        topics: Sequence[str],
        on_event: OnEvent | None = None,
        *,
        on_events: OnEvents | None = None,
        on_resync: OnResync | None = None,
        addresses: Sequence[str] | None = None,
        past: Past | None = None,
    ) -> Subscriber:
        """A new subscriber to topic filters.  Does not block; `Subscriber.wait_ready` waits until it is in effect.

        ``on_event`` is called with each event, ``on_events`` with whole batches (cheaper); without both, iterate over
        the subscriber, or call `Subscriber.get`.  ``addresses`` replaces the addresses that the configuration has.

        ``past`` selects events from before the subscription, which are delivered first: ``"all"`` that publishers and
        caches have; a number: the newest events of each stream; or history that is kept at least as
        ``"transient_local"``, ``"transient"`` or ``"persistent"`` (`pubsub_api.subscribing.past` has all values).

        Filters such as ``$shared/GROUP/FILTER`` are handled by the package that is installed for them; see `group`.
        Raises InvalidTopic, InvalidConfig, UsageError.
        """
        self._check_open()
        _check_callable(on_event=on_event, on_events=on_events, on_resync=on_resync)
        if tracing.active is not None:
            on_event, on_events = tracing.active.callbacks(on_event, on_events)
        wanted = understood(past)
        scheme = scheme_of(_checked(topics))
        if scheme is not None:
            if on_resync or addresses or wanted:
                raise UsageError("on_resync, addresses and past have no meaning for these filters")
            subscriber: Any = scheme.subscriber(
                self, topics, on_event=on_event, on_events=on_events, auto_ack=True, member=""
            )  # fmt: skip
            self._adopt(subscriber)
            found: Subscriber = subscriber  # by its methods, not by its class
            return found
        gate = None
        callbacks = Callbacks(in_batches(on_event, on_events), on_resync=on_resync)
        if isinstance(wanted, Durability | HistorySource) and wanted is not Durability.VOLATILE:
            gate = self._gate(topics, wanted, callbacks)
            callbacks = Callbacks(gate.live, on_resync=gate.resync)
            wanted = History() if gate.asks_publishers else None
        history = wanted if isinstance(wanted, History) else None
        return self._bus_subscriber(topics, addresses, callbacks, gate=gate, history=history)

    def frames(
        self,
        topics: Sequence[str],
        on_frames: OnFrames,
        *,
        on_resync: OnResync | None = None,
        takes_repeats: bool = False,
        addresses: Sequence[str] | None = None,
        past: int | str | History | None = None,
    ) -> Subscriber:
        """A new subscriber for programs that store or forward frames: ``on_frames`` gets them undecoded.

        With ``takes_repeats`` it also gets frames that arrive again, or after a resync has reported them as lost: for
        a program that stores frames, knows by their numbers which it has, and needs no order.  ``past`` is ``"all"``
        that publishers and caches have, or a number.  Otherwise as `subscriber`.
        """
        self._check_open()
        _check_callable(on_frames=on_frames, on_resync=on_resync)
        wanted = understood(past)
        if scheme_of(_checked(topics)) is not None or not (wanted is None or isinstance(wanted, History)):
            raise UsageError("only publishers and caches have frames: groups and kept history have none")
        callbacks = Callbacks(on_frames=on_frames, on_resync=on_resync)
        return self._bus_subscriber(topics, addresses, callbacks, history=wanted, takes_repeats=takes_repeats)

    def group(
        self,
        name: str,
        topic_filter: str,
        on_event: OnGroupEvent | None = None,
        *,
        on_events: OnGroupEvents | None = None,
        ordered: bool = True,
        auto_ack: bool = True,
        member: str = "",
    ) -> GroupMember:
        """Join a group of consumers that share the events of a filter; each event goes to one of them.

        ``ordered`` keeps the order of every topic and key; without it, the group is a queue of work, and each event
        goes to a member that has room.  The same as the filters ``$shared/NAME/FILTER`` and ``$queue/NAME/FILTER`` of
        `subscriber`.  With ``auto_ack`` an event is acknowledged when the callback returns, or when the program asks
        for the next one; without it, call `GroupMember.acknowledge` or `refuse` for each.  ``member`` is the name of
        this program in the group, and must be the same after a restart.

        Needs a durable log: ``open(url, log=url)``, or ``[log] url``.  Blocks until the group is found or declared in
        it.  Raises InvalidTopic, InvalidConfig, UsageError, DriverNotFound, and what the log and the group raise.
        """
        self._check_open()
        _check_callable(on_event=on_event, on_events=on_events)
        if tracing.active is not None:
            on_event, on_events = tracing.active.callbacks(on_event, on_events)
        if not isinstance(name, str) or "/" in name or not name:
            raise UsageError(f"a group has a name without /, not {name!r}")
        topics = [f"{SHARED if ordered else QUEUE}/{name}/{topic_filter}"]
        scheme = scheme_of(topics)
        assert scheme is not None
        made = scheme.subscriber(
            self, topics, on_event=on_event, on_events=on_events, auto_ack=auto_ack, member=member
        )  # fmt: skip
        self._adopt(made)
        return made

    def _bus_subscriber(
        self,
        topics: Sequence[str],
        addresses: Sequence[str] | None,
        callbacks: Callbacks,
        *,
        gate: HistoryGate | None = None,
        **wishes: Any,
    ) -> Subscriber:
        """``wishes``: fields of the settings that no option has."""
        configured = settings.subscriber_settings(self._conf, self._driver.capabilities)
        subscriber = Subscriber(
            self._driver,
            dataclasses.replace(configured, **wishes),
            list(topics),
            callbacks,
            addresses=self._driver.listen_addresses() if addresses is None else addresses,
            gate=gate,
            clock=self._clock,
        )
        self._adopt(subscriber)
        return subscriber

    def _gate(self, topics: Sequence[str], past: Durability | HistorySource, callbacks: Callbacks) -> HistoryGate:
        return HistoryGate(
            past if isinstance(past, HistorySource) else histories.open_source(self, topics, past),
            callbacks.on_events,
            callbacks.on_resync,
            hold_s=HISTORY_HOLD_S,
            objects_max=HISTORY_OBJECTS_MAX,
            read_timeout_s=_HISTORY_READ_TIMEOUT_S,
            retry_s=_HISTORY_RETRY_S,
        )

    def cache(
        self,
        topics: Sequence[str],
        *,
        name: str = "",
        addresses: Sequence[str] | None = None,
        store: FrameStore | None = None,
    ) -> CacheNode:
        """A stand-alone reliability cache for the topics that the filters select, of all publishers.

        On a bind-based driver it binds the publisher address of this session, so that subscribers can reach it, and
        listens to ``addresses``.  Frames that are not in its memory are looked up in ``store``, if there is one.
        Raises AddressInUse, InvalidTopic, InvalidConfig.
        """
        self._check_open()
        cache = CacheNode(
            self._driver,
            self._conf,
            list(topics),
            name=name or f"{default_name()}/cache",
            addresses=self._driver.listen_addresses() if addresses is None else addresses,
            store=store,
        )
        self._adopt(cache)
        return cache

    def statistics(self) -> list[tuple[str, int, PublisherStatistics | SubscriberStatistics | CacheStatistics]]:
        """Role (publisher, subscriber, cache, member), running number and statistics of each open object."""
        roles: dict[type, str] = {Publisher: "publisher", Subscriber: "subscriber", CacheNode: "cache"}
        self._forget_closed()
        return [
            (roles.get(type(child), "member"), number, child.statistics())
            for number, child in list(self._children.items())
        ]

    def close(self) -> None:
        """Close all objects that this session has made.  Blocks until their threads have ended.  Idempotent."""
        self._is_closed = True
        while self._children:
            self._children.popitem()[1].close()

    def _adopt(self, child: Publisher | Subscriber | CacheNode | GroupMember) -> None:
        self._forget_closed()
        self._children[self._children_made] = child
        self._children_made += 1

    def _forget_closed(self) -> None:
        for number, child in list(self._children.items()):
            if child.is_closed:
                self._children.pop(number, None)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the session is closed")


def _check_callable(**callbacks: object) -> None:
    """Raises UsageError now, instead of an error at each event."""
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise UsageError(f"{name} is called back, and {callback!r} cannot be called")


def _checked(topics: Sequence[str]) -> Sequence[str]:
    """The topics.  Raises UsageError for one string, which would be taken for a list of its characters."""
    if isinstance(topics, str):
        raise UsageError(f"topics is a list of filters, not a string: [{topics!r}]")
    return topics


def open(
    url: str | None = None,
    *,
    log: str | None = None,
    config_files: Iterable[str | os.PathLike[str]] | None = None,
    conf: cfg.ConfigOpts | None = None,
    wrap_driver: Callable[[PubSubApi], PubSubApi] | None = None,
) -> Session:
    """Open a session from a URL (``zmq://127.0.0.1:8866``), from configuration files, or from a ``conf`` object.

    ``log`` is the URL of the durable log, for groups of consumers.  URLs take precedence over files.  Without arguments
    the environment configures it (`pubsub_api.opening`), and otherwise the defaults of the options.

    Opens no connection.  ``wrap_driver`` may put a layer between Heliograph and the driver, such as the fault injector
    of `pubsub_api.testing`.  Raises InvalidConfig, DriverNotFound, DriverDependencyMissing.
    """
    if conf is not None and not url is log is config_files is None:
        raise UsageError("give conf, or url, log and config_files, but not both")
    if conf is None:
        if url is log is config_files is None:
            found = opening.surroundings()
            url, log, config_files = found.bus, found.log, found.config_files
        conf = opening.conf_of(bus=url, log=log, config_files=config_files or ())
    driver = loading.build_driver(conf)
    return Session(conf, wrap_driver(driver) if wrap_driver else driver)
