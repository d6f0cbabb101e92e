"""What a subscriber does at its limits: slow consumers, bounds of memory, and resyncs that keep their distance."""

from __future__ import annotations

import dataclasses
import tracemalloc

import msgspec
import pytest

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.frame import Flag, Kind
from pubsub_api.core.receiving.questions import HEADS_QUESTIONS_MAX, SubscriberQuestions
from pubsub_api.core.receiving.resync_requests import Reason
from pubsub_api.core.receiving.roster import InPublisher, Roster
from pubsub_api.core.receiving.statistics import SubscriberCounters
from pubsub_api.core.settings import CacheSettings
from pubsub_api.core.topics import CONTROL_TOPIC, FilterSet
from tests.unit.pubsub_api.core_rig import NO_REPAIR, PUBLISHER, SUBSCRIBER, Rig, guid_of

NO_ROOM = dataclasses.replace(SUBSCRIBER, pending_bytes_max=1)
"""What finds no room in the consumer's queue finds none in the core either."""

# -- slow consumers, bounds


def test_a_slow_consumer_loses_data_and_is_told_when_it_has_room() -> None:
    rig = Rig(settings=NO_ROOM)
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a", 1))
    rig.fill_queue()
    rig.deliver(*rig.publish(publisher, "a", 4))
    rig.run(3)
    assert rig.reasons == ["initial"]
    assert rig.subscriber.counters.discarded == 3
    rig.make_room(10_000, is_half_empty=False)
    rig.run(3)
    assert rig.reasons == ["initial"], "it is not told, and nothing passes, before it has caught up"
    rig.make_room(10_000)
    rig.run(0.01)
    assert rig.reasons == ["initial", "slow consumer"]
    assert [(lost.first, lost.last) for lost in rig.resyncs[-1].lost] == [(3, 5)]
    rig.deliver(*rig.publish(publisher, "a"))
    assert rig.numbers("a") == [1, 2, 6]


def test_a_full_queue_blocks_from_the_frame_that_fills_it() -> None:
    rig = Rig(settings=NO_ROOM)
    publisher = rig.publisher()
    rig.join()
    made = rig.publish(publisher, "a", 4)
    rig.subscriber.room.bytes_left = len(made[0]) + 1
    rig.deliver(*made)
    assert rig.numbers("a") == [1, 2]
    assert rig.subscriber.room.is_full
    assert rig.subscriber.counters.discarded == 2


def test_what_waits_behind_holes_is_bounded() -> None:
    rig = Rig(settings=dataclasses.replace(NO_REPAIR, pending_bytes_max=500))
    publisher = rig.publisher(is_asked=False)
    rig.join()
    rig.publish(publisher, "a")
    for frame in rig.publish(publisher, "a", 20):
        rig.deliver(frame)
        assert rig.subscriber.parked_bytes <= 500 + len(frame)
    rig.run(1)
    assert rig.reasons == ["initial", "pending full"]
    rig.deliver(*rig.publish(publisher, "a"))
    assert rig.numbers("a")[-1] == 22


def test_what_finds_no_room_behind_a_hole_is_asked_for_in_its_turn() -> None:
    rig = Rig(settings=dataclasses.replace(SUBSCRIBER, pending_bytes_max=500))
    publisher = rig.publisher()
    rig.join()
    for frame in rig.publish(publisher, "a", 40)[1:]:
        rig.deliver(frame)
        assert rig.subscriber.parked_bytes <= 500 + len(frame)
    rig.run(1)
    assert rig.numbers("a") == list(range(1, 41))
    assert rig.reasons == ["initial"]
    assert rig.subscriber.counters.repair.unparked > 30


def test_an_answer_that_found_no_room_is_no_proof_of_absence() -> None:
    """One cache has what comes first, another has more than there is room for, and that one answers first."""
    rig = Rig(settings=dataclasses.replace(SUBSCRIBER, pending_bytes_max=500))
    publisher = rig.publisher(is_asked=False)
    rig.join()
    made = rig.publish(publisher, "a", 30)
    rig.cache(*made[1:])
    rig.cache(made[0])
    rig.deliver(made[29])
    rig.run(1)
    assert rig.numbers("a") == list(range(1, 31))
    assert rig.reasons == ["initial"]


def test_streams_are_bounded_and_what_returns_after_eviction_is_resynced_first() -> None:
    rig = Rig(settings=dataclasses.replace(SUBSCRIBER, streams_max=3))
    publisher = rig.publisher()
    rig.join()
    first = rig.publish(publisher, "t/0", 2)
    rig.deliver(*first)
    for number in range(1, 5):
        rig.deliver(*rig.publish(publisher, f"t/{number}"))
    assert rig.subscriber.counters.peers.streams == 3
    assert rig.subscriber.counters.peers.streams_evicted == 2
    rig.run(0)
    rig.forget_told()
    rig.deliver(*first, *rig.publish(publisher, "t/0"))
    rig.run(1)
    assert set(rig.reasons) == {"unknown stream"}
    assert rig.told.index(rig.resyncs[0]) == 0
    assert rig.numbers("t/0")[-1] == 3


def test_publishers_are_bounded_and_an_evicted_one_is_resynced() -> None:
    rig = Rig(settings=dataclasses.replace(SUBSCRIBER, publishers_max=3))
    rig.join()
    for number in range(5):
        rig.publisher(f"p{number}")
    rig.run(0.1)
    assert len(rig.subscriber.publishers) == 3
    assert rig.reasons == ["initial", "silence", "silence"]


def test_an_undecodable_frame_is_a_resync_of_its_topic() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    frame = frames.pack(Kind.DATA, publisher.guid, "a", b"\xdd\x00\x00\x00\x01\xc1", first=1, after=0, count=1)
    rig.subscriber.on_frames([frame], rig.now)
    out, _ = rig.subscriber.take()
    assert len(out) == 1
    rig.subscriber.undecodable(frames.unpack(frame, bytes_max=1000), [(1, 1)], rig.now)
    rig.run(0.1)
    assert rig.reasons == ["initial", "undecodable"]
    assert rig.resyncs[-1].topics == ("a",)
    assert rig.subscriber.counters.bad_frames == {"UndecodableBody": 1}


def test_a_resync_the_user_could_not_act_on_is_told_again() -> None:
    rig = Rig()
    rig.join()
    rig.subscriber.resync_failed(rig.resyncs[0], rig.now)
    rig.run(0.1)
    assert rig.reasons == ["initial", "initial"]


def test_resyncs_are_joined_jittered_and_apart() -> None:
    settings = dataclasses.replace(NO_REPAIR, resync_jitter_s=1.0, resync_interval_min_s=5.0)
    rig = Rig(settings=settings, jitter=lambda: 0.5)
    publisher = rig.publisher()
    rig.join()
    rig.forget_told()
    rig.run(5)
    for topic in ("a", "b", "c"):
        rig.publish(publisher, topic)
        rig.deliver(*rig.publish(publisher, topic))
    rig.run(0.69)
    assert rig.resyncs == []
    rig.run(0.02)
    assert rig.reasons == ["loss"]
    assert rig.resyncs[0].topics == ("a", "b", "c")
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(4.9)
    assert rig.reasons == ["loss"]
    rig.run(0.2)
    assert rig.reasons == ["loss", "loss"]
    assert [resync.generation for resync in rig.resyncs] == [2, 3]


def test_reasons_are_reported_most_telling_first() -> None:
    rig = Rig(settings=dataclasses.replace(NO_REPAIR, pending_bytes_max=200), jitter=lambda: 0.0)
    publisher = rig.publisher()
    rig.join()
    rig.publish(publisher, "b")
    rig.deliver(*rig.publish(publisher, "b"))
    rig.fill_queue()
    rig.deliver(*rig.publish(publisher, "a", 4))
    rig.run(1)
    rig.make_room(10_000)
    rig.run(0.1)
    assert rig.resyncs[-1].reason is Reason.LOSS
    assert rig.resyncs[-1].reasons == {Reason.LOSS, Reason.SLOW_CONSUMER}


def test_an_idle_stream_takes_less_than_a_kilobyte() -> None:
    streams = 20_000
    rig = Rig()
    publisher = rig.publisher(settings=dataclasses.replace(PUBLISHER, cache=None))
    rig.join()
    made = [rig.publish(publisher, f"tenant-{number}/port")[0] for number in range(streams)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for frame in made:
            rig.subscriber.on_frames([frame], rig.now)
            rig.subscriber.take()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert rig.subscriber.counters.peers.streams == streams
    assert used / streams < 1000


def test_the_oldest_of_too_many_questions_is_given_up_and_counted_but_not_the_join() -> None:
    counters = SubscriberCounters()
    settings = dataclasses.replace(SUBSCRIBER, questions_max=10)
    questions = SubscriberQuestions(settings, counters, FilterSet(), guid=guid_of(1), jitter=lambda: 0.0)
    questions.join(Reason.INITIAL, ["#"], 0.0)
    for number in range(1, 13):
        questions.ranges([messages.Want(guid_of(2), "a", number, number)], 0.0)
    join, *others = questions.take()
    assert counters.repair.questions_evicted == 3
    assert [questions.purpose(query.id) is not None for query in (join, *others)] == [True] + [False] * 3 + [True] * 9


def forged_hello(number: int, name: str, part: int = 0) -> bytes:
    hello = msgspec.msgpack.encode({"name": name, "part": part})
    return frames.pack(Kind.HELLO, guid_of(10**6 + number), CONTROL_TOPIC, hello, timestamp=1, flags=Flag.LAST)


def test_a_crowd_of_strangers_is_asked_in_one_question_and_costs_the_same_for_each() -> None:
    rig = Rig()
    rig.publisher("real")
    rig.join()
    asked = len(rig.queries)
    names = Names()
    rig.subscriber._roster._by_name = names
    rig.deliver(*(forged_hello(number, f"stranger-{number}") for number in range(3000)))
    rig.run(5.0)
    assert len(rig.subscriber.publishers) == 3001
    assert len(rig.queries) - asked == HEADS_QUESTIONS_MAX + 1, "the rest together, in a question to all"
    assert rig.queries[-1].guid == b""
    assert names.most <= 3, "a name is looked for among those that bear it"
    assert rig.reasons == ["initial"]


class Names(dict[str, dict[bytes, InPublisher]]):
    """The publishers by name, that remembers the largest crowd anybody had to look through."""

    most = 0

    def get(self, name: str, default: dict[bytes, InPublisher] = {}) -> dict[bytes, InPublisher]:  # type: ignore[override]  # noqa: B006
        found = super().get(name, default)
        self.most = max(self.most, len(found))
        return found


def test_a_crowd_under_one_name_is_one_resync_and_nobody_is_searched_for() -> None:
    rig = Rig(settings=dataclasses.replace(SUBSCRIBER, resync_interval_min_s=60.0))
    rig.publisher("real")
    rig.join()
    names = rig.subscriber._roster._by_name = Names(rig.subscriber._roster._by_name)
    rig.deliver(*(forged_hello(number, "real") for number in range(3000)))
    rig.run(61.0)
    assert rig.reasons == ["initial", "publisher restarted"]
    assert names.most <= 3


def test_who_only_says_hello_leaves_before_who_publishes() -> None:
    rig = Rig(settings=dataclasses.replace(SUBSCRIBER, publishers_max=10))
    publisher = rig.publisher("real")
    rig.join()
    rig.deliver(*rig.publish(publisher, "a"))
    rig.deliver(*(forged_hello(number, f"stranger-{number}") for number in range(100)))
    assert len(rig.subscriber.publishers) == 10
    assert publisher.guid in rig.subscriber.publishers
    rig.deliver(*rig.publish(publisher, "a"))
    assert rig.numbers("a") == [1, 2]


def test_what_is_remembered_of_a_message_in_parts_is_bounded() -> None:
    parts = messages.Parts()
    for part in range(1, 100_000):
        assert not parts.add(part, 0)
    assert parts.early is not None
    assert len(parts.early) == messages.EARLY_PARTS_MAX
    in_turn = messages.Parts()
    assert [in_turn.add(part, parts) for part, parts in ((1, 0), (0, 0), (3, 4), (2, 0))] == [False, False, False, True]
    rig = Rig()
    rig.deliver(forged_hello(1, "far", part=messages.PARTS_MAX))
    assert rig.subscriber.counters.bad_frames == {"UndecodableBody": 1}


def test_a_question_with_too_many_filters_is_refused() -> None:
    query = messages.Query(id=1, topics=["a"] * messages.FILTERS_PER_QUERY_MAX)
    query.topics.append("a")
    frame = frames.pack(Kind.QUERY, guid_of(1), CONTROL_TOPIC, messages.encode(query))
    with pytest.raises(UndecodableBody, match="20001 filters in one query"):
        messages.decode(messages.Query, frame, frames.unpack(frame, bytes_max=len(frame)))


@pytest.mark.parametrize("filters", [[f"t/{n}" for n in range(20_001)], [f"{n:0500}" for n in range(2000)]])
def test_who_has_more_filters_than_fit_a_question_asks_for_all(filters: list[str]) -> None:
    rig = Rig(*filters)
    publisher = rig.publisher()
    rig.publish(publisher, filters[0])
    rig.join()
    assert rig.queries[0].topics == ["#"]
    rig.deliver(*rig.publish(publisher, filters[0]))
    rig.deliver(*rig.publish(publisher, "unwanted"))
    assert rig.numbers(filters[0]) == [2], "the answer said that it begins there"
    assert rig.reasons == ["initial"]


def test_what_a_shallow_cache_had_counts_as_repaired() -> None:
    rig = Rig()
    publisher = rig.publisher(settings=dataclasses.replace(PUBLISHER, cache=CacheSettings(events_max=4)))
    rig.join()
    rig.forget_told()
    rig.publish(publisher, "a", 9)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(30.0)
    assert rig.reasons == ["loss"]
    assert rig.numbers("a") == [7, 8, 9, 10]
    counters = rig.subscriber.counters
    assert (counters.lost, counters.repair.repaired) == (6, 3)


def test_parts_of_answers_that_come_at_one_moment_set_one_deadline() -> None:
    counters = SubscriberCounters()
    roster = Roster(SUBSCRIBER, counters)
    stream = roster.add_stream(roster.add_publisher(guid_of(1), 0.0), "a", 1, is_anchored=True)
    for _ in range(3):
        roster.set_timer(stream, 5.0)
    assert list(roster.due(5.0)) == [stream]
    assert list(roster.due(5.0)) == []


def test_nobody_is_woken_for_holes_that_were_closed() -> None:
    """Each of them had a moment of its own at which it would have been asked for."""
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    late = []
    for number in range(150):
        lost, *rest = rig.publish(publisher, f"a/{number}", 2)
        rig.deliver(*rest)
        late.append(lost)
        rig.now += 0.001
    assert rig.subscriber.next_deadline() < rig.now + SUBSCRIBER.message_delay_window_s
    rig.deliver(*late)
    assert len(rig.received) == 300
    assert rig.subscriber.next_deadline() > rig.now + SUBSCRIBER.message_delay_window_s


def test_deadlines_that_are_put_off_again_and_again_take_no_room() -> None:
    """Every part of a long answer does that to all streams that wait for it."""
    roster = Roster(SUBSCRIBER, SubscriberCounters())
    publisher = roster.add_publisher(guid_of(1), 0.0)
    streams = [roster.add_stream(publisher, f"a/{number}", 1, is_anchored=True) for number in range(10)]
    tracemalloc.start()
    try:
        for moment in range(5000):
            for stream in streams:
                roster.set_timer(stream, 5.0 + moment)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 100_000
    assert list(roster.due(5003.0)) == []
    assert list(roster.due(5004.0)) == streams
