"""Late joiners in the simulation: each reads what services keep, and reads again when they say that it is worth it.

A reader lives on the host of a service and reaches the nodes that its host reaches.  It asks as
`durability_service.client` does.
"""

from __future__ import annotations

from durability_service import protocol
from durability_service.core.messages import Advert
from durability_service.core.namespaces import NameSpace
from durability_service.core.reading import ServiceNews, SpaceReading
from durability_service.core.sets.sample_set import SampleSet
from durability_service.core.sets.samples import Sample
from durability_service.protocol import Ask
from durability_service.serving import answers
from durability_service.testing.simulator.network import Network
from durability_service.testing.simulator.nodes import SimNode
from durability_service.testing.simulator.oracle import Oracle
from pubsub_api.testing.simulator.world import World

_PAGE_BYTES = 200
_SECOND_READ_S = 0.2
"""By then events that were on their way have arrived."""


class SimReader:
    def __init__(self, world: World, network: Network, oracle: Oracle, host: SimNode, space: NameSpace) -> None:
        self.host = host
        self.space = space
        self.set = SampleSet(host.settings.buckets, host.settings.rules.depth_of)
        """What it was given."""
        self.is_complete = False
        """It was told so, once."""
        self.is_replaced = False
        """It was told that what it has may be gone."""
        self._world = world
        self._network = network
        self._oracle = oracle
        self._news = ServiceNews()
        self._reading = SpaceReading()
        self._is_due = True
        network.readers.append(self)
        self.read()

    def live(self, sample: Sample) -> None:
        """An event that was published after the reader had subscribed."""
        if self.space.matcher().match(sample.topic):
            self.set.add(sample)

    def heard(self, advert: Advert) -> None:
        is_joined, is_replaced = self._news.note_advert(advert, [self.space.name])
        if is_replaced:
            self.is_replaced, self._reading = True, SpaceReading()
        self._is_due = self._is_due or is_joined or is_replaced
        if self._is_due:
            self.read()

    def read(self) -> None:
        """Ask every node that can be reached."""
        reached = [node for node in self._network.nodes if self._reaches(node)]
        sources = [node for node in reached if self._is_complete(node)]
        for node in reached:
            self._note(node)
        if not sources:
            return
        for node in self._world.random.sample(sources, len(sources)):
            self._read_from(node, self._reading)
        self._is_due = False
        if not self.is_complete:
            self._world.after(_SECOND_READ_S, self.read)
        self.is_complete = True
        self._oracle.was_read(self, sources)

    def _reaches(self, node: SimNode) -> bool:
        is_cut = self._network.is_cut(self.host.name, node.name) or self._network.is_cut(node.name, self.host.name)
        return node.is_awake and not is_cut

    def _is_complete(self, node: SimNode) -> bool:
        assert node.core is not None
        keeper = node.core.keepers.get(self.space.name)
        return keeper is not None and keeper.is_readable

    def _note(self, node: SimNode) -> None:
        assert node.core is not None
        for keeper in node.core.keepers.values():
            counters = keeper.holding.counters
            news = (node.settings.incarnation, counters.joins, counters.replacements)
            self._news.note(node.settings.node, keeper.holding.name, news)

    def _read_from(self, node: SimNode, reading: SpaceReading) -> None:
        core = node.core
        assert core is not None
        ask = Ask(id=1, durability=protocol.HISTORY, topics=["#"], name_space=self.space.name)
        if reading.is_begun:
            found = answers.digests(core, ask)
            assert found is not None
            ask.only = reading.differing(found.digests)
            reading.note_deletions(found.deletions)
            if not ask.only:
                return
        digests: dict[int, bytes] = {}
        while ask.bucket >= 0:
            page = answers.page(core, ask, _PAGE_BYTES, node.wall_ns())
            assert page is not None
            digests |= page.digests
            reading.note_deletions(page.deletions)
            for sample in reading.wanted(page.samples):
                self.set.add(sample)
            ask.bucket, ask.after = page.bucket, page.after
        reading.note_read(digests)
