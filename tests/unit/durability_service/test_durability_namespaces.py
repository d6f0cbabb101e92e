"""Name-spaces: which overlap, which policy applies, who can work together."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.keeping.lifecycle import TRANSITIONS, LifecycleCause, Phase, after
from durability_service.core.namespaces import (
    NameSpace,
    NamespacePolicy,
    incompatibility,
    intersect,
    overlap,
    policy_for,
)
from pubsub_api.core.topics import matches
from pubsub_api.errors import InvalidTopic

LEVELS = ("a", "b")
ALL_TOPICS = ["/".join(levels) for depth in (1, 2, 3, 4) for levels in itertools.product(LEVELS, repeat=depth)]
filters = st.lists(st.sampled_from(["a", "b", "+"]), min_size=1, max_size=3).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)


@given(filters, filters)
def test_filters_intersect_when_and_only_when_they_share_a_topic(one: str, other: str) -> None:
    shared = [topic for topic in ALL_TOPICS if matches(one, topic) and matches(other, topic)]
    assert intersect(one, other) == intersect(other, one) == bool(shared)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("#", "a", True),
        ("a/#", "a", True),
        ("a/#", "b/#", False),
        ("a/+", "a", False),
        ("+/b", "a/+", True),
        ("a/b/#", "a/+", True),
        ("a/b/c", "a/+", False),
    ],
)
def test_intersections(one: str, other: str, expected: bool) -> None:
    assert intersect(one, other) is expected


def space(name: str, *of: str) -> NameSpace:
    return NameSpace(name, frozenset(of))


def test_disjoint_name_spaces_coexist_and_intersecting_ones_do_not() -> None:
    assert incompatibility([space("one", "p1", "q")], [space("two", "p2", "r")]) == ""
    reason = incompatibility([space("one", "s", "t")], [space("two", "s", "u")])
    assert "'one' and 'two' intersect" in reason
    assert "'s'" in reason
    assert incompatibility([space("one", "a/#")], [space("two", "a/b")])
    assert overlap(space("one", "x", "a/#"), space("two", "+/b")) == ("a/#", "+/b")


def test_a_name_space_is_the_same_in_any_order_and_another_with_other_filters() -> None:
    assert incompatibility([space("one", "a", "b")], [space("one", "b", "a")]) == ""
    assert "is {a, b} here and {a} there" in incompatibility([space("one", "a", "b")], [space("one", "a")])


def test_the_first_policy_that_matches_wins() -> None:
    policies = (
        NamespacePolicy("ord*", master_priority=7),
        NamespacePolicy("orders", master_priority=8),
        NamespacePolicy("*", master_priority=9),
    )
    assert policy_for("orders", policies) is policies[0]
    assert policy_for("ports", policies) is policies[2]
    assert policy_for("ports", policies[:2]) is None


def test_the_first_scope_that_matches_the_other_role_wins() -> None:
    policy = NamespacePolicy(
        merges=(("leaf-*", MergePolicy.MERGE), ("leaf-2", MergePolicy.DELETE), ("@same", MergePolicy.CATCHUP))
    )
    assert policy.merge_for("leaf-2", "branch") is MergePolicy.MERGE
    assert policy.merge_for("branch", "branch") is MergePolicy.CATCHUP
    assert policy.merge_for("other", "branch") is MergePolicy.IGNORE


def test_by_default_sides_of_one_role_are_merged_and_others_left_alone() -> None:
    assert NamespacePolicy().merge_for("r", "r") is MergePolicy.MERGE
    assert NamespacePolicy().merge_for("s", "r") is MergePolicy.IGNORE


def test_a_bad_filter_is_refused() -> None:
    with pytest.raises(InvalidTopic):
        space("one", "a/#/b")


def test_every_phase_can_be_reached_and_left() -> None:
    reached = {Phase.DISCOVER, *TRANSITIONS.values()}
    assert reached == set(Phase)
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - {Phase.TERMINATING}


def test_a_transition_that_is_not_in_the_table_cannot_happen() -> None:
    with pytest.raises(AssertionError, match="no transition from DISCOVER"):
        after(Phase.DISCOVER, LifecycleCause.STORED)
