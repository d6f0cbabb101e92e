"""The durability service's behaviour, case by case: who leads, what is injected, what each policy does to a split."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from durability_service.core.alignment.aligner import Aligner, Standing
from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.effects import BeginFill, CompleteFill, Fill, Interest, StoreMarks
from durability_service.core.keeping.holding import Holding
from durability_service.core.keeping.keeper import Keeper
from durability_service.core.keeping.lifecycle import Phase
from durability_service.core.messages import AlignRequest, Epoch
from durability_service.core.namespaces import SAME_ROLE, Alignee, Kind, NameSpace, NamespacePolicy
from durability_service.core.service import DurabilityCore
from durability_service.core.sets.batches import pack_buckets
from durability_service.core.sets.sample_set import SampleSet
from durability_service.core.sets.samples import make_sample
from durability_service.core.settings import ServiceSettings, TopicRules
from durability_service.testing.simulator.network import Network
from durability_service.testing.simulator.nodes import EPOCH_NS, SimNode
from durability_service.testing.simulator.oracle import Oracle
from durability_service.testing.simulator.profiles import Profile
from durability_service.testing.simulator.scenario import SETTINGS, SPACES, SimWriter
from pubsub_api.testing.simulator.world import World

SPACE = SPACES[0]
LONG_S = 8.0
"""Long enough for everything to settle."""


def policy(merge: MergePolicy = MergePolicy.MERGE, **options: Any) -> NamespacePolicy:
    return NamespacePolicy(merges=((SAME_ROLE, merge), ("*", merge)), **options)


class Rig:
    """Services on a network that works, with a clock that tests turn."""

    def __init__(self, merge: MergePolicy = MergePolicy.MERGE) -> None:
        self.world = World(1)
        self.profile = Profile("rig", merge=merge, partitions=1)
        self.network = Network(self.world, self.profile)
        self.oracle = Oracle(self.profile)
        self.nodes: dict[str, SimNode] = {}
        self.writers: dict[str, SimWriter] = {}

    def add(self, name: str, own: NamespacePolicy | None = None, *, skew_s: float = 0.0, **settings: Any) -> SimNode:
        made = dataclasses.replace(
            SETTINGS,
            node=name,
            **{"name_spaces": (SPACE,), "policies": (own or policy(self.profile.merge),), **settings},
        )
        node = self.nodes[name] = SimNode(
            self.world, self.network, self.oracle, made, core_class=DurabilityCore, skew_s=skew_s, disk_s=0.001
        )
        self.writers[name] = SimWriter(node, bytes([len(self.nodes)]) * 16)
        return node

    def start(self, *names: str) -> None:
        for name in names or self.nodes:
            self.nodes[name].start()
        self.run()

    def run(self, seconds: float = LONG_S) -> None:
        self.world.run_until(self.world.now + seconds)

    def write(self, host: str, *keys: str, topic: str = "a/x", is_delete: bool = False) -> None:
        for key in keys:
            sample = self.writers[host].sample(topic, key, is_delete=is_delete)
            self.oracle.wrote(sample)
            self.network.publish(host, sample)
        self.run(0.1)

    def write_unheard(self, host: str, other: str) -> None:
        """An event of one that the other does not get; the cut between them is too short to be noticed."""
        self.network.cut(host, other)
        self.write(host, "x")
        self.network.mend(host, other)

    def preload(self, name: str, *keys: str) -> None:
        """A complete set on disk, from an earlier run of this service alone."""
        samples = [self.writers[name].sample("a/x", key, is_delete=False) for key in keys]
        for sample in samples:
            self.oracle.wrote(sample)
        for operation in (
            BeginFill(SPACE.name, tuple(sorted(SPACE.filters)), SETTINGS.buckets),
            Fill(SPACE.name, pack_buckets(samples, SETTINGS.buckets)),
            CompleteFill(SPACE.name, StoreMarks(Epoch(3, name), alive=EPOCH_NS)),
        ):
            self.nodes[name].disk.do(operation)

    def split(self, *one_side: str) -> None:
        for one in self.nodes:
            for other in self.nodes:
                if (one in one_side) != (other in one_side):
                    self.network.cut(one, other)
        self.run()

    def heal(self) -> None:
        self.network.heal()
        self.run()

    def keeper(self, name: str, space: str = SPACE.name) -> Keeper:
        core = self.nodes[name].core
        assert core is not None
        return core.keepers[space]

    def held(self, name: str, space: str = SPACE.name) -> Holding:
        return self.keeper(name, space).holding

    def keys(self, name: str) -> str:
        """The keys of living objects, in order."""
        held = self.held(name).set
        alive = {one.instance for one in held if not held.get(one.instance)[0].is_delete}
        return "".join(sorted(key for _, _, key in alive))

    def master(self, *names: str) -> str:
        """The one master of these services."""
        found = {self.held(name).master for name in names or self.nodes}
        assert len(found) == 1, found
        return found.pop()


# -- who leads


def test_the_highest_priority_leads() -> None:
    rig = Rig()
    rig.add("a", policy(master_priority=200))
    rig.add("b", policy(master_priority=100))
    rig.add("c", policy(master_priority=0))
    rig.start()
    assert rig.master() == "a"


def test_with_equal_priorities_the_newest_set_leads_then_the_highest_name() -> None:
    rig = Rig()
    for name in "abc":
        rig.add(name)
    rig.preload("b", "x")
    rig.run(1.0)
    rig.preload("a", "y")
    rig.start()
    assert rig.master() == "a"
    plain = Rig()
    for name in "abc":
        plain.add(name)
    plain.start()
    assert plain.master() == "c"


def test_priority_0_never_leads_even_alone() -> None:
    rig = Rig()
    rig.add("a", policy(master_priority=0))
    rig.preload("a", "x")
    rig.start()
    assert rig.held("a").phase is Phase.ELECT
    assert rig.held("a").master == ""


def test_who_gives_nothing_does_not_lead_and_is_asked_for_nothing() -> None:
    rig = Rig()
    rig.add("a")
    rig.add("z", policy(aligner=False, master_priority=255))
    rig.start()
    assert rig.master() == "a"
    rig.write("z", "k")
    assert rig.keeper("z").aligner.requests == 0


def test_a_late_joiner_with_a_higher_priority_takes_over_without_injecting() -> None:
    rig = Rig()
    rig.add("a")
    rig.add("b", policy(master_priority=255), role=SETTINGS.role)
    rig.nodes["a"].settings = dataclasses.replace(rig.nodes["a"].settings, policies=(policy(master_priority=9),))
    rig.start("a")
    rig.write("a", "x")
    rig.start("b")
    assert rig.master() == "b"
    assert rig.held("b").counters.injections == 0
    assert rig.keys("b") == "x"


def test_a_master_that_dies_is_replaced_and_its_epoch_too() -> None:
    rig = Rig()
    for name in "abc":
        rig.add(name)
    rig.start()
    before = rig.held("a").epoch
    rig.nodes["c"].crash()
    rig.run()
    assert rig.master("a", "b") == "b"
    assert rig.held("a").epoch == rig.held("b").epoch > before


def test_two_masters_that_meet_become_one_with_an_epoch_above_both() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name)
    rig.start()
    rig.split("a")
    sides = [rig.held(name).epoch for name in "ab"]
    assert len(set(sides)) == 2
    rig.heal()
    assert rig.master() == "b"
    assert rig.held("a").epoch == rig.held("b").epoch > max(sides)


# -- what is injected


def test_only_one_set_is_injected_and_others_are_set_aside() -> None:
    rig = Rig(MergePolicy.CATCHUP)
    rig.add("a")
    rig.add("b")
    rig.preload("a", "o", "l", "d")
    rig.run(1.0)
    rig.preload("b", "n", "e", "w")
    rig.start()
    assert rig.keys("a") == rig.keys("b") == "enw"
    assert [rig.held(name).counters.injections for name in "ab"] == [0, 1]


def test_an_empty_set_is_a_set() -> None:
    rig = Rig(MergePolicy.CATCHUP)
    rig.add("a")
    rig.add("b")
    rig.preload("b", "x")
    rig.start("a")
    rig.start("b")
    assert rig.keys("a") == rig.keys("b") == ""


@pytest.mark.parametrize(("is_delayed", "expected"), [(True, "x"), (False, "")])
def test_a_late_set_is_used_only_with_delayed_alignment(is_delayed: bool, expected: str) -> None:
    rig = Rig(MergePolicy.CATCHUP)
    for name in "ab":
        rig.add(name, policy(MergePolicy.CATCHUP, delayed_alignment=is_delayed))
    rig.preload("b", "x")
    rig.start("a")
    rig.start("b")
    assert rig.keys("a") == rig.keys("b") == expected


def test_a_late_set_is_not_used_when_something_was_written() -> None:
    rig = Rig(MergePolicy.CATCHUP)
    for name in "ab":
        rig.add(name, policy(MergePolicy.CATCHUP, delayed_alignment=True))
    rig.preload("b", "x")
    rig.start("a")
    rig.write("a", "w")
    rig.start("b")
    assert rig.keys("a") == rig.keys("b") == "w"


def test_a_store_that_was_never_completed_is_not_injected() -> None:
    rig = Rig()
    node = rig.add("a")
    node.disk.do(BeginFill(SPACE.name, ("a/#",), SETTINGS.buckets))
    half = rig.writers["a"].sample("a/x", "half", is_delete=False)
    node.disk.do(Fill(SPACE.name, pack_buckets([half], SETTINGS.buckets)))
    rig.start()
    assert rig.held("a").is_complete
    assert rig.keys("a") == ""


def test_an_interrupted_fill_goes_back_to_the_set_before() -> None:
    rig = Rig()
    rig.add("a")
    rig.preload("a", "w", "h")
    rig.nodes["a"].disk.do(BeginFill(SPACE.name, ("a/#",), SETTINGS.buckets))
    half = rig.writers["a"].sample("a/x", "half", is_delete=False)
    rig.nodes["a"].disk.do(Fill(SPACE.name, pack_buckets([half], SETTINGS.buckets)))
    rig.start()
    assert rig.keys("a") == "hw"


def test_data_that_a_killed_service_acknowledged_while_cut_off_is_not_lost() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name)
    rig.start()
    rig.split("a")
    rig.write("a", "x")
    rig.nodes["a"].crash()
    rig.network.heal()
    rig.start("a")
    assert rig.keys("a") == rig.keys("b") == "x"


# -- what a split becomes


@pytest.mark.parametrize(
    ("merge", "low", "high"),
    [
        (MergePolicy.MERGE, "abx", "abx"),
        (MergePolicy.IGNORE, "ax", "bx"),
        (MergePolicy.DELETE, "", ""),
        (MergePolicy.REPLACE, "bx", "bx"),
        (MergePolicy.CATCHUP, "bx", "bx"),
    ],
)
def test_each_policy_makes_of_a_split_what_it_says(merge: MergePolicy, low: str, high: str) -> None:
    rig = Rig(merge)
    rig.add("a")
    rig.add("b")
    rig.start()
    rig.write("a", "x")
    rig.split("a")
    rig.write("a", "a")
    rig.write("b", "b")
    rig.heal()
    assert (rig.keys("a"), rig.keys("b")) == (low, high)
    rig.write("a", "l")
    assert {"l"} <= set(rig.keys("a")) & set(rig.keys("b")), "updates flow whatever the policy"


def test_roles_are_merged_as_their_policies_say() -> None:
    """A branch merges what its leaves have; the leaves leave the branch alone."""
    rig = Rig()
    rig.add(
        "branch", NamespacePolicy(merges=((SAME_ROLE, MergePolicy.MERGE), ("leaf-*", MergePolicy.MERGE))), role="branch"
    )
    rig.add("one", role="leaf-1", own=NamespacePolicy())
    rig.add("two", role="leaf-2", own=NamespacePolicy())
    rig.nodes["one"].start()
    rig.network.cut("one", "branch")
    rig.network.cut("one", "two")
    rig.network.cut("two", "one")
    rig.start()
    rig.write("one", "1")
    rig.heal()
    assert "1" in rig.keys("branch")
    assert "1" not in rig.keys("two")


def test_equal_sets_move_no_sample_and_one_difference_moves_its_bucket() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name)
    rig.start()
    rig.write("a", *(f"k{number}" for number in range(40)))
    moved = rig.network.samples_moved
    rig.split("a")
    rig.heal()
    assert rig.network.samples_moved == moved
    rig.split("a")
    rig.write("a", "k1")
    rig.heal()
    assert 0 < rig.network.samples_moved - moved <= 2 * 40 / SETTINGS.buckets * 3
    assert rig.held("a").set.digest == rig.held("b").set.digest


def test_a_flapping_link_costs_a_bounded_number_of_merges() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name)
    rig.start()
    rig.write("a", "x")
    for _ in range(5):
        rig.network.cut("a", "b")
        rig.network.cut("b", "a")
        rig.run(1.5)
        rig.write("a", "x")
        rig.network.heal()
        rig.run(1.5)
    rig.run()
    assert rig.held("a").counters.merges + rig.held("b").counters.merges <= 10
    assert rig.held("a").set.digest == rig.held("b").set.digest


# -- membership and name-spaces


def test_a_link_that_carries_one_way_is_no_link_and_is_reported() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name)
    rig.start()
    rig.network.cut("a", "b")
    rig.run()
    core = rig.nodes["a"].core
    assert core is not None
    assert core.membership.peers["b"].is_one_way
    assert (rig.held("a").master, rig.held("b").master) == ("a", "b")
    rig.heal()
    assert rig.master() == "b"


def test_a_clean_end_is_known_at_once() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name)
    rig.start()
    rig.nodes["b"].stop()
    rig.run(SETTINGS.expiry_s / 2)
    assert rig.held("a").master == "a"


def test_a_name_space_that_a_peer_has_is_taken_over() -> None:
    rig = Rig()
    rig.add("a")
    rig.add("b", name_spaces=())
    rig.start()
    rig.write("a", "x")
    assert rig.keys("b") == "x"
    assert rig.master() == "a" or rig.master() == "b"


def test_a_name_space_without_a_policy_is_left_alone() -> None:
    rig = Rig()
    rig.add("a")
    rig.add("b", policy(), name_spaces=(), policies=(NamespacePolicy("other"),))
    rig.start()
    core = rig.nodes["b"].core
    assert core is not None
    assert core.keepers == {}


def test_services_whose_name_spaces_clash_have_nothing_to_do_with_each_other() -> None:
    rig = Rig()
    rig.add("a")
    rig.add("b", name_spaces=(NameSpace("others", frozenset({"a/x"})),))
    rig.start()
    rig.write("a", "x")
    for name, other in ("ab", "ba"):
        core = rig.nodes[name].core
        assert core is not None
        assert "intersect" in core.membership.peers[other].incompatibility
    assert rig.network.samples_moved == 0
    assert rig.held("b", "others").set.count == 1, "live data flows all the same"
    rig.nodes["b"].crash()
    rig.nodes["b"].settings = dataclasses.replace(rig.nodes["b"].settings, name_spaces=(SPACE,))
    rig.start("b")
    assert rig.master() == rig.held("a").master
    assert rig.keys("b") == "x"


@pytest.mark.parametrize(
    ("different", "reason"),
    [
        ({"rules": TopicRules(default_depth=5)}, "another history"),
        ({"cleanup_s": 3600.0}, "its cleanup_delay is 3600.0 s, ours is 86400.0 s"),
    ],
)
def test_services_that_keep_different_things_do_not_work_together(different: dict[str, Any], reason: str) -> None:
    rig = Rig()
    rig.add("a")
    rig.add("b", **different)
    rig.start()
    core = rig.nodes["a"].core
    assert core is not None
    assert reason in core.membership.peers["b"].incompatibility


def test_lazy_fetches_on_first_interest_and_on_request_never() -> None:
    rig = Rig()
    rig.add("a")
    rig.add("lazy", policy(alignee=Alignee.LAZY))
    rig.add("never", policy(alignee=Alignee.ON_REQUEST))
    rig.start()
    rig.write("a", "x")
    for name in ("lazy", "never"):
        assert rig.held(name).phase is Phase.DORMANT
        rig.nodes[name].feed(Interest([SPACE.name]))
    rig.run()
    assert rig.held("lazy").is_complete
    assert rig.keys("lazy") == "x"
    assert rig.held("never").phase is Phase.DORMANT


@pytest.mark.parametrize(("kind", "is_kept"), [(Kind.VOLATILE, False), (Kind.TRANSIENT, True)])
def test_a_policy_weakens_what_is_kept(kind: Kind, is_kept: bool) -> None:
    rig = Rig()
    node = rig.add("a", policy(durability=kind))
    rig.start()
    rig.write("a", "x")
    assert bool(rig.held("a").set.count) is is_kept
    assert node.disk.current == {}


def test_discovery_ends_early_when_everybody_expected_has_answered() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name, discovery_s=1000.0, expected_peers=1)
    for name in "ab":
        rig.nodes[name].start()
    rig.run(3.0)
    assert rig.held("a").is_complete


def test_requests_that_come_together_are_answered_together() -> None:
    rig = Rig()
    for name in "abcdz":
        rig.add(name)
    rig.start("z")
    rig.write("z", *(f"k{number}" for number in range(30)))
    rig.start("a", "b", "c", "d")
    assert rig.keeper("z").aligner.combined == 3
    assert rig.network.samples_moved == 30
    assert {rig.keys(name) for name in "abcd"} == {rig.keys("z")}


def test_nobody_waits_for_further_requests_when_all_have_asked() -> None:
    rig = Rig()
    rig.add("z", policy(master_priority=200), combine_initial_s=LONG_S)
    rig.start()
    rig.write("z", "k")
    for name in "abc":
        rig.add(name)
        rig.nodes[name].start()
    rig.run(LONG_S / 2)
    assert [rig.keys(name) for name in "abc"] == ["k", "k", "k"]
    assert rig.keeper("z").aligner.combined == 2


def test_an_answer_ends_with_the_last_who_asked() -> None:
    """Also one that waits for room, and which nobody moves on any more."""
    samples = SampleSet(8, TopicRules().depth_of)
    for number in range(20):
        samples.add(
            make_sample("a/x", "t", f"k{number}", timestamp=1, writer=b"w", number=number, is_delete=False, event=b"e")
        )
    aligner = Aligner(ServiceSettings(node="z", chunk_bytes=1, window_chunks=1), "orders", samples)
    standing = Standing(is_complete=True, is_settling=False, epoch=Epoch(1, "z"), lineage=[])
    aligner.requested(AlignRequest(node="a", incarnation=1, to="z", name_space="orders", number=1), 0.0, set())
    assert len(aligner.pump(1.0, standing)) == 1
    aligner.left("a")
    assert not aligner.is_busy
    assert aligner.pump(1000.0, standing) == []
