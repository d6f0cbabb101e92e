"""The subscription index: both directions agree, matching is exact, and nothing is left when all have gone."""

from __future__ import annotations

import random

import hypothesis
from hypothesis import strategies as st

from heliograph_drivers.pubsub.longpoll.core.index import SubscriptionIndex
from pubsub_api.core.topics import matches
from tests.unit.drivers.longpoll.index_entries import entries

LEVELS = ("a", "b", "c")
TOPICS = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(
    st.lists(st.sampled_from((*LEVELS, "+")), max_size=3), st.sampled_from(("a", "+", "#"))
).map(lambda parts: "/".join([*parts[0], parts[1]]))  # fmt: skip


def check_consistent(index: SubscriptionIndex[str]) -> None:
    forward = {(who, name) for name, holders in entries(index) for who in holders}
    backward = {(who, name) for who, names in index._filters.items() for name in names}
    assert forward == backward
    assert len(index) == len(forward)
    assert all(holders for _, holders in entries(index))


def check_empty(index: SubscriptionIndex[str]) -> None:
    assert len(index) == 0
    assert not list(entries(index))
    assert not index._filters
    assert index._root.is_empty
    assert not index._exact


def test_a_topic_with_one_subscriber_and_with_several() -> None:
    index: SubscriptionIndex[str] = SubscriptionIndex()
    assert index.add("s1", "t/x")
    assert list(index.match("t/x")) == ["s1"]
    assert index.add("s2", "t/x")
    assert index.add("s3", "t/x")
    assert sorted(index.match("t/x")) == ["s1", "s2", "s3"]
    for who in ("s2", "s1"):
        assert index.remove(who, "t/x")
    assert list(index.match("t/x")) == ["s3"]
    assert index.remove("s3", "t/x")
    assert not index.match("t/x")
    check_empty(index)


def test_adding_and_removing_are_idempotent() -> None:
    index: SubscriptionIndex[str] = SubscriptionIndex()
    for name in ("t", "t/#", "+/x"):
        assert index.add("s", name)
        assert not index.add("s", name)
        assert index.remove("s", name)
        assert not index.remove("s", name)
        assert not index.remove("nobody", name)
    check_empty(index)


def test_one_key_and_all_keys_of_a_channel() -> None:
    index: SubscriptionIndex[str] = SubscriptionIndex()
    index.add("one", "channel/k1")
    index.add("all", "channel/#")
    index.add("both", "channel/k1")
    index.add("both", "channel/#")
    assert sorted(index.match("channel/k1")) == ["all", "both", "one"]
    assert sorted(index.match("channel/k2")) == ["all", "both"]
    assert sorted(index.match("channel")) == ["all", "both"]
    assert not index.match("channels/k1")
    assert index.remove_subscriber("both") == 2
    assert sorted(index.match("channel/k1")) == ["all", "one"]
    check_consistent(index)


def test_a_name_of_heliograph_itself_is_matched_exactly_and_by_no_wildcard() -> None:
    index: SubscriptionIndex[str] = SubscriptionIndex()
    index.add("greedy", "#")
    index.add("curious", "$control")
    assert list(index.match("$control")) == ["curious"]


@hypothesis.given(st.lists(st.tuples(st.booleans(), st.sampled_from(("s1", "s2", "s3")), FILTERS), max_size=40), TOPICS)
def test_it_matches_what_the_matcher_matches(steps: list[tuple[bool, str, str]], topic: str) -> None:
    index: SubscriptionIndex[str] = SubscriptionIndex()
    held: set[tuple[str, str]] = set()
    for is_added, who, name in steps:
        if is_added:
            assert index.add(who, name) == ((who, name) not in held)
            held.add((who, name))
        else:
            assert index.remove(who, name) == ((who, name) in held)
            held.discard((who, name))
        check_consistent(index)
    expected = {who for who, name in held if matches(name, topic)}
    found = list(index.match(topic))
    assert set(found) == expected
    assert len(found) == len(expected), "each once"
    assert all(index.matches(who, topic) for who in expected)
    for who in ("s1", "s2", "s3"):
        index.remove_subscriber(who)
    check_empty(index)


def test_publishing_looks_at_matching_subscribers_only() -> None:
    """Whatever else is subscribed, the look-up visits the nodes along the topic and no others."""
    index: SubscriptionIndex[str] = SubscriptionIndex()
    chance = random.Random(1)
    for number in range(2000):
        index.add(f"s{number % 50}", f"channel/key-{number}")
        index.add(f"s{number % 50}", f"other-{chance.randrange(500)}/+/x")
    visited = 0
    collect = index._collect

    def count(levels: list[str], matched: set[str]) -> None:
        nonlocal visited
        visited += len(levels)
        collect(levels, matched)

    index._collect = count  # type: ignore[method-assign]
    assert list(index.match("channel/key-77")) == ["s27"]
    assert visited == 2
