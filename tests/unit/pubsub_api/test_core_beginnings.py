"""Where streams begin: questions that are asked again, publishers younger than the subscription, contradictions."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.events import pack_body
from pubsub_api.core.frame import SEQUENCE_MAX, Kind
from pubsub_api.core.receiving.instream import HEAD_JUMP_MAX
from pubsub_api.core.sending.publisher import PublisherCore
from pubsub_api.core.topics import CONTROL_TOPIC
from tests.unit.pubsub_api.core_rig import PUBLISHER, SUBSCRIBER, Rig, event_bytes, guid_of, header_of

BIND = dataclasses.replace(SUBSCRIBER, verify_after_reconnect=True)
READY_S = SUBSCRIBER.ready_timeout_s


# -- questions that reach nobody


def test_a_question_that_reached_nobody_was_not_asked_and_is_asked_again() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    answering, rig.responders = rig.responders, []
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(SUBSCRIBER.message_delay_window_s + 0.01)
    assert rig.counters["queries"] == 1
    assert rig.reasons == ["initial"]
    rig.responders = answering
    rig.run(SUBSCRIBER.repair_timeout_s)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2]


def test_an_answer_of_others_does_not_stand_for_that_of_the_publisher() -> None:
    """A cache was reached and has nothing; the publisher, which holds the range, was just reconnecting."""
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    answering = list(rig.responders)
    rig.responders.clear()
    rig.cache()
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(SUBSCRIBER.message_delay_window_s + 0.01)
    rig.responders += answering
    rig.run(SUBSCRIBER.repair_timeout_s)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2]


def test_a_loss_without_anybody_to_ask_is_told_after_all_attempts() -> None:
    rig = Rig()
    publisher = rig.publisher(is_asked=False)
    rig.join()
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(8)
    assert rig.counters["queries"] == SUBSCRIBER.repair_attempts_max
    assert rig.reasons == ["initial", "loss"]


# -- joins


class Losing(Rig):
    """Loses the first ``lost`` answers."""

    lost = 0

    def lose(self, count: int) -> None:
        self.lost = count
        answering = self.responders[0]

        def answer(query: messages.Query) -> list[bytes]:
            self.lost -= 1
            return [] if self.lost >= 0 else list(answering(query))

        self.responders[0] = answer


@pytest.mark.parametrize("lost", [1, 3, 6])
def test_the_question_of_a_join_is_asked_again_until_it_is_answered(lost: int) -> None:
    rig = Losing()
    publisher = rig.publisher(is_heard=False)
    rig.publish(publisher, "a", 5)
    rig.lose(lost)
    rig.connect()
    rig.run(2 * READY_S)
    assert len(rig.queries) == lost + 1
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(20)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [6]


def test_a_join_of_which_every_answer_came_is_asked_once() -> None:
    rig = Rig()
    rig.publisher()
    rig.publisher("other")
    rig.connect()
    rig.run(3 * READY_S)
    assert len(rig.queries) == 1


def test_a_join_that_nobody_answers_ends() -> None:
    rig = Rig()
    rig.publisher()
    rig.responders[:] = [lambda _: []]
    rig.connect()
    rig.run(READY_S)
    assert not rig.resyncs
    rig.run(READY_S + 0.01)
    assert rig.reasons == ["initial"]


def test_a_join_ends_at_once_where_nobody_is_known_and_nobody_was_reached() -> None:
    rig = Rig()
    rig.connect()
    assert rig.reasons == ["initial"]


def test_parts_of_two_answers_are_not_mixed() -> None:
    """Each lacks another part; what is known must not be taken for whole."""
    rig = Rig()
    publisher = rig.publisher(is_heard=False, is_asked=False)
    for number in range(150):
        rig.publish(publisher, f"t/{number}")
    asked = 0

    def answer(query: messages.Query) -> list[bytes]:
        nonlocal asked
        asked += 1
        parts = list(publisher.answer(query, rig.stamp, rig.now))
        assert len(parts) == 2
        return parts if asked > 2 else [parts[asked - 1]]

    rig.responders.append(answer)
    rig.connect()
    rig.run(2 * READY_S)
    assert asked == 3
    assert rig.reasons == ["initial"]


def test_a_reconnect_waits_for_a_publisher_that_was_not_reached() -> None:
    rig = Rig(settings=BIND)
    publisher = rig.publisher()
    rig.publisher("other")
    rig.join()
    rig.disconnect()
    rig.publish(publisher, "a", 3)
    away = rig.responders.pop(0)
    rig.connect()
    rig.run(READY_S / 4)
    rig.responders.append(away)
    rig.run(5)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2, 3]
    assert rig.counters["verified_reconnects"] == 1


# -- publishers younger than the subscription


def test_a_younger_publisher_that_is_met_in_mid_flow_is_repaired_from_its_first_event() -> None:
    rig = Rig()
    rig.join()
    rig.run(1)
    publisher = rig.publisher("late", is_heard=False)
    rig.publish(publisher, "a", 7)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(3)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == list(range(1, 9))


def test_an_older_publisher_that_is_met_in_mid_flow_is_a_resync() -> None:
    rig = Rig()
    rig.join()
    rig.run(1)
    publisher = rig.publisher("late", is_heard=False, age_s=10)
    rig.publish(publisher, "a", 7)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(3)
    assert rig.reasons == ["initial", "unknown stream"]
    assert rig.numbers("a") == [8]


def test_who_is_older_than_the_newest_filter_is_not_repaired_under_it() -> None:
    rig = Rig("a")
    rig.join()
    rig.run(1)
    publisher = rig.publisher("late", is_heard=False, is_asked=False)
    rig.publish(publisher, "b", 3)
    rig.run(1, hellos=False)
    rig.subscriber.filter_added("b")
    rig.subscriber.filter_up("b", rig.now)
    rig.settle()
    rig.run(2, hellos=False)
    rig.responders.append(lambda query: publisher.answer(query, rig.stamp, rig.now))
    rig.deliver(*rig.publish(publisher, "b"))
    rig.run(3)
    assert rig.reasons == ["initial", "subscribed", "unknown stream"]
    assert rig.numbers("b") == [4]


def late_publisher(rig: Rig) -> PublisherCore:
    """One that starts after the join and is not reached; a cache has its first seven events."""
    cache = rig.cache()
    rig.join()
    rig.run(1)
    publisher = rig.publisher("late", is_heard=False, is_asked=False)
    for frame in rig.publish(publisher, "a", 7):
        cache.store(header_of(frame), frame, rig.now)
    return publisher


def test_a_cache_that_answers_first_does_not_speak_for_a_young_publisher() -> None:
    """A cache cannot tell how old the publisher is, and its answer must not turn into a resync."""
    rig = Rig()
    publisher = late_publisher(rig)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(READY_S / 8)
    rig.responders.append(lambda query: publisher.answer(query, rig.stamp, rig.now))
    rig.run(3)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == list(range(1, 9))


def test_a_stream_that_only_a_cache_tells_of_waits_for_its_publisher() -> None:
    """The publisher started after the join and is not reached yet; a periodic question reaches a cache that has it."""
    rig = Rig(settings=dataclasses.replace(SUBSCRIBER, query_interval_s=1.5))
    publisher = late_publisher(rig)
    rig.run(0.6)
    rig.responders.append(lambda query: publisher.answer(query, rig.stamp, rig.now))
    rig.run(3)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == list(range(1, 8))


def test_a_cache_alone_does_not_keep_a_stream_from_its_resync() -> None:
    rig = Rig()
    publisher = late_publisher(rig)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(READY_S + 1)
    assert rig.reasons == ["initial", "unknown stream"]


def test_the_question_of_a_stream_met_in_mid_flow_is_asked_again() -> None:
    rig = Losing()
    rig.join()
    rig.run(1)
    publisher = rig.publisher("late", is_heard=False)
    rig.lose(2)
    rig.publish(publisher, "a", 2)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(3)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2, 3]


def test_what_a_new_life_sent_before_the_link_was_back_is_delivered() -> None:
    """Its former life was killed, which is a resync; that must not cost what the cache of the new life holds."""
    rig = Rig(settings=BIND)
    former = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(former, "a", 3))
    rig.publishers.clear()
    rig.responders.clear()
    rig.disconnect()
    rig.run(1)
    rig.publish(rig.publisher("host", is_heard=False), "a", 100)
    rig.connect()
    rig.run(5)
    assert rig.numbers("a") == [1, 2, 3, *range(1, 101)]
    assert set(rig.reasons) <= {"initial", "reconnected", "publisher restarted"}
    assert len(rig.reasons) > 1


def test_what_a_resync_has_covered_is_no_loss_that_needs_another() -> None:
    """The new life keeps no cache; the resync of the reconnect was told after its events had been published."""
    rig = Rig(settings=BIND)
    former = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(former, "a", 3))
    rig.publishers.clear()
    rig.responders.clear()
    rig.disconnect()
    rig.run(1)
    settings = dataclasses.replace(former.settings, cache=None)
    successor = rig.publisher("host", is_heard=False, settings=settings)
    rig.publish(successor, "a", 5)
    rig.knows_responders = False
    rig.connect()
    rig.run(30)
    rig.deliver(*rig.publish(successor, "a", 1))
    assert rig.numbers("a") == [1, 2, 3, 6]
    assert "loss" not in rig.reasons


@pytest.mark.parametrize("age", [-0.5, math.inf, math.nan, 1e12])
def test_an_impossible_age_is_refused(age: float) -> None:
    reply = frames.pack(Kind.REPLY, guid_of(1), CONTROL_TOPIC, msgspec.msgpack.encode({"id": 1, "age": age}))
    with pytest.raises(UndecodableBody, match="age"):
        messages.decode(messages.Reply, reply, header_of(reply))


# -- contradicting heads


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def publisher(rig: Rig) -> PublisherCore:
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a", 3))
    return publisher


def hello(publisher: PublisherCore, head: int, stamp: int, topic: str = "a") -> bytes:
    body = messages.encode(messages.Hello())
    return frames.pack(Kind.HELLO, publisher.guid, topic, body, first=head + 1, after=head, timestamp=stamp)


def data_of(publisher: PublisherCore, number: int, stamp: int) -> bytes:
    body = pack_body([event_bytes(number, stamp)])
    return frames.pack(Kind.DATA, publisher.guid, "a", body, first=number, after=number - 1, count=1, timestamp=stamp)


def test_a_head_beyond_belief_is_refused_and_counted(rig: Rig, publisher: PublisherCore) -> None:
    rig.deliver(hello(publisher, SEQUENCE_MAX - 1, rig.stamp))
    rig.deliver(data_of(publisher, HEAD_JUMP_MAX + 100, rig.stamp))
    assert rig.counters["bad_frames"] == {"ImplausibleHead": 2}
    rig.deliver(*rig.publish(publisher, "a", 100))
    rig.run(30)
    assert rig.numbers("a") == list(range(1, 104))
    assert rig.reasons == ["initial"]


@pytest.mark.parametrize("kind", ["hello", "data"])
@pytest.mark.parametrize("after_s", [0.0, 30.0])
def test_a_forged_head_is_contradicted_by_what_is_sent_after_it(
    rig: Rig, publisher: PublisherCore, kind: str, after_s: float
) -> None:
    """At once, while the hole it made is asked for; or later, when that was given up and everything seems repeated."""
    forged = hello(publisher, 10**9, rig.stamp) if kind == "hello" else data_of(publisher, 10**9, rig.stamp)
    rig.deliver(forged)
    rig.run(after_s, hellos=False)
    rig.now += 0.01
    rig.deliver(*rig.publish(publisher, "a", 100))
    rig.run(2)
    rig.deliver(*rig.publish(publisher, "a", 10))
    rig.run(30)
    real = [number for number in rig.numbers("a") if number < 10**9]
    assert real == list(range(1, 114))
    assert rig.counters["contradictions"] == 1
    assert "contradiction" in rig.reasons
    assert rig.told.index(next(one for one in rig.resyncs if one.reason.value == "contradiction")) < rig.told.index(
        ("a", 4)
    )


def test_a_lower_head_that_is_newer_is_a_contradiction_also_when_nothing_is_sent(
    rig: Rig, publisher: PublisherCore
) -> None:
    rig.deliver(hello(publisher, 10**6, rig.stamp))
    rig.run(60)
    assert rig.counters["contradictions"] == 1
    rig.forget_told()
    rig.deliver(*rig.publish(publisher, "a"))
    assert rig.numbers("a") == [4]


def test_a_forged_head_of_the_future_is_contradicted_when_its_time_has_come(rig: Rig, publisher: PublisherCore) -> None:
    rig.deliver(hello(publisher, 10**6, 2**62))
    rig.run(BIND.silence_timeout_s + 10)
    for _ in range(30):
        rig.deliver(*rig.publish(publisher, "a"))
        rig.run(1)
    assert rig.counters["contradictions"] == 1
    assert rig.numbers("a")[-20:] == list(range(14, 34))


def test_late_and_repeated_frames_contradict_nothing(rig: Rig, publisher: PublisherCore) -> None:
    made = []
    for _ in range(5):
        rig.now += 0.01
        made.append(rig.publish(publisher, "a")[0])
        made.append(hello(publisher, publisher.heads()["a"], rig.stamp))
    rig.deliver(*made)
    for frame in (*made, *reversed(made)):
        rig.deliver(frame)
    rig.run(30)
    assert rig.counters["contradictions"] == 0
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == list(range(1, 9))


def test_what_comes_late_after_it_was_given_up_contradicts_nothing(rig: Rig, publisher: PublisherCore) -> None:
    rig.responders.clear()
    rig.now += 0.01
    late = rig.publish(publisher, "a", 3)
    rig.now += 0.01
    rig.deliver(hello(publisher, 6, rig.stamp))
    rig.run(60)
    assert rig.reasons == ["initial", "loss", "loss"], "nobody answered, and it was said again"
    rig.deliver(*late)
    rig.run(5)
    assert rig.counters["contradictions"] == 0
    assert rig.reasons == ["initial", "loss", "loss"]


def test_no_frame_of_a_publisher_has_a_lower_timestamp_than_the_one_before() -> None:
    """Senders take their timestamps before they get the lock, and overtake each other."""
    core = PublisherCore(PUBLISHER, guid=guid_of(1), name="n", now=0.0)
    stream = core.stream("a")
    made = [core.lone_frame(stream, event_bytes(number, 1), stamp) for number, stamp in ((1, 60), (2, 50), (3, 70))]
    made += [frame for _, frame in core.bye(65)]
    assert [header_of(frame).timestamp for frame in made] == [60, 60, 70, 70]
