"""Lifespans, what is said about a configuration that cannot work well, what readers are told of joined sides, and what
is acknowledged."""

from __future__ import annotations

import dataclasses

import pytest

from durability_service.clients.history import find_mismatches
from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.effects import AcknowledgeRange, Live, Stored, StoreSamples
from durability_service.core.namespaces import Kind, NameSpace, covers
from durability_service.core.service import DurabilityCore
from durability_service.core.sets.samples import Sample, make_sample
from durability_service.core.settings import TopicRules
from durability_service.protocol import HISTORY, Ask, ServiceStatus, SpaceStatus
from durability_service.serving.answers import page, service_status
from durability_service.testing.simulator.nodes import EPOCH_NS
from durability_service.testing.simulator.scenario import SPACES
from pubsub_api.core.durability import Durability
from pubsub_api.subscribing.history import Mismatch
from tests.unit.durability_service.test_durability_core import LONG_S, SPACE, Rig, policy

BRIEF = TopicRules(lifespans=(("a/x", 2.0),))


def test_samples_leave_memory_and_disk_when_their_lifespan_is_over() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name, rules=BRIEF)
    rig.start()
    rig.write("a", "x")
    rig.write("a", "y", topic="a/y")
    assert (rig.keys("a"), rig.keys("b")) == ("xy", "xy")
    rig.run(LONG_S)
    assert (rig.keys("a"), rig.keys("b")) == ("y", "y")
    assert rig.held("a").expiry.expired == 1
    on_disk = rig.nodes["b"].disk.current[SPACE.name]
    assert [sample.key for sample in on_disk.samples.values()] == ["y"]


def test_a_set_that_expired_on_disk_is_not_the_set_of_the_domain() -> None:
    rig = Rig()
    rig.add("a", rules=BRIEF)
    rig.preload("a", "x")
    rig.run(LONG_S)
    rig.add("b", rules=BRIEF)
    rig.start()
    assert (rig.keys("a"), rig.keys("b")) == ("", "")


def test_services_with_other_lifespans_do_not_work_together() -> None:
    rig = Rig()
    rig.add("a")
    rig.add("b", rules=BRIEF)
    rig.start()
    core = rig.nodes["a"].core
    assert core is not None
    assert core.membership.peers["b"].incompatibility


def test_where_nobody_may_lead_that_is_said() -> None:
    rig = Rig()
    rig.add("a", policy(master_priority=0))
    rig.start()
    core = rig.nodes["a"].core
    assert core is not None
    assert core.without_aligner() == [SPACE.name]
    assert any("no service may lead" in warning for warning in rig.keeper("a").warnings)
    rig.add("b")
    rig.start("b")
    assert core.without_aligner() == []
    assert rig.keeper("a").warnings == []


def test_unequal_settings_of_delayed_alignment_are_reported_by_both() -> None:
    rig = Rig()
    rig.add("a", policy(delayed_alignment=True))
    rig.add("b")
    rig.start()
    assert rig.keeper("a").warnings == ["delayed_alignment is True here and not so in b"]
    assert rig.keeper("b").warnings == ["delayed_alignment is False here and not so in a"]


@pytest.mark.parametrize(
    ("merge", "joins", "replacements"),
    [(MergePolicy.MERGE, 1, 0), (MergePolicy.CATCHUP, 0, 1), (MergePolicy.DELETE, 0, 1)],
)
def test_readers_hear_of_sides_that_were_joined(merge: MergePolicy, joins: int, replacements: int) -> None:
    rig = Rig(merge)
    for name in "ab":
        rig.add(name)
    rig.start()
    rig.write("a", "x")
    before = [rig.held(name).counters.joins + rig.held(name).counters.replacements for name in "ab"]
    assert before == [0, 0]  # to start is not to be joined
    rig.split("a")
    rig.write("a", "y")
    rig.write("b", "z")
    rig.heal()
    counters = rig.held("a").counters
    assert (bool(counters.joins), bool(counters.replacements)) == (bool(joins), bool(replacements))
    advert = rig.held("a").advert()
    assert (advert.joins, advert.replacements) == (counters.joins, counters.replacements)


def test_a_lost_event_that_is_made_up_for_is_news_to_readers() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name)
    rig.start()
    rig.write_unheard("a", "b")
    rig.run(LONG_S)
    assert rig.keys("b") == "x"
    assert rig.held("a").counters.joins == 0
    assert rig.held("b").counters.joins == 1


def test_a_service_that_knows_that_it_is_behind_does_not_call_itself_complete_to_readers() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name)
    rig.start()
    rig.write_unheard("a", "b")
    rig.run(0.05)
    core = rig.nodes["b"].core
    assert core is not None
    ask = Ask(id=1, durability=HISTORY, topics=["#"], name_space=SPACE.name)
    found = page(core, ask, 1000, EPOCH_NS)
    assert found is not None
    assert not found.is_complete
    (space,) = service_status(core, lag=0, counters={}, actions={}).name_spaces
    assert not space.is_complete
    assert any("behind" in warning for warning in space.warnings)
    rig.run()
    found = page(core, ask, 1000, EPOCH_NS)
    assert found is not None
    assert found.is_complete
    assert [one.key for one in found.samples] == ["x"]


def test_what_comes_by_reconciliation_first_and_then_live_is_no_news_to_readers() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name)
    rig.start()
    sample = rig.writers["a"].sample("a/x", "x", is_delete=False)
    rig.oracle.wrote(sample)
    rig.nodes["a"].feed(Live([sample], rig.nodes["a"].new_token(sample)))
    node = rig.nodes["b"]
    while rig.keys("b") != "x":  # it reconciles
        rig.run(0.05)
    node.feed(Live([sample], node.new_token(sample)))
    rig.run(LONG_S)
    assert rig.held("b").counters.joins == 0


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("#", "a/b", True), ("a/#", "a", True), ("a/#", "a/+/c", True), ("a/+", "a/b", True), ("a/+", "a/+", True),
        ("a/b", "a/+", False), ("a/+", "a/#", False), ("a/+", "a/b/c", False), ("a/b", "a/b", True), ("a", "b", False),
    ],
)  # fmt: skip
def test_one_filter_covers_another(one: str, other: str, expected: bool) -> None:
    assert covers(one, other) is expected


def status(space: str, durability: Kind, *filters: str) -> ServiceStatus:
    return ServiceStatus(
        node="n", incarnation=1, domain="d", role="r", peers=[], lag=0, counters={}, actions={},
        kinds=[("a/memory", "TRANSIENT"), ("a/local/#", "TRANSIENT_LOCAL")],
        name_spaces=[
            SpaceStatus(
                name=space, filters=list(filters), phase="COMPLETE", is_complete=True, epoch=(1, "n"),  # type: ignore[arg-type]
                master="n", is_agreed=True, samples=0, digest="", persistent=True, conflicts=[], counters={},
                durability=durability.name,
            )
        ],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "asked", "expected"),
    [
        ("a/x", Durability.PERSISTENT, []),
        ("a/memory", Durability.PERSISTENT, [("a/memory", Durability.TRANSIENT)]),
        ("a/memory", Durability.TRANSIENT, []),
        ("a/#", Durability.TRANSIENT, [("a/local/#", Durability.TRANSIENT_LOCAL)]),
        ("b/x", Durability.TRANSIENT, [("b/x", Durability.VOLATILE)]),
        ("c/x", Durability.PERSISTENT, [("c/x", Durability.TRANSIENT)]),
    ],
)
def test_who_asks_for_more_than_is_kept_hears_of_what(
    topic: str, asked: Durability, expected: list[tuple[str, Durability]]
) -> None:
    """The best that any service keeps counts; where there is no name-space, nobody keeps anything."""
    services = [status("one", Kind.PERSISTENT, "a/#"), status("two", Kind.TRANSIENT, "c/#")]
    found = find_mismatches([topic], asked, services)
    assert found == [Mismatch(part, asked, offered) for part, offered in expected]


def test_what_no_name_space_holds_is_not_kept_and_counted() -> None:
    rig = Rig()
    rig.add("a")
    rig.start()
    rig.write("a", "x", topic="elsewhere")
    core = rig.nodes["a"].core
    assert core is not None
    assert (rig.held("a").set.count, core.unwanted) == (0, 1)


def test_a_service_that_comes_back_with_a_mended_configuration_is_welcome() -> None:
    rig = Rig()
    rig.add("a")
    clashing = rig.add("b", name_spaces=(NameSpace("other", frozenset({"a/x"})),))
    rig.start()
    rig.write("a", "x")
    core = rig.nodes["a"].core
    assert core is not None
    assert core.membership.peers["b"].incompatibility
    clashing.stop()
    clashing.settings = dataclasses.replace(clashing.settings, name_spaces=(SPACE,))
    rig.start("b")
    assert core.membership.peers["b"].incompatibility == ""
    assert rig.keys("b") == "x"


def test_without_the_equality_check_one_difference_moves_the_whole_set() -> None:
    moved = []
    for is_checked in (True, False):
        rig = Rig()
        for name in "ab":
            rig.add(name, policy(equality_check=is_checked))
        rig.start()
        rig.write("a", *(f"k{number}" for number in range(40)))
        rig.split("a")
        rig.write("a", "k1")
        before = rig.network.samples_moved
        rig.heal()
        moved.append(rig.network.samples_moved - before)
        assert rig.held("a").set.digest == rig.held("b").set.digest
    assert moved[0] < 40 <= moved[1]


# -- what is acknowledged


def acknowledged(core: DurabilityCore, samples: list[Sample], token: int) -> bool:
    """Whether live samples are acknowledged, on a disk that works at once."""
    effects = list(core.step(core.now, EPOCH_NS, Live(samples, token)))
    done = False
    while effects:
        effect = effects.pop(0)
        done = done or effect == AcknowledgeRange(token)
        if isinstance(effect, StoreSamples):
            effects += core.step(core.now, EPOCH_NS, Stored(effect.number))
    return done


def test_what_is_not_taken_because_its_clock_is_wrong_is_not_acknowledged_with_the_rest() -> None:
    rig = Rig()
    node = rig.add("a", name_spaces=SPACES)
    rig.start()
    core = node.core
    assert core is not None
    good, other = (rig.writers["a"].sample(topic, "k", is_delete=False) for topic in ("a/x", "b/x"))
    future = make_sample(
        "a/x", "t", "l", timestamp=2 * EPOCH_NS, writer=b"w" * 16, number=1, is_delete=False, event=b"later"
    )
    assert not acknowledged(core, [good, future, other], 1001)
    assert core.keepers["orders"].holding.counters.from_the_future == 1
    assert acknowledged(core, [good, other], 1002)
    assert rig.keys("a") == "k"


def test_what_finds_no_room_before_the_set_is_complete_is_not_acknowledged() -> None:
    rig = Rig()
    node = rig.add("a", held_max=1)
    node.start()
    core = node.core
    assert core is not None
    samples = [rig.writers["a"].sample("a/x", key, is_delete=False) for key in "kl"]
    assert not acknowledged(core, samples, 1001)
    assert core.keepers[SPACE.name].holding.counters.held_dropped == 2
    rig.run()
    assert rig.keys("a") == ""
    assert acknowledged(core, samples, 1002)
    assert rig.keys("a") == "kl"
