"""Driver ``memory``: a bus inside one process, for tests, examples and first steps.

Connection string
    ``memory://name``.  All sessions of the process that use the same name share one bus.  A forked child starts
    without any bus.
Features
    Connect-based (both ends connect to the bus), queries, native wildcards.  A thread of the driver calls the receiver,
    in batches, behind a bounded queue that drops and counts frames when it is full.
Options
    Group ``[memory]``.

Every fault can be injected: ``MemoryPubSub.bus("name")`` controls a bus, and its ``faults`` drop, duplicate, reorder,
delay, cut and freeze the frames to each subscriber and the queries of each subscriber.  The driver does not cross
processes.  It says nothing about the speed or the reliability of a real transport.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.pubsub.memory import bus
from heliograph_drivers.pubsub.memory.bus import ITEM_BYTES, REGISTRY, SCHEME, Bus, Mailbox
from heliograph_drivers.pubsub.memory.publisher import MemoryPublisher
from pubsub_api.core.topics import CONTROL_TOPIC, FilterSet
from pubsub_api.driver import (
    Capabilities,
    Connected,
    Disconnected,
    LinkReport,
    PubSubApi,
    Subscribed,
)
from pubsub_api.driver_kit import DriverSubscriber, GuardedReceiver, Tally
from pubsub_api.errors import InvalidConfig, TransportUnavailable
from pubsub_api.runtime.options import advanced, text
from pubsub_api.testing.faults import FaultInjector

GROUP = "memory"

OPTIONS: Sequence[cfg.Opt] = advanced(
    text("name", "default", "Bus to use. Sessions of one process with the same name share it."),
)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


class _Link:
    """A subscriber's link to one bus, with the faults of its two directions."""

    def __init__(self, joined: Bus, number: int, held_bytes_max: int) -> None:
        self.bus = joined
        self.is_up = False
        self.frames = FaultInjector(joined.faults, f"frames {number}", held_bytes_max=held_bytes_max)
        self.queries = FaultInjector(joined.faults, f"queries {number}", held_bytes_max=held_bytes_max)


class MemorySubscriber(DriverSubscriber):
    """The receiving end.  One thread, from `daemonize` to `close`, makes all calls to the receiver."""

    def __init__(self, options: cfg.ConfigOpts.GroupAttr) -> None:
        self._mailbox: Mailbox[bytes | LinkReport] = Mailbox(
            f"memory-receive-{options.name}", bus.QUEUE_BYTES_MAX, self._deliver, self._release_held
        )
        super().__init__(Tally("frames_dropped"), lock=self._mailbox.lock)
        self._matched = FilterSet()
        self._hears_control = False
        self._links: dict[str, _Link] = {}

    def _check_address(self, address: str) -> None:
        _bus_name(address)

    def _open(self, receiver: GuardedReceiver) -> None:  # noqa: ARG002 - the thread reads the attribute
        self._mailbox.start()

    def _is_alive(self) -> bool:
        return self._mailbox.is_alive

    def _add_filter(self, topic_filter: str) -> None:
        if topic_filter == CONTROL_TOPIC:
            self._hears_control = True
        else:
            self._matched.add(topic_filter)
        for link in self._up_links():
            self._mailbox.put(Subscribed(link.bus.address, topic_filter))

    def _remove_filter(self, topic_filter: str) -> None:
        if topic_filter == CONTROL_TOPIC:
            self._hears_control = False
        else:
            self._matched.discard(topic_filter)

    def _add_link(self, address: str) -> None:
        """Join a bus and report the link.  It joins first, so that it misses no change of the bus."""
        joined = REGISTRY.get(_bus_name(address))
        link = self._links[address] = _Link(joined, joined.join_subscriber(self), bus.QUEUE_BYTES_MAX)
        self._set_up(link, joined.is_up, "")

    def _remove_link(self, address: str) -> None:
        link = self._links.pop(address)
        link.bus.leave(self)
        self._set_up(link, False, "the address was unregistered")

    def query(self, frame: bytes) -> int | None:
        self._check_usable()
        now = time.monotonic()
        with self._lock:
            links = self._up_links()
            sent = [(link, link.queries.push((frame,), now)) for link in links]
            self._mailbox.lock.notify()
        if not links:
            raise TransportUnavailable("this subscriber is not connected to any bus")
        for link, queries in sent:
            for query in queries:
                link.bus.ask(query, self)
        return sum(len(link.bus.servers()) for link in links)

    def _close(self) -> None:
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.bus.leave(self)
        self._mailbox.close()

    def offer(self, joined: Bus, topic: str, frame: bytes) -> None:
        """Called by the bus."""
        with self._lock:
            if self._matched.match(topic) or (self._hears_control and topic == CONTROL_TOPIC):
                self._receive(joined, (frame,))

    def offer_replies(self, joined: Bus, replies: Sequence[bytes]) -> None:
        """Called by a publisher that has answered a query of this subscriber."""
        with self._lock:
            self._receive(joined, replies)

    def on_bus_changed(self, changed: Bus) -> None:
        """Called by the bus: the link may have gone up or down, and frames may no longer be held."""
        with self._lock:
            link = self._links.get(changed.address)
            if link is not None:
                self._set_up(link, changed.is_up, "the bus was disconnected")
                self._mailbox.lock.notify()

    def _receive(self, joined: Bus, frames: Sequence[bytes]) -> None:
        link = self._links.get(joined.address)
        if link is not None and link.is_up:
            self._enqueue(link, frames if link.frames.is_idle else link.frames.push(frames, time.monotonic()))
            self._mailbox.lock.notify()

    def _enqueue(self, link: _Link, frames: Sequence[bytes]) -> None:
        lost = sum(not self._mailbox.put(frame, len(frame)) for frame in frames)
        if lost:
            link.bus.count_overflow(lost)
            self._tally.add("frames_dropped", lost)

    def _release_held(self) -> float | None:
        """Enqueue what the faults have held for long enough.  Returns when more is due.  Called on the thread, under
        the lock."""
        now = time.monotonic()
        dues: list[float | None] = []
        for link in self._links.values():
            self._enqueue(link, link.frames.due(now))
            for query in link.queries.due(now):
                link.bus.ask(query, self)
            dues += (link.frames.next_due, link.queries.next_due)
        return min((due for due in dues if due is not None), default=None)

    def _deliver(self, items: list[bytes | LinkReport]) -> None:
        """Call the receiver: frames that follow each other in one call, a link report in its place between them."""
        frames: list[bytes] = []
        for item in items:
            if isinstance(item, bytes):
                frames.append(item)
                continue
            self._hand_over(frames)
            frames = []
            if self._receiver is not None and not self._mailbox.is_closed:
                self._receiver.on_link(item)
        self._hand_over(frames)

    def _hand_over(self, frames: list[bytes]) -> None:
        if frames and self._receiver is not None and not self._mailbox.is_closed:
            self._receiver.on_frames(frames)

    def _set_up(self, link: _Link, is_up: bool, reason: str) -> None:
        if link.is_up != is_up:
            link.is_up = is_up
            address = link.bus.address
            arrivals = link.bus.arrivals
            self._mailbox.put(Connected(address, arrivals) if is_up else Disconnected(address, reason))

    def _up_links(self) -> list[_Link]:
        return [link for link in self._links.values() if link.is_up]


def _bus_name(address: str) -> str:
    scheme, separator, name = address.partition("://")
    if scheme != SCHEME or not separator or not name or "/" in name:
        raise InvalidConfig(f"{address!r} is not the address of a bus in memory; write {SCHEME}://name")
    return name


class MemoryPubSub(PubSubApi):
    """The driver.  See the module's description."""

    options: ClassVar[dict[str, Sequence[cfg.Opt]]] = {GROUP: OPTIONS}

    @staticmethod
    def bus(name: str = "default") -> Bus:
        """The bus ``memory://name``, made when it does not exist.  Hold it for as long as its faults are to last."""
        return REGISTRY.get(name)

    @classmethod
    def configure_from_url(cls, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        if url.path.strip("/") or url.query or url.fragment or "@" in url.netloc or ":" in url.netloc:
            raise InvalidConfig(f"{url.geturl()!r}: a bus in memory has a name and nothing else; write {SCHEME}://name")
        if url.netloc:
            conf.set_override("name", url.netloc, group=GROUP)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            bind_based=False,
            queries=True,
            native_wildcards=True,
            frame_bytes_max=bus.QUEUE_BYTES_MAX - ITEM_BYTES,
            fork_safe=True,
            reports=frozenset({"connect", "disconnect", "subscribed"}),
        )

    def listen_addresses(self) -> list[str]:
        return [f"{SCHEME}://{self.conf[GROUP].name}"]

    def get_publisher(self) -> MemoryPublisher:
        return MemoryPublisher(self.conf[GROUP])

    def get_subscriber(self) -> MemorySubscriber:
        return MemorySubscriber(self.conf[GROUP])
