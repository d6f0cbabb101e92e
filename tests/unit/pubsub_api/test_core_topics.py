"""Topics and filters: what is allowed, and what matches what, compared with a model made of regular expressions."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_api.core.errors import InvalidTopic
from pubsub_api.core.topics import (
    CONTROL_TOPIC,
    TOPIC_BYTES_MAX,
    FilterSet,
    check_filter,
    check_topic,
    is_wildcard,
    literal_prefix,
    matches,
    overlap,
)

GOOD_TOPICS = ["a", "a/b", "tenant-7/port", "é/ü", "a b", "a.b:c;d,e=f&g", "a@b", "0", "-", "x" * TOPIC_BYTES_MAX]
GOOD_FILTERS = [*GOOD_TOPICS, "#", "+", "a/#", "+/b", "+/+", "a/+/#", "+/#"]
BAD_NAMES = [
    ("", "must not be empty"),
    ("/", "empty level"),
    ("/a", "empty level"),
    ("a/", "empty level"),
    ("a//b", "empty level"),
    ("@a", "'@'"),
    ("a/@b", "'@'"),
    ("x" * (TOPIC_BYTES_MAX + 1), "longer than 512"),
    ("é" * (TOPIC_BYTES_MAX // 2 + 1), "longer than 512"),
    ("\ud800", "not valid Unicode"),
    ("a\x00", "reserved"),
    ("a\nb", "reserved"),
    ("a\x7f", "reserved"),
    ("*", "reserved"),
    ("a/b*", "reserved"),
    ("a?", "reserved"),
    ("$a", "reserved"),
    ("a$b", "reserved"),
    (CONTROL_TOPIC, "reserved"),
]


@pytest.mark.parametrize("topic", GOOD_TOPICS)
def test_good_topics_come_back(topic: str) -> None:
    assert check_topic(topic) == topic
    assert check_filter(topic) == topic


@pytest.mark.parametrize("topic_filter", GOOD_FILTERS)
def test_good_filters_come_back(topic_filter: str) -> None:
    assert check_filter(topic_filter) == topic_filter


@pytest.mark.parametrize(("name", "reason"), BAD_NAMES)
def test_bad_names_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopic, match=reason):
        check_topic(name)
    with pytest.raises(InvalidTopic, match=reason):
        check_filter(name)


@pytest.mark.parametrize("topic", ["+", "#", "a/+", "a/#", "a+b", "a#"])
def test_wildcards_are_refused_in_topics(topic: str) -> None:
    with pytest.raises(InvalidTopic, match="reserved"):
        check_topic(topic)


@pytest.mark.parametrize("topic_filter", ["#/a", "a/#/b", "a#", "a/b#", "a+", "+a/b", "a/+b", "##", "++"])
def test_misplaced_wildcards_are_refused_in_filters(topic_filter: str) -> None:
    with pytest.raises(InvalidTopic, match="stand alone"):
        check_filter(topic_filter)


@pytest.mark.parametrize("name", [None, 1, b"a", ["a"]])
def test_names_of_another_type_are_refused(name: object) -> None:
    for check in (check_topic, check_filter):
        with pytest.raises(InvalidTopic, match="must be a str"):
            check(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic_filter", "wildcard", "prefix"),
    [("a", False, "a"), ("a/b", False, "a/b"), ("#", True, ""), ("+", True, ""), ("a/#", True, "a"),
     ("a/b/+/c", True, "a/b"), ("+/b", True, "")],
)  # fmt: skip
def test_wildcards_and_the_prefix_before_them(topic_filter: str, wildcard: bool, prefix: str) -> None:
    assert is_wildcard(topic_filter) is wildcard
    assert literal_prefix(topic_filter) == prefix


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a", "a", True),
        ("a", "a/b", False),
        ("a", "ab", False),
        ("a/b", "a", False),
        ("#", "a", True),
        ("#", "a/b/c", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("a/#", "b/a", False),
        ("+", "a", True),
        ("+", "a/b", False),
        ("+/b", "a/b", True),
        ("+/b", "b", False),
        ("a/+", "a", False),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/b/d", False),
        ("+/#", "a", True),
        ("#", CONTROL_TOPIC, False),
        ("+", CONTROL_TOPIC, False),
        ("+/a", "$x/a", False),
    ],
)
def test_matches(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected
    assert FilterSet([topic_filter]).match(topic) is expected


LEVELS = st.sampled_from(("a", "b", "ab", "é"))
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(LEVELS | st.just("+"), min_size=1, max_size=4),
    st.sampled_from(([], ["#"])),
) | st.just("#")


def model(topic_filter: str, topic: str) -> bool:
    """What the filter means, as a regular expression."""
    if topic_filter == "#":
        return True
    body, rest = (topic_filter[:-2], "(/.*)?") if topic_filter.endswith("/#") else (topic_filter, "")
    pattern = "/".join("[^/]+" if level == "+" else re.escape(level) for level in body.split("/"))
    return re.fullmatch(pattern + rest, topic) is not None


@given(FILTERS, TOPICS)
def test_matches_like_the_model(topic_filter: str, topic: str) -> None:
    assert matches(check_filter(topic_filter), check_topic(topic)) is model(topic_filter, topic)


@given(FILTERS, TOPICS)
def test_the_prefix_never_hides_what_matches(topic_filter: str, topic: str) -> None:
    if matches(topic_filter, topic):
        assert topic.startswith(literal_prefix(topic_filter))


@given(st.lists(st.tuples(st.booleans(), FILTERS), max_size=12), TOPICS)
def test_a_filter_set_is_the_set_of_its_filters(steps: list[tuple[bool, str]], topic: str) -> None:
    filters, naive = FilterSet(), set[str]()
    for is_added, topic_filter in steps:
        if is_added:
            assert filters.add(topic_filter) is (topic_filter not in naive)
            naive.add(topic_filter)
        else:
            assert filters.discard(topic_filter) is (topic_filter in naive)
            naive.discard(topic_filter)
        assert (topic_filter in filters) is is_added
    assert sorted(filters) == sorted(naive)
    assert len(filters) == len(naive)
    assert filters.match(topic) is any(model(topic_filter, topic) for topic_filter in naive)
    assert not filters.match(CONTROL_TOPIC)
    assert not filters.match(f"${topic}")


def test_a_filter_set_refuses_what_is_no_filter() -> None:
    filters = FilterSet(["a"])
    with pytest.raises(InvalidTopic):
        filters.add("a/#/b")
    with pytest.raises(InvalidTopic):
        FilterSet(["$control"])
    assert list(filters) == ["a"]


def test_wildcards_are_looked_up_by_level_not_one_by_one() -> None:
    """A matcher that tries filter after filter would compare every one of them with the topic."""
    filters = FilterSet(f"tenant-{number}/+/port" for number in range(5000))
    trees = [filters._tree]
    for level in ("tenant-4711", "+", "port"):
        trees.append(trees[-1][level])
    assert [len(tree) for tree in trees] == [5000, 1, 1, 1]
    assert filters.match("tenant-4711/x/port")
    assert not filters.match("tenant-5000/x/port")
    for number in range(5000):
        assert filters.discard(f"tenant-{number}/+/port")
    assert filters._tree == {}


@given(
    st.lists(st.sampled_from("ab+#"), min_size=1, max_size=3), st.lists(st.sampled_from("ab+#"), min_size=1, max_size=3)
)
def test_filters_overlap_when_a_topic_is_selected_by_both(one: list[str], other: list[str]) -> None:
    first, second = (
        "/".join([*(level for level in levels[:-1] if level != "#"), levels[-1]]) for levels in (one, other)
    )
    topics = ("/".join(path) for length in range(1, 5) for path in itertools.product("abc", repeat=length))
    assert overlap(first, second) == any(matches(first, topic) and matches(second, topic) for topic in topics)


def test_no_filter_overlaps_what_belongs_to_heliograph() -> None:
    assert overlap("$dead/x", "$dead/x")
    assert not overlap("$dead/x", "#")
