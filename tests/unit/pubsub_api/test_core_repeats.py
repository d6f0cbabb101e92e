"""A consumer that keeps frames gets, too, what comes again, what comes after it was given up, and what was before."""

from __future__ import annotations

import pytest

from pubsub_api.core import frame as frames
from pubsub_api.core.events import pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.core.receiving.resync_requests import LostRange
from pubsub_api.core.settings import History
from tests.unit.pubsub_api.core_rig import NO_REPAIR, SUBSCRIBER, Rig, event_bytes, guid_of

LONG_S = 30.0


def given_up(*, takes_repeats: bool) -> tuple[Rig, list[bytes]]:
    """Four events of which the second and third were given up, because nobody who has them could be asked."""
    rig = Rig(takes_repeats=takes_repeats)
    publisher = rig.publisher()
    rig.join()
    made = rig.publish(publisher, "a", 4)
    answers, rig.responders = rig.responders, []
    rig.deliver(made[0], made[3])
    rig.run(LONG_S)
    rig.responders = answers
    assert rig.numbers("a") == [1, 4]
    assert [(one.first, one.last) for one in rig.resyncs[-1].lost] == [(2, 3)]
    return rig, made


@pytest.mark.parametrize("takes_repeats", [True, False])
def test_what_was_given_up_and_is_sent_again_is_for_who_takes_it(takes_repeats: bool) -> None:
    rig, made = given_up(takes_repeats=takes_repeats)
    rig.deliver(*made[1:])
    assert rig.numbers("a") == ([1, 4, 2, 3, 4] if takes_repeats else [1, 4])
    counters = rig.subscriber.counters
    assert (counters.intake.repeats, counters.intake.duplicates) == ((3, 0) if takes_repeats else (0, 3))
    assert counters.delivered == len(rig.received)


def test_what_was_given_up_can_be_asked_for_again() -> None:
    rig, _ = given_up(takes_repeats=True)
    lost = rig.resyncs[-1].lost
    rig.forget_told()
    stranger = LostRange("nobody", guid_of(77).hex(), "a", 1, 5)
    rig.subscriber.ask_again([stranger, *lost], rig.now)
    rig.settle()
    assert [[(want.topic, want.first, want.last) for want in query.wants] for query in rig.queries] == [[("a", 2, 3)]]
    assert rig.numbers("a") == [2, 3]
    assert not rig.resyncs


@pytest.mark.parametrize("takes_repeats", [True, False])
def test_of_a_frame_that_was_given_up_in_part_all_is_handed_over(takes_repeats: bool) -> None:
    rig = Rig(settings=NO_REPAIR, takes_repeats=takes_repeats)
    publisher = rig.publisher()
    rig.join()
    rig.publish(publisher, "a", 2)
    rig.run(LONG_S)  # a hello tells of both, and they are given up
    body = pack_body([event_bytes(number, rig.stamp) for number in (1, 2, 3)])
    rig.deliver(frames.pack(Kind.DATA, publisher.guid, "a", body, first=1, after=0, count=3))
    assert rig.numbers("a") == ([1, 2, 3] if takes_repeats else [3])
    assert rig.subscriber.counters.delivered == len(rig.received)


def test_repeats_do_not_wait_for_a_consumer_that_is_behind() -> None:
    rig, made = given_up(takes_repeats=True)
    rig.forget_told()
    rig.fill_queue()
    rig.deliver(made[1])
    rig.deliver(made[2])
    assert rig.numbers("a") == [2]
    assert rig.subscriber.counters.intake.duplicates == 1
    rig.make_room(1e6)
    rig.deliver(made[2])
    assert rig.numbers("a") == [2, 3]


@pytest.mark.parametrize("takes_repeats", [True, False])
def test_who_keeps_is_told_what_is_before_a_stream_that_it_meets_in_mid_flow(takes_repeats: bool) -> None:
    rig = Rig(history=History(), takes_repeats=takes_repeats)
    rig.join()
    publisher = rig.publisher("late", is_heard=False, age_s=60)
    rig.publish(publisher, "a", 3)
    rig.forget_told()
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(LONG_S)
    told = [(one.topic, one.first, one.last) for resync in rig.resyncs for one in resync.lost]
    assert told == ([("a", 1, 3)] if takes_repeats else [])
    rig.subscriber.ask_again([one for resync in rig.resyncs for one in resync.lost], rig.now)
    rig.settle()
    assert rig.numbers("a") == ([4, 1, 2, 3] if takes_repeats else [4])
    assert "unknown stream" in rig.reasons


def test_history_that_is_read_anyway_is_not_told_as_missing() -> None:
    rig = Rig(history=History(), takes_repeats=True)
    publisher = rig.publisher(is_heard=False)
    rig.publish(publisher, "a", 3)
    rig.join()
    rig.run(SUBSCRIBER.ready_timeout_s)
    assert rig.numbers("a") == [1, 2, 3]
    assert not [one for resync in rig.resyncs for one in resync.lost]
