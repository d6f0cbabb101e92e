"""One run: the nodes, what is written, the faults, and the checks at the end.

All of it is drawn from the seed.  First comes a time of faults, then everything is mended and every node is started,
and after a quiet time nothing may be owed.
"""

from __future__ import annotations

import dataclasses

from durability_service.core.effects import BeginFill, CompleteFill, DeleteHistory, Fill, Interest, StoreMarks
from durability_service.core.messages import Epoch
from durability_service.core.namespaces import NameSpace
from durability_service.core.service import DurabilityCore
from durability_service.core.sets.batches import pack_buckets
from durability_service.core.sets.samples import Sample, make_sample
from durability_service.core.settings import ServiceSettings, TopicRules
from durability_service.testing.simulator.network import Network
from durability_service.testing.simulator.nodes import EPOCH_NS, SimNode
from durability_service.testing.simulator.oracle import Oracle
from durability_service.testing.simulator.profiles import Profile
from durability_service.testing.simulator.readers import SimReader
from pubsub_api.core.clock import HybridClock
from pubsub_api.testing.simulator.world import World

SPACES = (NameSpace("orders", frozenset({"a/#"})), NameSpace("ports", frozenset({"b/+"})))
TOPICS = ("a/x", "a/y/z", "b/x")
SETTINGS = ServiceSettings(
    node="",
    expiry_s=1.0,
    heartbeat_factor=0.3,
    discovery_s=0.5,
    combine_initial_s=0.05,
    align_timeout_s=0.4,
    reconcile_s=0.6,
    expiry_round_s=0.5,
    buckets=8,
    chunk_bytes=300,
    repack_changes=4,
    idle_samples=3,
    window_chunks=4,
    buckets_per_step=4,
    hot_bytes=6000,
    clean_buckets=2,
    reads_per_step=1,
)
QUIET_S = 6.0
_CHECK_S = 0.5


class SimWriter:
    """Publishes from one host, with that host's clock."""

    def __init__(self, node: SimNode, guid: bytes) -> None:
        self.node = node
        self._guid = guid
        self._clock = HybridClock(60 * 10**9)
        self._numbers: dict[str, int] = {}

    def sample(self, topic: str, key: str, *, is_delete: bool) -> Sample:
        number = self._numbers[topic] = self._numbers.get(topic, 0) + 1
        stamp = self._clock.tick(self.node.wall_ns())
        event = b"%s %d" % (self._guid, number)
        return make_sample(
            topic, "t", key, timestamp=stamp, writer=self._guid, number=number, is_delete=is_delete, event=event
        )


class Scenario:
    def __init__(self, world: World, profile: Profile, core_class: type[DurabilityCore]) -> None:
        self.world = world
        self.profile = profile
        self.random = world.random
        self.network = Network(world, profile)
        self.oracle = Oracle(profile)
        self.duration_s = world.between(*profile.duration_s)
        spaces = SPACES if world.chance(0.3) else SPACES[:1]
        rules = TopicRules(
            default_kind=profile.kind,
            default_depth=profile.depth,
            lifespans=(("a/x", profile.lifespan_s),) if profile.lifespan_s else (),
        )
        for number in range(self.random.randint(*profile.services)):
            settings = dataclasses.replace(
                SETTINGS,
                node=f"n{number:02}",
                role=f"r{self.random.randrange(profile.roles)}",
                name_spaces=spaces,
                policies=(self.random.choice(profile.policies) if profile.policies else profile.policy(),),
                rules=rules,
                cleanup_s=profile.cleanup_s,
                injection_peers_min=profile.injection_peers_min,
            )
            SimNode(
                world,
                self.network,
                self.oracle,
                settings,
                core_class=core_class,
                skew_s=profile.skew_s * world.between(-1, 1),
                disk_s=profile.disk_s,
            )
        for number in range(profile.clones):
            self._clone(core_class, number)
        self.nodes = self.network.nodes
        self.writers = [SimWriter(node, bytes([number]) * 16) for number, node in enumerate(self.nodes)]

    def _clone(self, core_class: type[DurabilityCore], number: int) -> None:
        first = self.network.nodes[0]
        clone = SimNode(
            self.world, self.network, self.oracle, first.settings,
            core_class=core_class, skew_s=0.0, disk_s=self.profile.disk_s, name=f"clone{number}", lives=1000,
        )  # fmt: skip
        self.oracle.clones.append(clone)

    def run(self) -> None:
        """Raises Violation."""
        is_old = self.profile.old_store
        for writer in self.writers:
            if self.profile.old_store or (self.profile.preload and self.world.chance(0.5)):
                self._preload(writer, is_old=is_old)
            self.world.at(0.0 if is_old else self._start_time(), writer.node.start)
            is_old = False
        written_s = min(1.0, self.duration_s) if self.profile.idle else self.duration_s
        for _ in range(self.random.randint(*self.profile.writes)):
            self.world.at(self.world.between(0.0, written_s), self._write)
        self._plan_faults()
        self.world.at(_CHECK_S, self._check)
        self.world.run_until(self.duration_s)
        self._restore()
        self.world.run_until(self.world.now + QUIET_S)
        self.oracle.check_settled(self.nodes)
        self.oracle.check_readers(self.network.readers, self.nodes)

    def _start_time(self) -> float:
        is_late = self.profile.late_start and self.world.chance(0.3)
        return self.world.between(0.0, self.duration_s / 2) if is_late else self.world.between(0.0, 0.3)

    def _preload(self, writer: SimWriter, *, is_old: bool = False) -> None:
        """A set on disk from an earlier run, acknowledged then; deleted elsewhere, long ago, when it is old."""
        node = writer.node
        for space in node.settings.name_spaces:
            topic = "a/x" if space.name == "orders" else "b/x"
            name = "gone" if is_old else "old"
            samples = [writer.sample(topic, f"{name}{number}", is_delete=False) for number in range(3)]
            alive = EPOCH_NS - (int(10e9 * self.profile.cleanup_s) if is_old else 0)
            marks = StoreMarks(Epoch(self.random.randint(1, 5), node.name), alive=alive)
            for operation in (
                BeginFill(space.name, tuple(sorted(space.filters)), node.settings.buckets),
                Fill(space.name, pack_buckets(samples, node.settings.buckets)),
                CompleteFill(space.name, marks),
            ):
                node.disk.do(operation)
            for sample in samples:
                self.oracle.wrote(sample)
                if is_old:
                    self.oracle.forgotten.add(sample.digest)
                else:
                    self.oracle.acknowledged(node, sample)

    # -- what they do

    def _write(self, writer: SimWriter | None = None) -> None:
        writer = writer or self.random.choice(self.writers)
        topic = self.random.choice(TOPICS)
        sample = writer.sample(topic, f"k{self.random.randrange(self.profile.keys)}", is_delete=self.world.chance(0.15))
        self.oracle.wrote(sample)
        self.world.note(writer.node.name, "write", *sample[:4])
        self.network.publish(writer.node.name, sample)

    def _check(self) -> None:
        for node in self.nodes:
            self.oracle.check_kept(node)
        if self.world.now < self.duration_s:
            self.world.after(_CHECK_S, self._check)

    # -- faults

    def _plan_faults(self) -> None:
        profile = self.profile
        for count_max, action in (
            (profile.crashes, self._crash),
            (profile.restarts, self._restart),
            (profile.pauses, self._pause),
            (profile.partitions, self._partition),
            (profile.one_way_cuts, self._cut_one_way),
            (profile.deletions, self._delete),
            (profile.clock_jumps, self._set_clock),
            (profile.clock_moments, self._be_ahead),
            (profile.readers, self._join_late),
            (profile.stalls, self._stall),
        ):
            for _ in range(self.random.randint(0, count_max)):
                self.world.at(self.world.between(0.3, self.duration_s), action)
        if profile.policies:
            self.world.at(self.duration_s / 2, self._wake)

    def _a_node(self) -> SimNode:
        return self.random.choice(self.nodes)

    def _crash(self) -> None:
        node = self._a_node()
        node.crash()
        self.world.after(self.world.between(0.05, 2.0), node.start)

    def _restart(self) -> None:
        node = self._a_node()
        node.stop()
        self.world.after(self.world.between(0.05, 2.0), node.start)

    def _pause(self) -> None:
        node = self._a_node()
        node.pause()
        self.world.after(self.world.between(0.2, 2.5), node.resume)

    def _partition(self) -> None:
        """Split the services in two; the halves do not hear each other for a while."""
        half = {node.name for node in self.nodes if self.world.chance(0.5)}
        pairs = [
            (one.name, other.name)
            for one in self.nodes
            for other in self.nodes
            if (one.name in half) != (other.name in half)
        ]
        self.world.note("fault", "partition", sorted(half))
        for pair in pairs:
            self.network.cut(*pair)
        self.world.after(self.world.between(0.3, 3.0), self._mend, pairs)

    def _cut_one_way(self) -> None:
        source, target = self._a_node().name, self._a_node().name
        if source != target:
            self.world.note("fault", "one way", source, target)
            self.network.cut(source, target)
            self.world.after(self.world.between(0.3, 3.0), self._mend, [(source, target)])

    def _mend(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.network.mend(*pair)

    def _delete(self) -> None:
        topic_filter = self.random.choice(("a/#", "a/x", "#", "+/x"))
        self.world.note("user", "delete history", topic_filter)
        self._a_node().feed(DeleteHistory([topic_filter]))

    def _set_clock(self) -> None:
        self._a_node().set_clock(self.profile.skew_s * self.world.between(-1, 1))

    def _be_ahead(self) -> None:
        """A clock is minutes ahead for a moment, and its host writes in it, and afterwards."""
        writer = self.random.choice(self.writers)
        writer.node.set_clock(self.world.between(90.0, 600.0))
        self._write(writer)
        self.world.after(self.world.between(0.0, 0.3), writer.node.set_clock, 0.0)
        self.world.after(self.world.between(0.3, 1.0), self._write, writer)

    def _join_late(self) -> None:
        host = self._a_node()
        self.world.note(host.name, "a reader comes")
        SimReader(self.world, self.network, self.oracle, host, self.random.choice(host.settings.name_spaces))

    def _stall(self) -> None:
        host, node = self._a_node().name, self._a_node().name
        if host != node:
            self.world.note("fault", "stall", host, node)
            self.network.stall(host, node)
            self.world.after(self.world.between(0.3, 3.0), self.network.resume, host, node)

    def _wake(self) -> None:
        self._a_node().feed(Interest([space.name for space in SPACES]))

    def _restore(self) -> None:
        self.world.note("fault", "no more")
        self.network.heal()
        for node in self.nodes:
            node.resume()
            node.start()
