"""The faults of a scenario: drawn from the seed.  Most of them end again before the quiet time begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.events import pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.testing.simulator.network import SimulatedLink
from pubsub_api.testing.simulator.oracle import forged_event
from pubsub_api.testing.simulator.publishers import SimPublisher
from pubsub_api.testing.simulator.subscribers import SimSubscriber

if TYPE_CHECKING:
    from pubsub_api.testing.simulator.scenario import Scenario


class FaultSchedule:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._random = scenario.world.random
        self._network = scenario.network

    def plan(self) -> None:
        """Schedule faults: of each kind as many as the seed decides and the profile allows."""
        profile = self._scenario.profile
        for count_max, action in (
            (profile.partitions, self._partition),
            (profile.blackouts, self._black_out),
            (profile.restarts, self._restart_publisher),
            (profile.closes, self._close_publisher),
            (profile.forged, self._forge),
            (profile.subscriber_restarts, self._restart_subscriber),
            (profile.freezes, self._freeze),
            (profile.slow, self._slow_down),
            (profile.filter_changes, self._change_filters),
            (profile.cache_crashes, self._lose_cache),
        ):
            for _ in range(self._random.randint(0, count_max)):
                self._world.at(self._world.between(0.5, self._scenario.duration_s), action)

    def _later(self, low_s: float, high_s: float, action: Callable[..., None], *arguments: object) -> None:
        """Schedule the end of a fault, unless it is in the quiet time, at whose beginning all faults end."""
        due = self._world.now + self._world.between(low_s, high_s)
        if due < self._scenario.duration_s:
            self._world.at(due, action, *arguments)

    # -- links

    def _draw_link(self) -> SimulatedLink | None:
        links = [link for node in self._scenario.living() for link in node.links()]
        if self._network.is_broker:
            links += [publisher.link for publisher in self._scenario.publishers.values() if publisher.is_alive]
        return self._random.choice(links) if links else None

    def _partition(self) -> None:
        link = self._draw_link()
        if link is not None and not link.is_cut:
            self._world.note("fault", "partition of a link to", link.address)
            link.is_cut = True
            link.disconnect()
            self._later(0.1, 5.0, self._scenario.mend, link)

    def _black_out(self) -> None:
        link = self._draw_link()
        if link is not None:
            self._world.note("fault", "blackout of a link to", link.address)
            link.is_blacked_out = True
            self._later(0.1, 5.0, self._scenario.mend, link)

    # -- publishers

    def _restart_publisher(self) -> None:
        self._end_publisher(self._random.choice((SimPublisher.crash, SimPublisher.close)))

    def _close_publisher(self) -> None:
        self._end_publisher(SimPublisher.close)

    def _end_publisher(self, end: Callable[[SimPublisher], None]) -> None:
        publishers = self._scenario.publishers
        if publishers:
            address = self._random.choice(list(publishers))
            if (
                self._scenario.profile.closes_while_sending
                and publishers[address].is_alive
                and end is SimPublisher.close
            ):
                publishers[address].accept(self._random.choice(self._scenario.topics), ["k0", "k1"])
            end(publishers[address])
            self._later(0.01, 6.0, self._scenario.new_life, address)

    def _forge(self) -> None:
        """A forged or damaged frame, which seems to come from a publisher, announces events that do not exist."""
        node = self._draw_subscriber()
        if node is not None and self._world.chance(0.3):
            node.stop()
            self._scenario.start_subscriber(f"{node.name}'")
            self._world.after(self._world.between(0.0, 0.6), self._forge_to, self._network.subscribers[-1])
        elif node is not None:
            self._forge_to(node)

    def _forge_to(self, node: SimSubscriber) -> None:
        living = [publisher for publisher in self._scenario.publishers.values() if publisher.is_alive]
        publisher = self._random.choice(living) if living else None
        if publisher is None or not publisher.core.heads() or not node.is_alive:
            return
        topic, head = self._random.choice(sorted(publisher.core.heads().items()))
        stamp = max(1, int((self._world.now + self._random.choice((-1.0, 0.0, 0.2, 2.0, 10**9))) * 1e9))
        if self._world.chance(0.3):
            # Far numbers: where a forged event has the number of a real one that is lost, the loss cannot be noticed.
            first, body = head + self._random.choice((1000, 10**6, 10**9, 2**62)), pack_body([forged_event(stamp)])
            kind, after, count = Kind.DATA, self._random.choice((head, first - 1)), 1
        else:
            after = head + self._random.choice((1, 2, 3, 10, 1000, 10**6, 10**9, 2**62))
            kind, body, first, count = Kind.HELLO, messages.encode(messages.Hello()), after + 1, 0
        self._world.note("fault", "forged", kind.name, topic, first, "after", after, "at", stamp, "for", node.name)
        node.receive(
            frames.pack(kind, publisher.core.guid, topic, body, first=first, after=after, count=count, timestamp=stamp)
        )

    # -- subscribers

    def _draw_subscriber(self) -> SimSubscriber | None:
        living = self._scenario.living()
        return self._random.choice(living) if living else None

    def _restart_subscriber(self) -> None:
        node = self._draw_subscriber()
        if node is not None:
            node.stop()
            self._later(0.01, 3.0, self._scenario.start_subscriber, f"{node.name}'")

    def _freeze(self) -> None:
        node = self._draw_subscriber()
        if node is not None:
            node.freeze()
            self._later(0.2, 6.0, node.thaw)

    def _slow_down(self) -> None:
        node = self._draw_subscriber()
        if node is not None:
            node.slow_down()
            self._later(0.2, 3.0, node.speed_up)

    def _change_filters(self) -> None:
        node = self._draw_subscriber()
        if node is None:
            return
        chosen = self._scenario.draw_filter()
        if chosen in node.core.filters:
            node.unsubscribe(chosen)
            self._later(0.0, 1.0, node.subscribe, chosen)
        else:
            node.subscribe(chosen)
            self._later(0.0, 4.0, node.unsubscribe, chosen)

    # -- caches

    def _lose_cache(self) -> None:
        if not self._network.caches:
            return
        cache = self._random.choice(self._network.caches)
        if self._world.chance(0.5):
            cache.crash()
            self._later(0.1, 4.0, cache.restart)
        else:
            cache.cut()
            self._later(0.1, 4.0, cache.mend)
