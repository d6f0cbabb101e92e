"""What somebody else says in a publisher's name, or what was damaged on the way: it silences no stream for ever."""

from __future__ import annotations

import pytest

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.events import pack_body
from pubsub_api.core.frame import Flag, Kind
from pubsub_api.core.messages import Query, Reply, Want
from pubsub_api.core.sending.publisher import Predecessor, PublisherCore
from pubsub_api.core.topics import CONTROL_TOPIC
from tests.unit.pubsub_api.core_rig import PUBLISHER, SUBSCRIBER, Rig, event_bytes, header_of

FUTURE = 2**62
FAR = 10**6


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def publisher(rig: Rig) -> PublisherCore:
    """Three of its events were delivered."""
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a", 3))
    return publisher


def hello(publisher: PublisherCore, head: int, stamp: int) -> bytes:
    body = messages.encode(messages.Hello())
    return frames.pack(Kind.HELLO, publisher.guid, "a", body, first=head + 1, after=head, timestamp=stamp)


def data(publisher: PublisherCore, number: int, after: int, stamp: int) -> bytes:
    body = pack_body([event_bytes(number, stamp)])
    return frames.pack(Kind.DATA, publisher.guid, "a", body, first=number, after=after, count=1, timestamp=stamp)


def real(rig: Rig) -> list[int]:
    return [number for number in rig.numbers("a") if number < FAR]


# -- heads


@pytest.mark.parametrize("ahead_s", [0, 10**9])
@pytest.mark.parametrize("is_answered", [True, False])
def test_events_that_are_lost_under_the_numbers_of_a_forged_head_are_missed(
    rig: Rig, publisher: PublisherCore, ahead_s: int, is_answered: bool
) -> None:
    """A resync was told for these numbers before they existed: it did not cover them."""
    answering = rig.responders
    rig.responders = answering if is_answered else []
    rig.deliver(hello(publisher, 5, rig.stamp + ahead_s * 10**9))
    rig.run(10, hellos=False)
    assert rig.reasons == ["initial", "contradiction" if is_answered else "loss"]
    rig.responders = answering
    rig.publish(publisher, "a", 2)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(10)
    assert rig.numbers("a") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("ahead_s", [0, 10**9])
def test_what_came_in_order_while_a_forged_head_was_asked_for_is_not_delivered_again(
    rig: Rig, publisher: PublisherCore, ahead_s: int
) -> None:
    """The answer was made before: it knows less, and contradicts nothing but the forged head."""
    (answer,) = rig.responders
    late: list[bytes] = []

    def answer_late(query: Query) -> list[bytes]:
        late.extend(answer(query))
        return []

    rig.responders = [answer_late]
    rig.deliver(hello(publisher, 4, rig.stamp + ahead_s * 10**9))
    rig.run(SUBSCRIBER.message_delay_window_s + 0.01, hellos=False)
    assert late
    rig.responders = [answer]
    rig.deliver(*rig.publish(publisher, "a", 4))
    rig.deliver(*late)
    rig.run(60)
    assert rig.numbers("a") == list(range(1, 8))


def test_who_says_what_nobody_answers_for_is_believed_the_second_time(rig: Rig, publisher: PublisherCore) -> None:
    """Otherwise each of its hellos would be another resync."""
    rig.responders.clear()
    late = rig.publish(publisher, "a", 3)
    rig.run(300)
    assert rig.reasons == ["initial", "loss", "loss"]
    rig.deliver(*late)
    rig.run(5)
    assert rig.numbers("a") == [1, 2, 3]
    assert rig.counters["contradictions"] == 0


@pytest.mark.parametrize("ahead_s", [0, 10**9])
@pytest.mark.parametrize("head", [5, FAR])
def test_a_head_that_is_forged_while_a_subscriber_joins_is_forgotten(rig: Rig, head: int, ahead_s: int) -> None:
    publisher = rig.publisher(age_s=1000.0, is_heard=False)
    rig.publish(publisher, "a", 3)
    answering, rig.responders = rig.responders, []
    rig.knows_responders = False
    rig.connect()
    rig.deliver(hello(publisher, head, rig.stamp + ahead_s * 10**9))
    rig.run(SUBSCRIBER.ready_timeout_s, hellos=False)
    assert rig.reasons == ["initial"]
    rig.responders = answering
    rig.publish(publisher, "a", 2)
    rig.deliver(*rig.publish(publisher, "a", 5))
    rig.run(20)
    assert rig.reasons == ["initial", "unknown stream"], "nobody told where it stood when the first one was told"
    assert rig.numbers("a") == [6, 7, 8, 9, 10]


def test_a_resync_that_is_told_meanwhile_covers_nothing_of_what_is_sent_after_it() -> None:
    """A stream is met in mid-flow; while its publisher is asked where it began, there is a resync for something else,
    and then events are lost."""
    rig = Rig()
    rig.join()
    publisher = rig.publisher(age_s=1000.0, is_heard=False)
    (answer,) = rig.responders
    rig.publish(publisher, "a", 3)
    rig.responders = []
    rig.deliver(*rig.publish(publisher, "a"))
    rig.subscriber.resync_failed(rig.resyncs[0], rig.now)
    rig.run(0.01)
    assert rig.reasons == ["initial", "initial"]
    rig.responders = [answer]
    rig.publish(publisher, "a", 3)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(20)
    assert rig.numbers("a") == [4, 5, 6, 7, 8]


# -- events


@pytest.mark.parametrize("ahead_s", [0, 10**9])
@pytest.mark.parametrize("is_answered", [True, False])
def test_an_event_with_a_wrong_number_costs_a_resync_and_the_stream_goes_on(
    rig: Rig, publisher: PublisherCore, ahead_s: int, is_answered: bool
) -> None:
    """It says that the numbers between were skipped on purpose, so that nothing is missing before it."""
    rig.deliver(data(publisher, FAR, 3, rig.stamp + ahead_s * 10**9))
    assert rig.numbers("a")[-1] == FAR
    if not is_answered:
        rig.responders.clear()
    for _ in range(60):
        rig.run(1)
        rig.deliver(*rig.publish(publisher, "a"))
    rig.run(1)
    assert rig.counters["contradictions"] == 1
    assert "contradiction" in rig.reasons
    assert real(rig)[-30:] == list(range(34, 64))
    assert sorted(set(real(rig))) == real(rig), "in order, each once"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_event_under_a_number_that_was_delivered_costs_a_resync_and_repeats_nothing(
    rig: Rig, publisher: PublisherCore, number: int
) -> None:
    """The publisher tells that it is as far as was delivered: so the stream does not start again from the other one."""
    rig.run(1)
    rig.deliver(data(publisher, number, number - 1, rig.stamp))
    rig.deliver(*rig.publish(publisher, "a", 2))
    rig.run(20)
    assert rig.reasons == ["initial", "contradiction"]
    assert rig.numbers("a") == [1, 2, 3, 4, 5]


def test_who_forges_a_lower_head_costs_a_resync_and_repeats_nothing(rig: Rig, publisher: PublisherCore) -> None:
    rig.deliver(hello(publisher, 1, rig.stamp + FUTURE))
    rig.deliver(*rig.publish(publisher, "a", 2))
    rig.run(20)
    assert rig.reasons == ["initial", "contradiction"]
    assert rig.numbers("a") == [1, 2, 3, 4, 5]


def test_a_goodbye_that_tells_less_than_was_delivered_is_a_contradiction(rig: Rig, publisher: PublisherCore) -> None:
    """It is the last word, whatever the timestamps say."""
    rig.deliver(data(publisher, FAR, 3, rig.stamp + 10**9))
    rig.publish(publisher, "a", 2)
    rig.deliver(*(frame for _, frame in publisher.bye(rig.stamp)))
    rig.run(5, hellos=False)
    assert "contradiction" in rig.reasons


def test_a_jump_that_no_publisher_makes_is_refused(rig: Rig, publisher: PublisherCore) -> None:
    rig.deliver(data(publisher, 2**60, 3, rig.stamp))
    rig.deliver(*rig.publish(publisher, "a"))
    assert rig.numbers("a") == [1, 2, 3, 4]
    assert rig.counters["bad_frames"] == {"ImplausibleHead": 1}


@pytest.mark.parametrize("is_start_heard", [True, False])
def test_who_sends_everything_again_under_its_guid_contradicts_nothing_that_was_delivered(
    rig: Rig, publisher: PublisherCore, is_start_heard: bool
) -> None:
    """A program that died, and was given its GUID again.  What it tells of itself is how old the new life is."""
    rig.run(1)
    rig.publishers.clear()
    again = PublisherCore(PUBLISHER, guid=publisher.guid, name=publisher.name, now=rig.now)
    rig.responders = [lambda query: again.answer(query, rig.stamp, rig.now)]
    start = [frame for _, frame in again.start(rig.now, rig.stamp)]
    rig.deliver(*start if is_start_heard else ())
    for _ in range(5):
        rig.run(0.01)
        rig.deliver(*rig.publish(again, "a"))
    rig.run(5)
    assert rig.numbers("a") == [1, 2, 3, 4, 5]
    assert rig.reasons == ["initial"] + (["contradiction"] if not is_start_heard else [])


# -- the end of a life


def die(rig: Rig, publisher: PublisherCore, told_by: str) -> None:
    """The publisher is gone, and its final heads are told."""
    rig.publishers.clear()
    rig.responders.clear()
    if told_by == "goodbye":
        rig.deliver(*(frame for _, frame in publisher.bye(rig.stamp)))
        return
    former = Predecessor(publisher.guid, publisher.heads())
    successor = rig.publisher(predecessor=former, is_heard=told_by == "first hello")
    if told_by == "answer":
        rig.now += PUBLISHER.max_idle_time_s
        rig.deliver(*(frame for _, frame in successor.poll(rig.now, rig.stamp)))


ENDS = pytest.mark.parametrize("told_by", ["goodbye", "first hello", "answer"])
AHEAD = pytest.mark.parametrize("ahead_s", [0, 2])


@ENDS
@AHEAD
@pytest.mark.parametrize("is_lost", [True, False])
def test_who_dies_after_somebody_took_its_numbers_is_not_proven_to_be_received(
    rig: Rig, publisher: PublisherCore, ahead_s: int, is_lost: bool, told_by: str
) -> None:
    """The real events count as repeats, since the forged one claims to be of later; then nobody sends any more."""
    rig.deliver(data(publisher, FAR, 3, rig.stamp + ahead_s * 10**9))
    rig.run(0.1, hellos=False)
    rig.forget_told()
    published = rig.publish(publisher, "a", 4)
    rig.deliver(*([] if is_lost else published))
    rig.run(0.1, hellos=False)
    die(rig, publisher, told_by)
    rig.run(5)
    assert set(rig.reasons) == {"contradiction"}


@ENDS
@AHEAD
def test_a_resync_before_the_last_events_covers_no_hole_that_was_forged(
    rig: Rig, publisher: PublisherCore, ahead_s: int, told_by: str
) -> None:
    """All that seems to be missing was shown by a forged event when that resync was told."""
    rig.deliver(data(publisher, FAR, FAR - 1, rig.stamp + ahead_s * 10**9))
    rig.subscriber.resync_failed(rig.resyncs[0], rig.now)
    rig.run(0.01, hellos=False)
    rig.publish(publisher, "a", 4)
    rig.forget_told()
    die(rig, publisher, told_by)
    rig.run(5)
    assert rig.reasons == ["contradiction"]


@ENDS
@AHEAD
def test_a_resync_before_the_last_events_covers_no_stream_that_was_met_by_what_was_forged(
    ahead_s: int, told_by: str
) -> None:
    rig = Rig()
    rig.join()
    publisher = rig.publisher(age_s=1000.0, is_heard=False, is_asked=False)
    rig.publish(publisher, "a", 3)
    rig.deliver(data(publisher, FAR, FAR - 1, rig.stamp + ahead_s * 10**9))
    rig.subscriber.resync_failed(rig.resyncs[0], rig.now)
    rig.run(0.01, hellos=False)
    assert rig.reasons == ["initial", "initial"]
    rig.publish(publisher, "a", 4)
    rig.forget_told()
    die(rig, publisher, told_by)
    rig.run(0.5)
    assert rig.reasons


@pytest.mark.parametrize("kind", [Kind.BYE, Kind.HELLO])
@pytest.mark.parametrize("has_hole", [True, False])
def test_who_forges_an_end_costs_a_resync_and_repeats_nothing(
    rig: Rig, publisher: PublisherCore, kind: Kind, has_hole: bool
) -> None:
    """Final heads that are too low, of a publisher that lives and answers: its own, or told by one that never was."""
    if has_hole:
        rig.publish(publisher, "a")
        rig.deliver(*rig.publish(publisher, "a"))
    if kind is Kind.BYE:
        guid, body = publisher.guid, messages.encode(messages.Bye(name="host", heads={"a": 1}, parts=1))
    else:
        hello = messages.Hello(name="host", predecessor=publisher.guid, heads={"a": 1}, parts=1)
        guid, body = bytes(16), messages.encode(hello)
    flags = Flag.LAST | (Flag.START if kind is Kind.HELLO else Flag.NONE)
    rig.deliver(frames.pack(kind, guid, CONTROL_TOPIC, body, timestamp=rig.stamp, flags=flags))
    rig.run(0.1, hellos=False)
    assert rig.reasons == ["initial", "contradiction"]
    rig.run(1)
    rig.deliver(*rig.publish(publisher, "a", 2))
    rig.run(5)
    told = rig.numbers("a")
    assert sorted(set(told)) == told, "in order, each once"
    assert told[-2:] == ([6, 7] if has_hole else [4, 5])
    assert rig.reasons[2:] == ([] if kind is Kind.BYE else ["publisher restarted"])


# -- who is asked


def test_a_publisher_tells_with_what_is_wanted_how_far_it_is(rig: Rig, publisher: PublisherCore) -> None:
    """Of topics that it never used too, and of numbers that the transport refused: those existed."""
    (refused,) = rig.publish(publisher, "barred")
    publisher.refuse(refused, rig.now)
    wants = [Want(publisher.guid, topic, 1, 2) for topic in ("a", "a", "unused", "barred")]
    (answer,) = publisher.answer(Query(id=1, wants=[*wants, Want(bytes(16), "a", 1, 2)]), rig.stamp, rig.now)
    reply = messages.decode(Reply, answer, header_of(answer))
    assert reply.heads == [(publisher.guid, "a", 3), (publisher.guid, "unused", 0), (publisher.guid, "barred", 1)]
    assert [header_of(frame).first for frame in reply.frames] == [1, 2]
    assert header_of(answer).topic == CONTROL_TOPIC


def test_no_answer_has_a_lower_timestamp_than_a_frame_before_it(rig: Rig, publisher: PublisherCore) -> None:
    (frame,) = rig.publish(publisher, "a")
    (answer,) = publisher.answer(Query(id=1, topics=["#"]), header_of(frame).timestamp - 1000, rig.now)
    assert header_of(answer).timestamp == header_of(frame).timestamp
