"""The bus between simulated services: messages are lost, repeated, late; links are cut, in one direction or both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durability_service.core import messages
from durability_service.core.effects import Live, LiveLost, Received
from durability_service.core.messages import Advert, AlignData, Message
from durability_service.core.sets.batches import from_content
from durability_service.core.sets.samples import Sample
from durability_service.testing.simulator.profiles import Profile
from pubsub_api.testing.simulator.world import World

if TYPE_CHECKING:
    from durability_service.testing.simulator.nodes import SimNode
    from durability_service.testing.simulator.readers import SimReader

_CODEC_CHECKS = 0.02


class Network:
    def __init__(self, world: World, profile: Profile) -> None:
        self.world = world
        self.nodes: list[SimNode] = []
        self.readers: list[SimReader] = []
        self._stalled: dict[tuple[str, str], list[Live]] = {}
        """Host of a publisher, service -> live events that wait on their link."""
        self._cuts: set[tuple[str, str]] = set()
        self._drop = profile.drop * world.random.random()
        self._duplicate = profile.duplicate * world.random.random()
        self._late_s = profile.late_s * world.random.random()
        self._live_drop = profile.live_drop * world.random.random()
        self._latency_s = world.between(0.001, 0.01)
        self.messages = 0
        self.samples_moved = 0
        """Samples in alignment messages as sent, however many hear them."""
        self._pieces: dict[tuple[str, int, int, int], list[bytes]] = {}

    def cut(self, source: str, target: str) -> None:
        self._cuts.add((source, target))

    def mend(self, source: str, target: str) -> None:
        self._cuts.discard((source, target))
        self._tell_lost()

    def heal(self) -> None:
        """From now on nothing is lost, repeated or late, and nothing is cut."""
        self._cuts.clear()
        for source, target in list(self._stalled):
            self.resume(source, target)
        self._drop = self._duplicate = self._late_s = self._live_drop = 0.0
        self._tell_lost()

    def _tell_lost(self) -> None:
        """The bus notices what it could not deliver when it can deliver again."""
        for node in self.nodes:
            if node.lost_live:
                node.lost_live = False
                self.world.after(self._latency_s, node.feed, LiveLost(is_read=bool(self.readers), is_sure=True))

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def broadcast(self, source: SimNode, message: Message) -> None:
        self.messages += 1
        if isinstance(message, AlignData):
            self._count(message)
        if self.world.chance(_CODEC_CHECKS):
            message = messages.decode(messages.encode(message))
        if isinstance(message, Advert):
            for reader in self.readers:
                if not self.is_cut(source.name, reader.host.name) and not self.world.chance(self._drop):
                    self.world.after(self._latency_s, reader.heard, message)
        for node in self.nodes:
            if node is source or self.is_cut(source.name, node.name) or self.world.chance(self._drop):
                continue
            self._carry(node, message)
            if self.world.chance(self._duplicate):
                self._carry(node, message)

    def _count(self, message: AlignData) -> None:
        for part in message.parts:
            bucket = (message.node, message.incarnation, message.answer, part.bucket)
            pieces = self._pieces.setdefault(bucket, [])
            pieces.append(part.content)
            if len(pieces) == part.parts:
                self.samples_moved += from_content(b"".join(self._pieces.pop(bucket))).count

    def _carry(self, node: SimNode, message: Message) -> None:
        self.world.after(self._latency_s + self.world.random.random() * self._late_s, node.feed, Received(message))

    def publish(self, host: str, sample: Sample) -> None:
        """A live event: the bus keeps its order and hardly ever loses it, but a cut is a cut."""
        for node in self.nodes:
            if node.name != host and (self.is_cut(host, node.name) or self.world.chance(self._live_drop)):
                node.lost_live = True
                continue
            event = Live([sample], node.new_token(sample))
            if (host, node.name) in self._stalled:
                self._stalled[host, node.name].append(event)
            else:
                self.world.after(self._latency_s, node.feed, event)
        for reader in self.readers:
            if not self.is_cut(host, reader.host.name):
                reader.live(sample)

    def stall(self, host: str, node: str) -> None:
        """From now on live events of a host do not get to a service; messages of services do."""
        self._stalled.setdefault((host, node), [])

    def resume(self, host: str, node: str) -> None:
        """They get there after all, or are lost; either way the bus has noticed."""
        events = self._stalled.pop((host, node), [])
        for one in self.nodes:
            if one.name == node and events:
                for event in events if self.world.chance(0.5) else []:
                    self.world.after(self._latency_s, one.feed, event)
                self.world.after(self._latency_s, one.feed, LiveLost(is_read=bool(self.readers), is_sure=True))
