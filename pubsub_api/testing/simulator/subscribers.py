"""A subscribing node: the subscriber core, called as the runtime calls it, with a virtual clock."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.events import decode_events
from pubsub_api.core.frame import Kind
from pubsub_api.core.receiving.instream import Delivery
from pubsub_api.core.receiving.resync_requests import Resync
from pubsub_api.core.settings import SubscriberSettings
from pubsub_api.core.topics import CONTROL_TOPIC, FilterSet
from pubsub_api.testing.simulator.network import SimulatedLink
from pubsub_api.testing.simulator.publishers import TICK_S
from pubsub_api.testing.simulator.world import Violation

if TYPE_CHECKING:
    from pubsub_api.testing.simulator.scenario import Scenario

INBOX_FRAMES_MAX = 60
"""What a transport keeps for a process that is stopped; more is lost."""
IDLE_POLLS_MAX = 100
_GUID = slice(9, 25)

Arrival = bytes | tuple[str, bool]
"""A frame, or a link's address and whether it is up."""


class SimSubscriber:
    """One life of a subscriber: a restart makes a new one."""

    def __init__(
        self,
        scenario: Scenario,
        settings: SubscriberSettings,
        *,
        name: str,
        filters: list[str],
    ) -> None:
        world = self.world = scenario.world
        self.network, self.oracle = scenario.network, scenario.oracle
        self.name = name
        self.is_alive = True
        self.is_frozen = False
        self.is_slow = False
        self._is_draining = False
        self.has_history = settings.history is not None
        self._consume_s = world.between(*scenario.profile.consume_s)
        self._guid = world.random.randbytes(frames.GUID_BYTES)
        self.core = scenario.cores.subscriber(
            settings, filters, guid=self._guid, now=world.now, jitter=world.random.random
        )
        self._in_effect = FilterSet(filters)
        """Filters that are in effect at the transport."""
        self._listens_to: dict[str, bool] = {}
        """Topic -> whether these filters select it."""
        self._over_delivers = scenario.over_delivers
        self._links: dict[str, SimulatedLink] = {}
        self._inbox: list[Arrival] = []
        self._queue: deque[Delivery | Resync] = deque()
        self._queue_bytes_max = scenario.profile.queue_bytes_max
        self.queue_bytes = 0
        self._is_consuming = False
        self._wake_at = float("inf")
        self._idle_polls = 0
        self._idle_since = 0.0

    def start(self) -> None:
        self.world.note(self.name, "starts with", *sorted(self.core.filters))
        self.oracle.subscriber_started(self)
        self.network.subscribers.append(self)
        for address in self.network.addresses():
            if self.network.is_there(address):
                self.link_to(address).connect()
        self._schedule()

    def stop(self) -> None:
        self.is_alive = False
        self.world.note(self.name, "is gone")

    def link_to(self, address: str) -> SimulatedLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self.network.new_link(address, self._on_link)
        return link

    def links(self) -> list[SimulatedLink]:
        return list(self._links.values())

    def listens_to(self, topic: str) -> bool:
        """Whether the transport would deliver a topic to this node."""
        if self._over_delivers or topic == CONTROL_TOPIC:
            return True
        known = self._listens_to.get(topic)
        if known is None:
            known = self._listens_to[topic] = self._in_effect.match(topic)
        return known

    # -- what arrives

    def receive(self, frame: bytes) -> None:
        if self.is_frozen:
            if len(self._inbox) < INBOX_FRAMES_MAX:
                self._inbox.append(frame)
        elif self.is_alive:
            self._take_in([frame])

    def _take_in(self, received: list[bytes]) -> None:
        if self.is_slow:
            self.core.room.bytes_left = self.world.random.randrange(600)
        elif self._queue_bytes_max:
            self.core.room.bytes_left = self._queue_bytes_max - self.queue_bytes
        self.core.on_frames(received, self.world.now)
        for frame in received:
            self.oracle.reached(self, frame[_GUID])
        self._after_call()

    def _on_link(self, address: str, is_up: bool) -> None:
        if self.is_frozen:
            self._inbox.append((address, is_up))
        elif self.is_alive:
            self.world.note(self.name, "is told", address, "is", "up" if is_up else "down")
            self._apply_link(address, is_up)
            self._after_call()

    def _apply_link(self, address: str, is_up: bool) -> None:
        if is_up:
            for topic_filter in self.core.filters:
                self._in_effect.add(topic_filter)
            self._listens_to.clear()
            self.oracle.link_up(self, address)
            self.core.link_up(
                address, self.world.now, str(self.network.arrivals) if self.network.tells_arrivals else ""
            )
        else:
            self.core.link_down(address)

    # -- what the user does

    def subscribe(self, topic_filter: str) -> None:
        if self.is_alive and not self.is_frozen and self.core.filter_added(topic_filter):
            self.world.note(self.name, "subscribes", topic_filter)
            self.world.after(self.world.between(0.0, 0.1), self._in_effect_now, topic_filter)

    def _in_effect_now(self, topic_filter: str) -> None:
        if not self.is_alive or self.is_frozen or topic_filter not in self.core.filters:
            return
        self._in_effect.add(topic_filter)
        self._listens_to.clear()
        for link in self._links.values():
            if link.is_reported_up:
                self.core.filter_up(topic_filter, self.world.now)
        self._after_call()

    def unsubscribe(self, topic_filter: str) -> None:
        if self.is_alive and not self.is_frozen and len(self.core.filters) > 1 and topic_filter in self.core.filters:
            self.world.note(self.name, "unsubscribes", topic_filter)
            self.core.filter_removed(topic_filter)
            self._in_effect.discard(topic_filter)
            self._listens_to.clear()
            self.oracle.filter_removed(self)
            self._after_call()

    def freeze(self) -> None:
        """Do nothing, as a stopped process."""
        if self.is_alive:
            self.world.note(self.name, "freezes")
            self.is_frozen = True

    def thaw(self) -> None:
        if not self.is_alive or not self.is_frozen:
            return
        self.world.note(self.name, "thaws with", len(self._inbox), "arrivals")
        self.is_frozen = False
        inbox, self._inbox = self._inbox, []
        if self.world.chance(0.5):
            self._poll()
        batch: list[bytes] = []
        for arrival in inbox:
            if isinstance(arrival, bytes):
                batch.append(arrival)
            else:
                self._take_in(batch)
                batch = []
                self._on_link(*arrival)
        self._take_in(batch)
        for topic_filter in list(self.core.filters):
            if topic_filter not in self._in_effect:
                self._in_effect_now(topic_filter)
        self._poll()

    def slow_down(self) -> None:
        """The consumer's queue is nearly full from now on."""
        if self.is_alive:
            self.world.note(self.name, "consumes slowly")
            self.is_slow = True

    def speed_up(self) -> None:
        if self.is_alive and self.is_slow:
            self.world.note(self.name, "consumes quickly")
            self.is_slow = False
            self.core.room.bytes_left = float("inf")
            self._drain_queue()

    def _drain_queue(self) -> None:
        """The slow consumer has taken a part of its queue, or all of it."""
        self._is_draining = False
        if self.is_alive and self.core.room.is_full:
            room_bytes = self.world.random.randrange(600) if self.is_slow else float("inf")
            self.core.room.make_room(room_bytes, is_half_empty=not self.is_slow or self.world.chance(0.5))
            if not self.is_frozen:
                self._poll()
            self._watch_queue()

    def _watch_queue(self) -> None:
        if self.core.room.is_full and not self._queue_bytes_max and not self._is_draining:
            self._is_draining = True
            self.world.after(self.world.between(0.05, 1.0), self._drain_queue)

    # -- between core, network and consumer

    def _after_call(self) -> None:
        while True:
            out, queries = self.core.take()
            if not out and not queries:
                break
            self._idle_polls = 0
            for item in out:
                if self._queue_bytes_max:
                    self._enqueue(item)
                else:
                    self._consume(item)
            for query in queries:
                self._ask(query)
        self._watch_queue()
        self.oracle.check_subscriber(self)
        self._schedule()

    def _enqueue(self, item: Delivery | Resync) -> None:
        self._queue.append(item)
        self.queue_bytes += _size(item)
        if not self._is_consuming:
            self._is_consuming = True
            self.world.after(self._consume_s, self._dequeue)

    def _dequeue(self) -> None:
        """The consumer has finished a frame."""
        if not self.is_alive:
            return
        if not self.is_frozen:
            item = self._queue.popleft()
            self._consume(item)
            self.queue_bytes -= _size(item)
            if self.core.room.is_full:
                room_bytes = self._queue_bytes_max - self.queue_bytes
                self.core.room.make_room(room_bytes, is_half_empty=room_bytes >= self._queue_bytes_max // 2)
            self._after_call()
        self._is_consuming = bool(self._queue)
        if self._is_consuming:
            self.world.after(self._consume_s, self._dequeue)

    def _consume(self, item: Delivery | Resync) -> None:
        if isinstance(item, Resync):
            self.oracle.resynced(self, item)
            return
        frame, header, already = item
        try:
            events = decode_events(frame, header, skip=already)
        except UndecodableBody:
            self.world.note(self.name, "cannot decode", header.topic, f"{header.first}..{header.last}")
            self.core.undecodable(header, [(header.first, header.last)], self.world.now)
            self.oracle.undecodable(self, header)
        else:
            self.oracle.delivered(self, header, header.first + already, events)

    def _ask(self, query: messages.Query) -> None:
        key = self.core.settings.frame.key
        frame = frames.pack(Kind.QUERY, self._guid, query.scope, messages.encode(query), key=key)
        responders = self.network.ask(self, frame)
        wants = [f"{want.topic}:{want.first}..{want.last}" for want in query.wants]
        self.world.note(self.name, "asks", responders, "for", *(wants or sorted(query.topics)))
        self.core.asked(query.id, responders, self.world.now)

    # -- time

    def _schedule(self) -> None:
        due = max(self.core.next_deadline(), self.world.now + TICK_S)
        if due < self._wake_at:
            self._wake_at = due
            self.world.at(due, self._wake, due)

    def _wake(self, due: float) -> None:
        if self.is_alive and not self.is_frozen and due == self._wake_at:
            self._poll()

    def _poll(self) -> None:
        self._wake_at = float("inf")
        self._check_rest()
        self.core.poll(self.world.now)
        self._after_call()

    def _check_rest(self) -> None:
        """Find a core that asks to be woken again and again without doing anything: it would use a whole processor."""
        self._idle_polls += 1
        if self._idle_polls == 1:
            self._idle_since = self.world.now
        elif self._idle_polls > IDLE_POLLS_MAX:
            if self.world.now - self._idle_since < 2 * IDLE_POLLS_MAX * TICK_S:
                raise Violation(f"{self.name} asks to be woken again and again and does nothing")
            self._idle_polls = 0


def _size(item: Delivery | Resync) -> int:
    return len(item[0]) if isinstance(item, tuple) else 0
