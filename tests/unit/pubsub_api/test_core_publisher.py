"""The sending half: numbers, batches, when hellos go out and what they cost, answers."""

from __future__ import annotations

import collections
import tracemalloc
from typing import Any

import pytest

from pubsub_api.core import events, frame, messages
from pubsub_api.core.errors import InvalidTopic, LimitReached, NotPermitted
from pubsub_api.core.frame import SEQUENCE_MAX, Flag, Header, Kind
from pubsub_api.core.messages import Query, Want
from pubsub_api.core.sending.publisher import Outgoing, Predecessor, PublisherCore
from pubsub_api.core.settings import CacheSettings, FrameSettings, PublisherSettings
from pubsub_api.core.topics import CONTROL_TOPIC

GUID = b"g" * 16
BYTES_MAX = 1024 * 1024


def make(*, predecessor: Predecessor | None = None, **settings: Any) -> PublisherCore:
    return PublisherCore(PublisherSettings(**settings), guid=GUID, name="north", now=0.0, predecessor=predecessor)


def header_of(packed: bytes) -> Header:
    return frame.unpack(packed, bytes_max=BYTES_MAX)


def append(core: PublisherCore, topic: str, count: int, size: int = 10) -> None:
    event = events.encode_event(events.Event(table="t", key="k", action="set", value="x" * size), 1)
    core.stream(topic).pending.extend([event] * count)


def flush(core: PublisherCore, topic: str, now: float = 0.0) -> list[bytes]:
    packed = iter(lambda: core.next_frame(core.stream(topic), now, 1), None)
    return [one for one in packed if one is not None]


def publish(core: PublisherCore, topic: str, now: float, count: int = 1) -> list[bytes]:
    append(core, topic, count)
    return flush(core, topic, now)


def stream_hellos(out: list[Outgoing]) -> list[tuple[str, int]]:
    """Topic and head of the stream hellos among these."""
    found = []
    for topic, packed in out:
        header = header_of(packed)
        assert header.topic == topic
        if topic != CONTROL_TOPIC:
            assert header.kind == Kind.HELLO
            assert header.first == header.after + 1
            found.append((topic, header.after))
    return found


def heartbeats(out: list[Outgoing]) -> list[messages.Hello]:
    found = [packed for topic, packed in out if topic == CONTROL_TOPIC]
    return [messages.decode(messages.Hello, packed, header_of(packed)) for packed in found]


def run(core: PublisherCore, start: float, end: float) -> list[tuple[float, Outgoing]]:
    """Poll whenever there is something to do; what came out, and when."""
    out: list[tuple[float, Outgoing]] = []
    now = start
    while now <= end:
        out += [(now, outgoing) for outgoing in core.poll(now, 1)]
        assert core.next_deadline() >= now
        now = max(core.next_deadline(), now + 1e-6)  # of a budget, less than a float tells may be missing
    return out


# -- data


def test_numbers_are_dense_in_each_topic() -> None:
    core = make(batch_events_max=4)
    numbers: dict[str, list[int]] = {"a": [], "b": []}
    for count in (1, 9, 4, 3):
        for topic, seen in numbers.items():
            for packed in publish(core, topic, 0.0, count):
                header = header_of(packed)
                assert (header.kind, header.guid, header.topic, header.after) == (
                    Kind.DATA,
                    GUID,
                    topic,
                    header.first - 1,
                )
                assert len(events.decode_events(packed, header)) == header.count <= 4
                seen += range(header.first, header.last + 1)
    assert numbers == {"a": list(range(1, 18)), "b": list(range(1, 18))}
    assert core.heads() == {"a": 17, "b": 17}
    assert core.events == 34


def test_a_frame_takes_so_many_events() -> None:
    core = make(batch_events_max=100)
    append(core, "a", 250)
    assert [header_of(packed).count for packed in flush(core, "a")] == [100, 100, 50]
    assert core.next_frame(core.stream("a"), 0.0, 1) is None


def test_a_frame_takes_so_many_bytes() -> None:
    core = make(batch_bytes_max=1000)
    append(core, "a", 10, size=400)
    assert [header_of(packed).count for packed in flush(core, "a")] == [2] * 5


def test_an_event_larger_than_a_batch_goes_alone() -> None:
    core = make(batch_bytes_max=1000)
    append(core, "a", 2)
    append(core, "a", 1, size=5000)
    append(core, "a", 2)
    assert [header_of(packed).count for packed in flush(core, "a")] == [2, 1, 2]


def test_frames_are_signed_with_the_key() -> None:
    core = make(frame=FrameSettings(key=b"k"))
    packed = [*publish(core, "a", 0.0), *(one for _, one in core.start(0.0, 1)), *(one for _, one in core.poll(9.0, 1))]
    assert len(packed) >= 4
    for one in packed:
        assert frame.unpack(one, bytes_max=BYTES_MAX, key=b"k").flags & Flag.SIGNED


def test_streams_are_limited_and_checked() -> None:
    core = make(streams_max=2)
    core.stream("a")
    core.stream("b")
    with pytest.raises(LimitReached, match="streams_max"):
        core.stream("c")
    assert core.stream("a") is core.stream("a")
    with pytest.raises(InvalidTopic):
        make().stream("a/#")


# -- hellos


def test_the_first_hello_comes_when_a_stream_has_been_idle() -> None:
    core = make()
    core.start(0.0, 1)
    for now in range(40):
        publish(core, "busy", float(now))
        assert stream_hellos(core.poll(float(now), 1)) == [], "not while it is active"
    assert stream_hellos(core.poll(43.9, 1)) == []
    assert stream_hellos(core.poll(44.0, 1)) == [("busy", 40)]
    assert stream_hellos(core.poll(44.1, 1)) == []


def test_hellos_are_repeated_at_doubling_intervals() -> None:
    core = make()
    core.start(0.0, 1)
    publish(core, "a", 0.0)
    times = [now for now, (topic, _) in run(core, 0.0, 400.0) if topic == "a"]
    assert times == [5, 10, 20, 40, 80, 160, 240, 320, 400]


def test_data_starts_the_schedule_again() -> None:
    core = make()
    core.start(0.0, 1)
    publish(core, "a", 0.0)
    run(core, 0.0, 100.0)
    publish(core, "a", 101.0)
    times = [now for now, (topic, packed) in run(core, 101.0, 160.0) if topic == "a"]
    assert times == [106, 111, 121, 141]


def test_a_stream_without_data_says_nothing() -> None:
    core = make()
    core.stream("a")
    assert [topic for _, (topic, _) in run(core, 0.0, 50.0) if topic == "a"] == []


def test_the_heartbeat_comes_every_max_idle_time() -> None:
    core = make()
    core.start(0.0, 1)
    beats = [(now, outgoing) for now, outgoing in run(core, 0.0, 51.0) if outgoing[0] == CONTROL_TOPIC]
    assert [now for now, _ in beats] == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    assert {hello.name for hello in heartbeats([outgoing for _, outgoing in beats])} == {"north"}
    assert not any(header_of(packed).flags & Flag.START for _, (_, packed) in beats)


def test_a_hundred_thousand_idle_topics_cost_no_more_than_the_rate() -> None:
    core = make(cache=None, hello_rate_max=500)
    core.start(0.0, 1)
    event = events.encode_event(events.Event(table="t", key="k", action="set"), 1)
    for number in range(100_000):
        stream = core.stream(f"t/{number}")
        stream.pending.append(event)
        core.next_frame(stream, 0.0, 1)
    assert len(stream_hellos_unread(core.poll(5.0, 1))) == 100_000, "one for each burst of data"
    assert len(stream_hellos_unread(core.poll(10.0, 1))) == 500
    for second in range(11, 31):
        core.poll(second - 0.1, 1)
        repeated = sum(len(stream_hellos_unread(core.poll(second + tenth / 10, 1))) for tenth in range(9))
        assert repeated <= 500
    again = collections.Counter(
        topic for second in range(31, 230) for topic in stream_hellos_unread(core.poll(float(second), 1))
    )
    assert sum(again.values()) >= 500 * 190, "the rate is used"


def stream_hellos_unread(out: list[Outgoing]) -> list[str]:
    return [topic for topic, _ in out if topic != CONTROL_TOPIC]


def test_after_a_reconnect_every_head_is_announced_the_newest_first() -> None:
    core = make(hello_rate_max=10)
    core.start(0.0, 1)
    for number in range(30):
        publish(core, f"t/{number}", float(number))
    core.stream("empty")
    run(core, 30.0, 900.0)
    core.announce(1000.0)
    out = run(core, 1000.0, 1004.5)
    announced = [topic for _, (topic, _) in out if topic != CONTROL_TOPIC]
    assert announced == [f"t/{number}" for number in range(29, -1, -1)]
    assert out[0][1][0] == CONTROL_TOPIC, "it lives"
    per_second = collections.Counter(int(now) for now, (topic, _) in out if topic != CONTROL_TOPIC)
    assert max(per_second.values()) <= 20, "a full budget and one second's worth"


# -- start and end


def parts_of(out: list[Outgoing], kind: type[Any]) -> list[Any]:
    """The messages of a start or an end, which must number themselves right."""
    assert {topic for topic, _ in out} == {CONTROL_TOPIC}
    parts = [messages.decode(kind, packed, header_of(packed)) for _, packed in out]
    assert [part.part for part in parts] == list(range(len(parts)))
    assert [part.parts for part in parts] == [0] * (len(parts) - 1) + [len(parts)]
    flags = [header_of(packed).flags & Flag.LAST for _, packed in out]
    assert flags == [0] * (len(parts) - 1) + [Flag.LAST]
    return parts


def test_start_says_that_everything_begins_at_one() -> None:
    out = make().start(0.0, 7)
    assert parts_of(out, messages.Hello) == [messages.Hello(name="north", parts=1)]
    assert header_of(out[0][1]).flags == Flag.START | Flag.LAST
    assert header_of(out[0][1]).timestamp == 7


@pytest.mark.parametrize("count", [0, 1, 100, 101, 250])
def test_start_tells_the_heads_of_the_former_life(count: int) -> None:
    heads = {f"t/{number}": number + 1 for number in range(count)}
    parts = parts_of(make(predecessor=Predecessor(b"p" * 16, heads)).start(0.0, 1), messages.Hello)
    assert len(parts) == max(1, -(-count // messages.HEADS_PER_FRAME_MAX))
    assert {part.predecessor for part in parts} == {b"p" * 16}
    assert {topic: head for part in parts for topic, head in part.heads.items()} == heads


@pytest.mark.parametrize("count", [0, 1, 100, 101, 250])
def test_bye_tells_the_final_heads(count: int) -> None:
    core = make()
    core.stream("never used")
    for number in range(count):
        publish(core, f"t/{number}", 0.0, count=3)
    out = core.bye(1)
    assert {header_of(packed).kind for _, packed in out} == {Kind.BYE}
    parts = parts_of(out, messages.Bye)
    assert {topic: head for part in parts for topic, head in part.heads.items()} == core.heads()
    assert len(core.heads()) == count


# -- answers


def ask(core: PublisherCore, query: Query) -> list[messages.Reply]:
    packed = list(core.answer(query, 1, 0.0))
    replies = [messages.decode(messages.Reply, one, header_of(one)) for one in packed]
    assert [reply.part for reply in replies] == list(range(len(replies)))
    assert [reply.parts for reply in replies] == [0] * (len(replies) - 1) + [len(replies)]
    assert all((reply.id, reply.publisher, reply.responder) == (query.id, True, "north") for reply in replies)
    assert {header_of(one).guid for one in packed} == {GUID}
    return replies


def answering() -> tuple[PublisherCore, list[bytes]]:
    core = make(batch_events_max=10)
    packed = publish(core, "a", 0.0, 50)
    publish(core, "b/c", 0.0, 3)
    return core, packed


def test_answer_with_heads() -> None:
    core, _ = answering()
    assert ask(core, Query(id=4, topics=["#"]))[0].heads == [(GUID, "a", 50), (GUID, "b/c", 3)]
    assert ask(core, Query(id=4, topics=["b/+"], guid=GUID))[0].heads == [(GUID, "b/c", 3)]
    assert ask(core, Query(id=4, topics=["z"])) == [
        messages.Reply(id=4, responder="north", publisher=True, age=0.0, parts=1)
    ]


def test_answer_with_many_heads_in_parts() -> None:
    core = make()
    for number in range(250):
        publish(core, f"t/{number}", 0.0)
    replies = ask(core, Query(id=1, topics=["t/+"]))
    assert [len(reply.heads) for reply in replies] == [100, 100, 50]


def test_answer_with_the_frames_wanted() -> None:
    core, packed = answering()
    replies = ask(core, Query(id=1, wants=[Want(GUID, "a", 12, 24)]))
    assert [one for reply in replies for one in reply.frames] == packed[1:3]
    replies = ask(core, Query(id=1, wants=[Want(GUID, "a", 41, SEQUENCE_MAX), Want(GUID, "a", 1, 1)]))
    assert [one for reply in replies for one in reply.frames] == [packed[0], packed[4]]
    assert ask(core, Query(id=1, wants=[Want(b"o" * 16, "a", 1, 9)]))[0].frames == []


def test_answer_with_frames_in_parts_of_bounded_size() -> None:
    core = make(batch_events_max=1, cache=CacheSettings(reply_bytes_max=1000))
    packed = publish(core, "a", 0.0, 50)
    replies = ask(core, Query(id=1, wants=[Want(GUID, "a")]))
    assert [one for reply in replies for one in reply.frames] == packed
    assert len(replies) > 4
    assert all(sum(map(len, reply.frames)) <= 1000 for reply in replies)


def test_answer_with_history() -> None:
    core, packed = answering()
    replies = ask(core, Query(id=1, topics=["a"], history=True, newest=15))
    assert replies[0].heads == [(GUID, "a", 50)]
    assert [one for reply in replies for one in reply.frames] == packed[3:]


@pytest.mark.parametrize(
    "query",
    [
        Query(id=1, topics=["#"], guid=b"o" * 16),
        Query(id=1, wants=[Want(GUID, "a")], confirm=True),
        Query(id=1, topics=["z"], history=True),
    ],
)
def test_who_has_nothing_to_say_says_so(query: Query) -> None:
    core, _ = answering()
    (reply,) = ask(core, query)
    assert (reply.responder, reply.publisher, reply.parts) == ("north", True, 1)
    assert [*reply.heads, *reply.frames, *reply.held] == []


def test_without_a_cache_there_are_heads_and_no_frames() -> None:
    core = make(cache=None)
    publish(core, "a", 0.0)
    assert ask(core, Query(id=1, wants=[Want(GUID, "a")]))[0].frames == []
    reply = ask(core, Query(id=1, topics=["a"], history=True))[0]
    assert (reply.heads, reply.frames) == ([(GUID, "a", 1)], [])


def test_an_idle_stream_costs_less_than_a_kilobyte() -> None:
    core = make(cache=None)
    topics = [f"tenant-{number}/port" for number in range(20_000)]
    event = events.encode_event(events.Event(table="t", key="k", action="set"), 1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for topic in topics:
            stream = core.stream(topic)
            stream.pending.append(event)
            core.next_frame(stream, 0.0, 1)
        core.poll(5.0, 1).clear()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / len(topics) <= 1000


def test_what_the_transport_did_not_permit_is_forgotten_and_its_numbers_are_skipped() -> None:
    core = make(max_idle_time_s=5.0)
    publish(core, "t", 1.0, count=2)
    publish(core, "other", 1.0)
    refused = [one for _ in range(3) for one in publish(core, "t", 2.0, count=2)]
    append(core, "t", 4)
    assert [core.refuse(one, 2.0) for one in refused] == [2 + 4, 2, 2]
    assert core.heads() == {"other": 1}
    assert core.cache is not None
    assert core.cache.frames == 2
    with pytest.raises(NotPermitted, match="'t'"):
        core.stream("t")
    core.poll(6.9, 1)
    with pytest.raises(NotPermitted):
        core.stream("t")
    core.poll(7.0, 1)
    assert core.heads() == {"t": 2, "other": 1}
    again = publish(core, "t", 7.0)
    assert [(header_of(one).first, header_of(one).after) for one in again] == [(9, 2)]
    core.refuse(again[0], 7.0)
    core.poll(12.0, 1)
    first, second = publish(core, "t", 12.0)[0], publish(core, "t", 12.0)[0]
    assert [(header_of(one).first, header_of(one).after) for one in (first, second)] == [(10, 2), (11, 10)]
    assert core.heads() == {"t": 11, "other": 1}
    assert ("t", 11) in stream_hellos(core.poll(17.0, 1))
