"""Checks the delivery contract against a complete record of what was published.

The `Oracle` has the database (the newest version of every object) and, for each subscriber, a `View`: what reached its
consumer, what its resyncs covered, what it is owed (must still get or be told of), and a local cache as a correct
program keeps it.  Order, repetition, silent holes and bounds are checked at once; what is owed is checked at the end,
after a quiet time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub_api.core.events import Event, encode_event
from pubsub_api.core.frame import Header
from pubsub_api.core.messages import Want
from pubsub_api.core.receiving.resync_requests import Reason, Resync
from pubsub_api.core.sending.cache import FrameCache
from pubsub_api.core.settings import CacheSettings
from pubsub_api.core.topics import FilterSet
from pubsub_api.testing.simulator.profiles import Profile
from pubsub_api.testing.simulator.world import Violation, World

if TYPE_CHECKING:
    from pubsub_api.testing.simulator.network import Network
    from pubsub_api.testing.simulator.publishers import SimPublisher
    from pubsub_api.testing.simulator.subscribers import SimSubscriber

StreamKey = tuple[bytes, str]
FRAME_BYTES_MAX = 400
"""No frame of a simulation is larger."""
FORGED_VERSION = 0
"""No published event has this version."""
JOIN_REASONS = frozenset({Reason.INITIAL, Reason.NEW_LINK, Reason.SUBSCRIBED})


def forged_event(stamp: int) -> bytes:
    return encode_event(Event(table="t", key="k", action="set", value=0, version=FORGED_VERSION), stamp)


@dataclasses.dataclass
class Stream:
    """A stream as its publisher made it."""

    address: str
    topic: str
    head: int = 0


class View:
    """What the consumer of one subscriber knows, and what it is owed."""

    def __init__(self) -> None:
        self.in_force = FilterSet()
        """Filters whose resync was delivered: from then on nothing may be lost in silence."""
        self.last: dict[StreamKey, int] = {}
        self.received: dict[StreamKey, set[int]] = {}
        self.covered: dict[StreamKey, int] = {}
        """Numbers up to this one were read from the database by a resync."""
        self.owed_from: dict[StreamKey, int] = {}
        """Numbers from this one on are owed, unless they were received or covered."""
        self.unexcused: dict[StreamKey, int] = {}
        """Numbers up to this one are owed even if the publisher is unknown: a link was reported up after them."""
        self.cache: dict[tuple[str, str], int] = {}
        self.reached: set[bytes] = set()
        """Publishers that the subscriber has received frames of, and has not forgotten."""
        self.forgotten = 0
        self.ready_at = float("inf")
        """The time of its first resync."""
        self.resyncs: Counter[Reason] = Counter()
        self._is_in_force: dict[str, bool] = {}
        """Topic -> the result of `is_in_force`."""

    def is_in_force(self, topic: str) -> bool:
        known = self._is_in_force.get(topic)
        if known is None:
            known = self._is_in_force[topic] = self.in_force.match(topic)
        return known

    def enforce(self, topic_filter: str) -> None:
        if self.in_force.add(topic_filter):
            self._is_in_force.clear()

    def narrow(self, filters: FilterSet) -> None:
        """Filters were removed: topics that no other filter selects are owed no more, and their past is forgotten."""
        for topic_filter in [kept for kept in self.in_force if kept not in filters]:
            self.in_force.discard(topic_filter)
        self._is_in_force.clear()
        for owed in [key for key in self.owed_from if not self.is_in_force(key[1])]:
            del self.owed_from[owed]
        for seen in [key for key in self.last if not filters.match(key[1])]:
            del self.last[seen]


class Oracle:
    def __init__(self, world: World, profile: Profile) -> None:
        self.world = world
        self.profile = profile
        self.network: Network | None = None
        self.streams: dict[StreamKey, Stream] = {}
        self.database: dict[tuple[str, str], tuple[int, StreamKey, int]] = {}
        """Topic and key -> version, stream and number of the event that published this version."""
        self.views: dict[SimSubscriber, View] = {}
        self.events = 0
        self.deliveries = 0
        self.resyncs: Counter[str] = Counter()

    # -- what was published

    def publisher_started(self, publisher: SimPublisher) -> None:
        if any(key[0] == publisher.core.guid for key in self.streams):
            raise Violation(f"{publisher.label} has the GUID of another publisher")

    def published(self, publisher: SimPublisher, topic: str, number: int, key: str) -> int:
        """A change is committed and numbered; returns its version."""
        self.events += 1
        stream_key = (publisher.core.guid, topic)
        stream = self.streams.get(stream_key)
        if stream is None:
            stream = self.streams[stream_key] = Stream(publisher.address, topic)
        stream.head = number
        self.database[topic, key] = (self.events, stream_key, number)
        for subscriber, view in self.views.items():
            if subscriber.is_alive and view.is_in_force(topic):
                view.owed_from.setdefault(stream_key, number)
                if self.profile.is_hello_sure:
                    self.world.after(self._notice_s(), self._check_noticed, subscriber, stream_key, number)
        return self.events

    # -- what a subscriber's consumer sees

    def subscriber_started(self, subscriber: SimSubscriber) -> None:
        self.views[subscriber] = View()

    def reached(self, subscriber: SimSubscriber, guid: bytes) -> None:
        if guid in subscriber.core.publishers:
            self.views[subscriber].reached.add(guid)

    def link_up(self, subscriber: SimSubscriber, address: str) -> None:
        view = self.views[subscriber]
        assert self.network is not None
        for key, stream in self.streams.items():
            if self.network.is_broker or stream.address == address:
                view.unexcused[key] = stream.head

    def filter_removed(self, subscriber: SimSubscriber) -> None:
        self.views[subscriber].narrow(subscriber.core.filters)

    def delivered(self, subscriber: SimSubscriber, header: Header, first: int, events: Sequence[Event]) -> None:
        if events[0].version == FORGED_VERSION:
            self.world.note(subscriber.name, "gets what was forged", header.topic, first)
            return
        view = self.views[subscriber]
        key = (header.guid, header.topic)
        self.world.note(subscriber.name, "gets", header.topic, f"{first}..{header.last}", header.guid.hex()[:8])
        self._check_order(subscriber, view, key, first)
        received = view.received.setdefault(key, set())
        for number, event in enumerate(events, first):
            self.deliveries += 1
            if event.value != number or event.topic != header.topic:
                raise Violation(f"{subscriber.name} got event {event} as number {number} of {header.topic}")
            received.add(number)
            slot = (event.topic, event.key)
            if event.version > view.cache.get(slot, 0):
                view.cache[slot] = event.version
        view.last[key] = header.last

    def undecodable(self, subscriber: SimSubscriber, header: Header) -> None:
        view = self.views[subscriber]
        key = (header.guid, header.topic)
        view.last[key] = max(header.last, view.last.get(key, 0))

    def _check_order(self, subscriber: SimSubscriber, view: View, key: StreamKey, first: int) -> None:
        last = view.last.get(key)
        if last is not None and first <= last:
            if subscriber.core.counters.peers.streams_evicted and view.covered.get(key, 0) >= last:
                return  # it had to forget the stream, and a resync covered it
            raise Violation(f"{subscriber.name} got {key[1]} {first} after {last} of {key[0].hex()[:8]}")
        if not view.is_in_force(key[1]):
            return
        skipped_from = max(view.owed_from.get(key, first), (last or 0) + 1, view.covered.get(key, 0) + 1)
        if skipped_from < first:
            raise Violation(f"{subscriber.name} got {key[1]} {first} and was not told of {skipped_from}..{first - 1}")

    def resynced(self, subscriber: SimSubscriber, resync: Resync) -> None:
        view = self.views[subscriber]
        topics = sorted(resync.topics)
        self.world.note(subscriber.name, "resyncs", resync.reason.value, *topics, *map(str, resync.lost))
        self._check_resync(subscriber, view, resync)
        view.ready_at = min(view.ready_at, self.world.now)
        view.resyncs[resync.reason] += 1
        self.resyncs[resync.reason.value] += 1
        selected = FilterSet(topics)
        covered = {topic for topic in {key[1] for key in self.streams} if selected.match(topic)}
        for key, stream in self.streams.items():
            if key[1] in covered:
                view.covered[key] = stream.head
        for slot, (version, _, _) in self.database.items():
            if slot[0] in covered:
                view.cache[slot] = version
        for topic_filter in topics:
            if topic_filter in subscriber.core.filters:
                view.enforce(topic_filter)

    def _check_resync(self, subscriber: SimSubscriber, view: View, resync: Resync) -> None:
        if resync.generation != sum(view.resyncs.values()) + 1:
            raise Violation(f"{subscriber.name} got resync {resync.generation} after {sum(view.resyncs.values())}")
        if self.profile.is_faultless and not resync.reasons <= JOIN_REASONS:
            raise Violation(f"{subscriber.name} resyncs for {resync.reason.value} although nothing went wrong")
        if self.profile.is_join_sure and Reason.UNKNOWN_STREAM in resync.reasons:
            raise Violation(f"{subscriber.name} does not know a stream although every join was answered")
        if self.profile.keeps_up and Reason.SLOW_CONSUMER in resync.reasons:
            raise Violation(f"{subscriber.name} is resynced for being slow although it keeps up")
        if self.profile.is_repairable and Reason.LOSS in resync.reasons:
            self._check_lost(subscriber, resync)

    def _check_lost(self, subscriber: SimSubscriber, resync: Resync) -> None:
        """Of each stream with lost events, at least one of these must be in no cache that the subscriber could ask."""
        assert self.network is not None
        publishers = [node.core.cache for node in self.network.publishers if node.is_alive and node.core.cache]
        caches = [*publishers, *(node.cache for node in self.network.caches if node.is_alive)]
        had: dict[tuple[str, str], bool] = {}
        for lost in resync.lost:
            guid = bytes.fromhex(lost.guid)
            numbers = range(lost.first, lost.last + 1)
            is_had = all(any(cache.held([Want(guid, lost.topic, n, n)]) for cache in caches) for n in numbers)
            had[lost.guid, lost.topic] = is_had and had.get((lost.guid, lost.topic), True)
        if any(had.values()):
            raise Violation(f"{subscriber.name} gave up what caches hold: {', '.join(map(str, resync.lost))}")

    # -- bounds, at any time

    def check_subscriber(self, subscriber: SimSubscriber) -> None:
        core = subscriber.core
        if core.parked_bytes > core.settings.pending_bytes_max + FRAME_BYTES_MAX or core.parked_bytes < 0:
            raise Violation(f"{subscriber.name} has {core.parked_bytes} bytes parked")
        if subscriber.queue_bytes > max(0, self.profile.queue_bytes_max) + FRAME_BYTES_MAX:
            raise Violation(f"{subscriber.name} has {subscriber.queue_bytes} bytes in its queue")
        if core.counters.peers.streams > core.settings.streams_max:
            raise Violation(f"{subscriber.name} keeps {core.counters.peers.streams} streams")
        if core.counters.peers.publishers_forgotten != self.views[subscriber].forgotten:
            self._forget(subscriber)

    def _forget(self, subscriber: SimSubscriber) -> None:
        """The subscriber forgot publishers that were silent for long: it is owed what they published until now."""
        view = self.views[subscriber]
        view.forgotten = subscriber.core.counters.peers.publishers_forgotten
        gone = view.reached - subscriber.core.publishers.keys()
        view.reached -= gone
        for key, stream in self.streams.items():
            if key[0] in gone:
                view.unexcused[key] = stream.head
                view.last.pop(key, None)

    def check_cache(self, name: str, cache: FrameCache, settings: CacheSettings | None) -> None:
        if settings is not None and cache.bytes > settings.bytes_max + FRAME_BYTES_MAX:
            raise Violation(f"the cache of {name} holds {cache.bytes} bytes")

    # -- noticing in time

    def _notice_s(self) -> float:
        assert self.network is not None
        return (
            self.profile.publisher.max_idle_time_s + 4 * self.network.rates.latency_s + self.network.rates.late_s + 0.01
        )

    def _check_noticed(self, subscriber: SimSubscriber, key: StreamKey, number: int) -> None:
        """After the idle time of a stream, a subscriber has got its last event, or knows that the event is missing."""
        if not subscriber.is_alive or self.streams[key].head != number:
            return
        view = self.views[subscriber]
        if number in view.received.get(key, ()) or number <= view.covered.get(key, 0) or key not in view.owed_from:
            return
        publisher = subscriber.core.publishers.get(key[0])
        stream = publisher.streams.get(key[1]) if publisher else None
        if stream is None or stream.head < number:
            raise Violation(f"{subscriber.name} has not noticed {key[1]} {number} after the idle time")
