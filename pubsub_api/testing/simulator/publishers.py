"""A publishing node: the publisher core, called as the runtime calls it, with a virtual clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.clock import HybridClock
from pubsub_api.core.events import Event, encode_event
from pubsub_api.core.sending.publisher import Outgoing, Predecessor
from pubsub_api.core.settings import PublisherSettings
from pubsub_api.core.topics import CONTROL_TOPIC
from pubsub_api.testing.simulator.network import BROKER
from pubsub_api.testing.simulator.world import Violation

if TYPE_CHECKING:
    from pubsub_api.testing.simulator.scenario import Scenario

TICK_S = 0.001
"""The threads of the runtime sleep at least this long, so time always advances."""
UNDECODABLE = b"\xc1"
"""A byte that no msgpack contains, in place of an event."""


class SimPublisher:
    """One life of a publisher: a restart makes a new one with the same name and address."""

    def __init__(
        self, scenario: Scenario, settings: PublisherSettings, *, name: str, address: str, life: int,
        predecessor: Predecessor | None,
    ) -> None:  # fmt: skip
        world = self.world = scenario.world
        self.network, self.oracle = scenario.network, scenario.oracle
        self.name = name
        self.address = address
        self.life = life
        self.label = f"{address}.{life}"
        self.is_alive = True
        self.born = world.now
        self.announcements = 0
        self.link = self.network.new_link(BROKER, self._on_link)
        self.core = scenario.cores.publisher(
            settings, guid=world.random.randbytes(frames.GUID_BYTES), name=name, now=world.now, predecessor=predecessor
        )
        self._clock = HybridClock(10**9)
        self._wake_at = float("inf")

    def start(self) -> None:
        self.world.note(self.label, "starts", self.core.guid.hex()[:8])
        self.oracle.publisher_started(self)
        self.network.publisher_came(self)
        if self.network.is_broker:
            self.network.link_publisher(self)
        self._send(self.core.start(self.world.now, self._stamp()))
        self._schedule()

    def publish(self, topic: str, keys: list[str], *, is_poison: bool = False) -> None:
        """Commit a change of each key to the database and publish it, in one instant."""
        if not self.is_alive:
            return
        number = self.accept(topic, keys, is_poison=is_poison)
        stream = self.core.stream(topic)
        while (frame := self.core.next_frame(stream, self.world.now, self._stamp())) is not None:
            self.network.broadcast(self, topic, frame)
        if stream.head != number:
            raise Violation(f"{self.label} numbered {topic} up to {stream.head}, not {number}")
        self._schedule()

    def accept(self, topic: str, keys: list[str], *, is_poison: bool = False) -> int:
        """Commit changes and accept their events, which get their numbers later; returns the last of these."""
        stream = self.core.stream(topic)
        number = stream.head + len(stream.pending)
        for key in keys:
            number += 1
            version = self.oracle.published(self, topic, number, key)
            if is_poison:
                stream.pending.append(UNDECODABLE)
            else:
                event = Event(topic=topic, table="t", key=key, action="set", value=number, version=version)
                stream.pending.append(encode_event(event, self._stamp()))
        self.world.note(self.label, "publishes", topic, f"{number - len(keys) + 1}..{number}")
        return number

    def answer(self, query_frame: bytes) -> Iterable[bytes]:
        settings = self.core.settings.frame
        header = frames.unpack(query_frame, bytes_max=settings.bytes_max, key=settings.key)
        return self.core.answer(messages.decode(messages.Query, query_frame, header), self._stamp(), self.world.now)

    def close(self) -> None:
        """End in good order, with a BYE."""
        if self.is_alive:
            self.world.note(self.label, "says goodbye")
            for topic, frame in self.core.end(self.world.now, self._stamp()):
                self.network.broadcast(self, topic, frame, is_hello=topic == CONTROL_TOPIC)
            self._end()

    def crash(self) -> None:
        if self.is_alive:
            self.world.note(self.label, "crashes")
            self._end()

    def _end(self) -> None:
        self.is_alive = False
        self.network.publisher_left(self)

    def predecessor(self) -> Predecessor:
        return Predecessor(self.core.guid, self.core.heads())

    # -- time

    def _schedule(self) -> None:
        due = max(self.core.next_deadline(), self.world.now + TICK_S)
        if due < self._wake_at:
            self._wake_at = due
            self.world.at(due, self._wake, due)

    def _wake(self, due: float) -> None:
        if not self.is_alive or due != self._wake_at:
            return
        self._wake_at = float("inf")
        self._send(self.core.poll(self.world.now, self._stamp()))
        if self.core.cache is not None:
            self.oracle.check_cache(self.label, self.core.cache, self.core.settings.cache)
        self._schedule()

    def _send(self, outgoing: Iterable[Outgoing]) -> None:
        for topic, frame in outgoing:
            self.network.broadcast(self, topic, frame, is_hello=True)

    def _stamp(self) -> int:
        return self._clock.tick(int(self.world.now * 1e9) + 1)

    def _on_link(self, _: str, is_up: bool) -> None:
        self.world.note(self.label, "is told its link is", "up" if is_up else "down")
        if is_up and self.is_alive:
            self.announcements += 1
            self.core.announce(self.world.now)
            self._schedule()
