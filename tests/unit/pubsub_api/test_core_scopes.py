"""Scopes of questions: what covers what, how questions are divided, and that nobody asks or answers outside of one."""

from __future__ import annotations

import dataclasses

import pytest

from pubsub_api.core import frame as frames
from pubsub_api.core import messages, scopes
from pubsub_api.core.errors import InvalidTopic, UndecodableBody
from pubsub_api.core.frame import Kind
from pubsub_api.core.messages import Query, Reply, Want
from pubsub_api.core.topics import CONTROL_TOPIC, FilterSet
from tests.unit.pubsub_api.core_rig import SUBSCRIBER, Rig, guid_of, header_of

SCOPED = dataclasses.replace(SUBSCRIBER, scopes_max=4)


@pytest.mark.parametrize(
    ("topic_filter", "scope"),
    [("a", "a"), ("a/b", "a/b"), ("a/#", "a/#"), ("a/+", "a/#"), ("a/+/c", "a/#"), ("a/b/+/d/#", "a/b/#"), ("#", "#"),
     ("+", "#"), ("+/b", "#")],
)  # fmt: skip
def test_the_scope_of_a_filter_is_what_stands_before_its_first_wildcard(topic_filter: str, scope: str) -> None:
    assert scopes.scope_of(topic_filter) == scope
    assert scopes.covers(scope, topic_filter)
    assert scopes.check_scope(scope) == scope


@pytest.mark.parametrize(
    ("scope", "inside", "outside"),
    [
        ("#", ["a", "a/b", "+/b"], []),
        ("$control", ["a", "#"], []),
        ("a/#", ["a", "a/b", "a/#", "a/+", "a/b/c"], ["ab", "ab/c", "b", "#", "+", "+/a", "b/a/c"]),
        ("a/b", ["a/b"], ["a", "a/b/c", "a/b/#", "a/+", "a/#", "#"]),
    ],
)
def test_a_scope_covers_what_is_below_it(scope: str, inside: list[str], outside: list[str]) -> None:
    assert [name for name in inside + outside if scopes.covers(scope, name)] == inside


@pytest.mark.parametrize("scope", ["", "+", "a/+", "a/#/b", "$query", "a//b", "a/*"])
def test_what_is_no_scope_is_refused(scope: str) -> None:
    with pytest.raises(InvalidTopic):
        scopes.check_scope(scope)


def test_a_topic_is_asked_for_in_the_scope_of_its_filter() -> None:
    filters = FilterSet(["a/b", "c/d/#", "e/+/f"])
    topics = {"a/b": "a/b", "c/d": "c/d/#", "c/d/x/y": "c/d/#", "e/x/f": "e/#", "not/ours": "not/ours"}
    assert {topic: scopes.scope_of_topic(topic, filters) for topic in topics} == topics
    assert scopes.scope_of_topic("a/x/y", FilterSet(["#"])) == "a/#"
    assert scopes.scope_of_topic("a", FilterSet(["#"])) == "a/#"


@pytest.mark.parametrize(
    ("filters", "scopes_max", "expected"),
    [
        (["a/b", "a/#", "b"], 4, {"a/#": ["a/b", "a/#"], "b": ["b"]}),
        (["a/b", "#"], 4, {"#": ["a/b", "#"]}),
        (["a/b", "a/c", "d/e", "d/f/#"], 2, {"a/#": ["a/b", "a/c"], "d/#": ["d/e", "d/f/#"]}),
        (["a/b/c", "a/b/d", "a/e"], 2, {"a/b/#": ["a/b/c", "a/b/d"], "a/e": ["a/e"]}),
        (["a", "b", "c"], 2, {"#": ["a", "b", "c"]}),
        ([], 2, {}),
    ],
)
def test_filters_are_grouped_in_as_many_scopes_as_there_may_be(
    filters: list[str], scopes_max: int, expected: dict[str, list[str]]
) -> None:
    grouped = scopes.group(((scopes.scope_of(one), one) for one in filters), scopes_max)
    assert grouped == expected
    assert all(scopes.covers(scope, one) for scope, some in grouped.items() for one in some)


def test_ten_thousand_filters_are_a_bounded_number_of_questions() -> None:
    filters = [f"tenant-{number}/port/{number}" for number in range(10_000)]
    grouped = scopes.group(((one, one) for one in filters), scopes.SCOPES_MAX)
    assert list(grouped) == ["#"]
    assert grouped["#"] == filters


@pytest.mark.parametrize(
    "query",
    [
        Query(id=1, topics=["tenant-8/#"]),
        Query(id=1, topics=["tenant-7/port", "tenant-8/port"]),
        Query(id=1, topics=["+/port"]),
        Query(id=1, wants=[Want(guid_of(1), "tenant-7/port"), Want(guid_of(1), "tenant-8/port")]),
    ],
)
def test_a_question_about_what_is_outside_of_its_scope_is_refused(query: Query) -> None:
    query.scope = "tenant-7/#"
    frame = frames.pack(Kind.QUERY, guid_of(1), query.scope, messages.encode(query))
    with pytest.raises(UndecodableBody, match="in the scope 'tenant-7/#'"):
        messages.decode(Query, frame, header_of(frame))


@pytest.mark.parametrize("scope", ["tenant-8/#", CONTROL_TOPIC, "#"])
def test_a_question_of_another_scope_than_its_header_says_is_refused(scope: str) -> None:
    query = Query(id=1, topics=["tenant-8/#"], scope=scope)
    frame = frames.pack(Kind.QUERY, guid_of(1), "tenant-7/#", messages.encode(query))
    with pytest.raises(UndecodableBody, match="in a frame of 'tenant-7/#'"):
        messages.decode(Query, frame, header_of(frame))


def test_a_subscriber_joins_and_repairs_with_one_question_for_each_scope() -> None:
    rig = Rig("a/#", "b/x", settings=SCOPED)
    publisher = rig.publisher()
    rig.connect()
    assert sorted((query.scope, query.topics) for query in rig.queries) == [("a/#", ["a/#"]), ("b/x", ["b/x"])]
    assert rig.resyncs
    rig.queries.clear()
    lost = [frame for topic in ("a/1", "a/2", "b/x") for frame in rig.publish(publisher, topic)]
    rig.deliver(*(frame for topic in ("a/1", "a/2", "b/x") for frame in rig.publish(publisher, topic)))
    assert len(lost) == 3
    rig.run(1.0)
    assert sorted((query.scope, [want.topic for want in query.wants]) for query in rig.queries) == [
        ("a/#", ["a/1", "a/2"]),
        ("b/x", ["b/x"]),
    ]
    assert sorted(rig.received) == [(topic, number) for topic in ("a/1", "a/2", "b/x") for number in (1, 2)]
    assert len(rig.resyncs) == 1


def test_a_join_is_not_concluded_before_every_scope_is_answered() -> None:
    rig = Rig("a/#", "b/x", settings=SCOPED)
    publisher = rig.publisher(is_asked=False)
    rig.responders.append(lambda query: publisher.answer(query, rig.stamp, rig.now) if query.scope == "a/#" else [])
    rig.connect()
    assert not rig.resyncs
    rig.run(2 * SCOPED.ready_timeout_s + 0.1)
    assert rig.resyncs


def test_an_answer_about_what_is_outside_of_its_scope_changes_nothing() -> None:
    rig = Rig("a/#", "b/#", settings=SCOPED)
    publisher = rig.publisher()
    rig.connect()
    rig.publish(publisher, "a/1")
    rig.deliver(*rig.publish(publisher, "a/1"))
    forged_stream = rig.publisher("another", is_asked=False)
    (forged,) = rig.publish(forged_stream, "b/1")
    rig.responders.clear()
    rig.knows_responders = False
    rig.run(0.3)
    asked = [query for query in rig.queries if query.wants][-1]
    for scope, reply in (
        ("a/#", Reply(id=asked.id, frames=[forged])),
        ("a/#", Reply(id=asked.id, heads=[(forged_stream.guid, "b/1", 1)])),
        ("b/#", Reply(id=asked.id)),
    ):
        rig.deliver(frames.pack(Kind.REPLY, guid_of(9), scope, messages.encode(reply)))
    assert rig.subscriber.counters.bad_frames == {"MalformedFrame": 3}
    assert not [topic for topic, _ in rig.received if topic.startswith("b/")]
