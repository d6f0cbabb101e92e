"""One run: its nodes, what they do, their faults, and the end.

Everything is drawn from the seed, before or during the run.  First there is a time with faults, then a quiet time after
which no subscriber may be owed anything, then an epilogue: all publishers publish once more, and all subscribers must
receive that.
"""

from __future__ import annotations

import dataclasses

from pubsub_api.core.receiving.subscriber import SubscriberCore
from pubsub_api.core.sending.publisher import PublisherCore
from pubsub_api.core.settings import History
from pubsub_api.testing.simulator import verdict
from pubsub_api.testing.simulator.caches import SimCache
from pubsub_api.testing.simulator.fault_schedule import FaultSchedule
from pubsub_api.testing.simulator.network import Network, SimulatedLink
from pubsub_api.testing.simulator.oracle import Oracle
from pubsub_api.testing.simulator.profiles import BIG_CACHE, SMALL_CACHE, Profile
from pubsub_api.testing.simulator.publishers import SimPublisher
from pubsub_api.testing.simulator.subscribers import SimSubscriber
from pubsub_api.testing.simulator.world import Violation, World

EPILOGUE_S = 1.5
LINKS_UP_S = 0.8
"""Without faults, every subscriber has a link to a publisher, and has joined it, so long after it started."""
_LEVELS = ("a", "b", "c")
_FILTERS = ("#", "a/#", "+", "+/b", "a/+", "b/#", "+/+/c")


@dataclasses.dataclass(frozen=True)
class Cores:
    """The classes under test.  Tests of the simulator itself replace them by broken ones."""

    publisher: type[PublisherCore] = PublisherCore
    subscriber: type[SubscriberCore] = SubscriberCore


class Scenario:
    def __init__(self, world: World, profile: Profile, cores: Cores) -> None:
        self.world = world
        self.profile = profile
        self.cores = cores
        self.random = world.random
        is_broker = profile.mode == "broker" or (profile.mode == "any" and world.chance(0.5))
        knows_responders = world.chance(0.7) or profile.is_join_sure
        self.network = Network(world, profile, is_broker=is_broker, knows_responders=knows_responders)
        self.oracle = Oracle(world, profile)
        self.oracle.network = self.network
        self.duration_s = world.between(*profile.duration_s)
        self.topics = self._draw_topics()
        self.publishers: dict[str, SimPublisher] = {}
        """Address -> the publisher that was started there last."""
        self._is_name_shared = not profile.is_faultless and world.chance(0.05)
        self.over_delivers = profile.over_delivery and world.chance(0.3)

    def run(self) -> None:
        """Raises Violation."""
        self._populate()
        FaultSchedule(self).plan()
        self.world.run_until(self.duration_s)
        self._restore()
        settings = self.profile.publisher, self.profile.subscriber
        quiet_s = verdict.settling_s(*settings, len(self.topics)) + self.profile.quiet_extra_s
        self.world.run_until(self.world.now + quiet_s)
        self.world.note("verdict", "after", f"{quiet_s:.1f} quiet seconds")
        verdict.check_settled(self.oracle, self.network)
        self._epilogue()
        if self.profile.is_faultless:
            verdict.check_traffic(self.oracle, self.network)

    # -- the nodes

    def _draw_topics(self) -> list[str]:
        count = self.random.randint(*self.profile.topics)
        if count > 20:
            return [f"a/{number}" for number in range(count)]
        topics: dict[str, None] = {}
        while len(topics) < count:
            depth = self.random.randint(1, 3)
            topics["/".join(self.random.choice(_LEVELS) for _ in range(depth))] = None
        return list(topics)

    def _populate(self) -> None:
        profile = self.profile
        for number in range(self.random.randint(*profile.caches)):
            size = self.random.choice([size for size in profile.cache_sizes if size] or [SMALL_CACHE])
            cache = SimCache(self.world, f"cache{number}", size, profile.publisher.frame)
            self.network.caches.append(cache)
        for number in range(self.random.randint(*profile.publishers)):
            self.world.at(self._start_time(), self._start_publisher, f"pub{number}")
        for number in range(self.random.randint(*profile.subscribers)):
            self.world.at(self._start_time(), self.start_subscriber, f"sub{number}")
        if profile.bursts == (0, 0):
            self._plan_topics()

    def _plan_topics(self) -> None:
        """Use every topic soon, and some of them again."""
        for topic in self.topics:
            self.world.at(self.world.between(0.1, 0.2) * self.duration_s, self._publish, "pub0", topic)
            if self.world.chance(0.3):
                self.world.at(self.world.between(0.2, 1.0) * self.duration_s, self._publish, "pub0", topic)

    def _start_time(self) -> float:
        is_late = self.profile.late_start and self.world.chance(0.3)
        return self.world.between(0.0, self.duration_s / 2) if is_late else self.world.between(0.0, 0.01)

    def _start_publisher(self, address: str) -> None:
        self.new_life(address)
        # Subscribers would ask for events from before their link was up, and a faultless run must have no queries.
        first_s = self.world.now + (LINKS_UP_S if self.profile.is_faultless else 0.0)
        for _ in range(self.random.randint(*self.profile.bursts)):
            self.world.at(self.world.between(first_s, max(first_s, self.duration_s)), self.burst, address)

    def new_life(self, address: str) -> None:
        former = self.publishers.get(address)
        if former is not None and former.is_alive:
            return
        is_told = former is not None and self.world.chance(0.5)
        cache = self.random.choice(self.profile.cache_sizes)
        if self.profile.is_repairable and not self.network.caches:
            cache = BIG_CACHE
        publisher = self.publishers[address] = SimPublisher(
            self,
            dataclasses.replace(self.profile.publisher, cache=cache),
            name="shared" if self._is_name_shared else f"host/{address}",
            address=address,
            life=former.life + 1 if former else 1,
            predecessor=former.predecessor() if former and is_told else None,
        )
        publisher.start()
        if former is not None and self.profile.has_early_events:
            self.burst(address)

    def start_subscriber(self, name: str) -> None:
        filters = {self.draw_filter() for _ in range(self.random.randint(1, 3))}
        history = None
        if self.profile.history and self.world.chance(0.2):
            history = History(newest=self.random.choice((0, 1, 5)))
        settings = self.profile.subscriber
        if not self.profile.is_faultless and self.world.chance(0.1):
            settings = dataclasses.replace(settings, query_interval_s=0.7)
        SimSubscriber(
            self,
            dataclasses.replace(
                settings,
                verify_after_reconnect=not self.network.is_broker,
                scopes_max=2 if self.network.is_broker else 0,  # few, so that both dividing and joining happen
                history=history,
            ),
            name=name,
            filters=sorted(filters) if len(self.topics) <= 20 else ["#"],
        ).start()

    def draw_filter(self) -> str:
        return self.random.choice(_FILTERS if self.world.chance(0.5) else self.topics)

    def living(self) -> list[SimSubscriber]:
        return [node for node in self.network.subscribers if node.is_alive]

    # -- what they do

    def burst(self, address: str) -> None:
        for _ in range(self.random.randint(1, 4)):
            self._publish(address, self.random.choice(self.topics))

    def _publish(self, address: str, topic: str) -> None:
        keys = [f"k{self.random.randrange(5)}" for _ in range(self.random.randint(1, 4))]
        if address in self.publishers:
            self.publishers[address].publish(topic, keys, is_poison=self.world.chance(self.profile.poison))

    # -- the end

    def _restore(self) -> None:
        """End all faults: all living nodes can reach each other."""
        self.world.note("fault", "no more")
        self.network.heal()
        for node in self.living():
            node.speed_up()
            node.thaw()
            for link in node.links():
                self.mend(link)
        for publisher in self.network.publishers:
            self.mend(publisher.link)
        for cache in self.network.caches:
            cache.is_alive = True
            cache.is_cut = False

    def mend(self, link: SimulatedLink) -> None:
        """End the faults of a link."""
        link.is_blacked_out = False
        if link.is_cut:
            link.is_cut = False
            if self.network.is_there(link.address):
                link.connect()

    def _epilogue(self) -> None:
        """Every publisher publishes once more, and its subscribers must receive that without any resync."""
        if self.profile.subscriber.streams_max < len(self.topics):
            return
        resyncs = self.oracle.resyncs.total()
        deliveries = self.oracle.deliveries
        owed = 0
        for publisher in self.publishers.values():
            if publisher.is_alive:
                topic = self.random.choice(self.topics)
                publisher.publish(topic, ["k0"])
                owed += sum(self.oracle.views[node].is_in_force(topic) for node in self.living())
        self.world.run_until(self.world.now + EPILOGUE_S)
        if self.oracle.deliveries - deliveries != owed or self.oracle.resyncs.total() != resyncs:
            raise Violation(f"of {owed} events after the quiet time {self.oracle.deliveries - deliveries} came")
        verdict.check_settled(self.oracle, self.network)
