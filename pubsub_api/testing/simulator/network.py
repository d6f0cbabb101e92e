"""The transport between the nodes: best effort, with faults that the seed decides.

It does what the driver contract promises, and no more: a link is reported up only when frames sent from then on can
arrive and every filter is in effect; a cut link is reported down, later; and a query returns the number of responders
that it was sent to, or None.  In *bind* mode each publisher has an address, and so a link, of its own.  In *broker*
mode every node has one link to a broker, and a publisher is told when its link is up again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pubsub_api.core.topics import CONTROL_TOPIC
from pubsub_api.testing.simulator.profiles import Profile
from pubsub_api.testing.simulator.world import World

if TYPE_CHECKING:
    from pubsub_api.testing.simulator.caches import SimCache
    from pubsub_api.testing.simulator.publishers import SimPublisher
    from pubsub_api.testing.simulator.subscribers import SimSubscriber

BROKER = "broker"


@dataclasses.dataclass
class Rates:
    """Probabilities of what happens to a frame in transit, and how long that takes."""

    latency_s: float = 0.002
    drop: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    late_s: float = 0.0
    corrupt: float = 0.0
    question_drop: float = 0.0
    unreached: float = 0.0
    cache_feed_drop: float = 0.0


class SimulatedLink:
    """One node's link to an address.  ``carries``: frames arrive.  ``is_reported_up``: what the node was told."""

    def __init__(self, world: World, address: str, report: Callable[[str, bool], None], *, lag_s: float) -> None:
        """A link that carries frames is reported up within ``lag_s``."""
        self.address = address
        self._lag_s = lag_s
        self.is_blacked_out = False
        self.is_reported_up = False
        self.is_cut = False
        self._world = world
        self._report = report
        self.on_established: Callable[[], None] | None = None
        self._is_established = False
        self._generation = 0

    @property
    def carries(self) -> bool:
        return self._is_established and not self.is_blacked_out

    def connect(self) -> None:
        """The other end has appeared: the link will be up after a while, unless it is cut."""
        if not self.is_cut:
            self._generation += 1
            self._world.after(self._world.between(0.005, 0.2), self._establish, self._generation)

    def establish(self) -> None:
        """The link is up at once."""
        self._generation += 1
        self._establish(self._generation)

    def disconnect(self) -> None:
        """The other end is gone, which is reported after a while."""
        self._generation += 1
        self._is_established = False
        self._world.after(self._world.between(0.0, 0.3), self._report_down, self._generation)

    def _establish(self, generation: int) -> None:
        if generation == self._generation:
            self._is_established = True
            if self.on_established is not None:
                self.on_established()
            self._world.after(self._world.between(0.0, self._lag_s), self._report_up, generation)

    def _report_up(self, generation: int) -> None:
        if generation != self._generation:
            return
        if self.is_reported_up:
            self._report(self.address, False)
        self.is_reported_up = True
        self._report(self.address, True)

    def _report_down(self, generation: int) -> None:
        if generation == self._generation and self.is_reported_up:
            self.is_reported_up = False
            self._report(self.address, False)


class Network:
    """Moves frames between nodes.  Nodes register by being appended to the lists."""

    def __init__(self, world: World, profile: Profile, *, is_broker: bool, knows_responders: bool) -> None:
        self.tells_arrivals = is_broker and profile.tells_arrivals
        self.world = world
        self.is_broker = is_broker
        self.publishers: list[SimPublisher] = []
        self.subscribers: list[SimSubscriber] = []
        self.caches: list[SimCache] = []
        self.arrivals = 0
        """How often a publisher has connected to the broker."""
        self.data_frames = 0
        self.hello_frames = 0
        self.queries = 0
        self.idle_queries = 0
        """Queries that were sent to no node."""
        self.replies = 0
        self._profile = profile
        self._knows_responders = knows_responders
        draw = world.random.random
        self.rates = Rates(
            latency_s=world.between(0.0005, 0.01),
            drop=profile.drop * draw(),
            duplicate=profile.duplicate * draw(),
            late=profile.late * draw(),
            late_s=profile.late_s * draw(),
            corrupt=profile.corrupt * draw(),
            question_drop=profile.question_drop * draw(),
            unreached=profile.unreached * draw(),
            cache_feed_drop=profile.cache_feed_drop * draw(),
        )

    def heal(self) -> None:
        """From now on nothing is lost, repeated or late."""
        self.rates = Rates(latency_s=self.rates.latency_s)

    # -- links

    def new_link(self, address: str, report: Callable[[str, bool], None]) -> SimulatedLink:
        # A subscriber that gets frames before the report asks for what the report would make it ask for anyway.
        is_prompt = self._profile.is_faultless or self._profile.is_join_sure
        return SimulatedLink(self.world, address, report, lag_s=0.0 if is_prompt else 0.1)

    def addresses(self) -> list[str]:
        """The addresses that a subscriber listens to."""
        return [BROKER] if self.is_broker else sorted({publisher.address for publisher in self.publishers})

    def is_there(self, address: str) -> bool:
        return self.is_broker or any(node.address == address and node.is_alive for node in self.publishers)

    def publisher_came(self, publisher: SimPublisher) -> None:
        self.publishers.append(publisher)
        if self.is_broker:
            return
        for subscriber in self.subscribers:
            if subscriber.is_alive:
                subscriber.link_to(publisher.address).connect()

    def link_publisher(self, publisher: SimPublisher) -> None:
        """Connect a publisher to the broker, usually before it publishes anything."""
        publisher.link.on_established = self._note_arrival
        if self._profile.is_faultless or self._profile.is_join_sure or self.world.chance(0.7):
            publisher.link.establish()
        else:
            publisher.link.connect()

    def _note_arrival(self) -> None:
        self.arrivals += 1

    def publisher_left(self, publisher: SimPublisher) -> None:
        if not self.is_broker:
            for subscriber in self.subscribers:
                if subscriber.is_alive:
                    subscriber.link_to(publisher.address).disconnect()

    def _is_linked(self, subscriber: SimSubscriber, publisher: SimPublisher) -> bool:
        if self.is_broker:
            return subscriber.link_to(BROKER).carries and publisher.link.carries
        return subscriber.link_to(publisher.address).carries

    # -- frames

    def broadcast(self, publisher: SimPublisher, topic: str, frame: bytes, *, is_hello: bool = False) -> None:
        """Send a frame to all that listen to the publisher and to the topic."""
        if is_hello:
            self.hello_frames += 1
        else:
            self.data_frames += 1
        is_sure = is_hello and self._profile.is_hello_sure
        drop = 0.0 if is_sure else self.rates.drop
        for subscriber in self.subscribers:
            if subscriber.is_alive and subscriber.listens_to(topic) and self._is_linked(subscriber, publisher):
                self._carry(drop, subscriber.receive, self._perhaps_damaged(frame))
        if topic != CONTROL_TOPIC and not is_hello and (not self.is_broker or publisher.link.carries):
            for cache in self.caches:
                if cache.is_alive and not cache.is_cut:
                    self._carry(self.rates.cache_feed_drop, cache.store, frame)

    def _perhaps_damaged(self, frame: bytes) -> bytes:
        """The frame as it arrives, perhaps with one bit changed."""
        if not self.world.chance(self.rates.corrupt):
            return frame
        bit = self.world.random.randrange(8 * len(frame))
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        return bytes(damaged)

    def _carry(self, drop: float, deliver: Callable[..., None], *arguments: Any) -> None:
        world, rates = self.world, self.rates
        if world.chance(drop):
            return
        world.after(self._delay_s(), deliver, *arguments)
        if world.chance(rates.duplicate):
            world.after(self._delay_s() + rates.latency_s, deliver, *arguments)

    def _delay_s(self) -> float:
        rates = self.rates
        late = self.world.random.random() * rates.late_s if self.world.chance(rates.late) else 0.0
        return rates.latency_s + late

    # -- questions

    def ask(self, subscriber: SimSubscriber, query: bytes) -> int | None:
        """Send a query to all responders; returns what a driver would return."""
        self.queries += 1
        if self.is_broker and not subscriber.link_to(BROKER).is_reported_up:
            return None
        asked = 0
        for publisher in self.publishers:
            if publisher.is_alive and self._is_asked(subscriber, publisher) and not self._is_unreached():
                asked += 1
                if self._is_linked(subscriber, publisher):
                    self._carry(self.rates.question_drop, self._answer, subscriber, publisher, query)
        for cache in self.caches:
            if cache.is_alive and not self._is_unreached():
                asked += 1
                if not cache.is_cut and (not self.is_broker or subscriber.link_to(BROKER).carries):
                    self._carry(self.rates.question_drop, self._answer, subscriber, cache, query)
        self.idle_queries += not asked
        return asked if self._knows_responders else None

    def _is_asked(self, subscriber: SimSubscriber, publisher: SimPublisher) -> bool:
        if self.is_broker:
            return publisher.link.is_reported_up
        return subscriber.link_to(publisher.address).is_reported_up

    def _is_unreached(self) -> bool:
        """Whether a query does not reach a responder, and no node notices."""
        return self.world.chance(self.rates.unreached)

    def _answer(self, subscriber: SimSubscriber, responder: SimPublisher | SimCache, query: bytes) -> None:
        if not responder.is_alive:
            return
        for reply in responder.answer(query):
            self.replies += 1
            self._carry(self.rates.question_drop, subscriber.receive, reply)
