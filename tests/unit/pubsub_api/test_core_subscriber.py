"""The flows of a subscription: joining, order, and loss that is noticed."""

from __future__ import annotations

import dataclasses

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.frame import Kind
from pubsub_api.core.receiving.instream import InStreamState
from pubsub_api.core.receiving.resync_requests import Reason
from pubsub_api.core.topics import CONTROL_TOPIC
from tests.unit.pubsub_api.core_rig import NO_REPAIR, SUBSCRIBER, Rig, guid_of, header_of

# -- joining


def test_a_new_subscriber_resyncs_before_it_gets_anything() -> None:
    rig = Rig()
    publisher = rig.publisher()
    early = rig.publish(publisher, "a", 2)
    rig.deliver(*early)
    assert rig.told == []
    rig.join()
    assert rig.reasons == ["initial"]
    assert rig.resyncs[0].topics == ("#",)
    assert rig.told[0] is rig.resyncs[0]


def test_it_is_ready_at_once_when_all_who_were_asked_have_answered() -> None:
    rig = Rig()
    rig.publisher()
    rig.connect()
    rig.run(0)
    assert rig.subscriber.is_ready


def test_it_is_ready_after_the_timeout_when_nobody_answers() -> None:
    rig = Rig()
    rig.knows_responders = False
    rig.connect()
    rig.run(SUBSCRIBER.ready_timeout_s - 0.01)
    assert not rig.subscriber.is_ready
    rig.run(0.02)
    assert rig.reasons == ["initial"]


def test_a_late_joiner_starts_at_the_baseline_and_misses_nothing_after_it() -> None:
    rig = Rig("a")
    publisher = rig.publisher(is_heard=False)
    rig.publish(publisher, "a", 5)
    rig.join()
    assert rig.received == []
    lost, seen = rig.publish(publisher, "a", 2)
    rig.deliver(seen)
    assert rig.received == []
    rig.deliver(lost)
    assert rig.numbers("a") == [6, 7]
    assert rig.reasons == ["initial"]


def test_what_arrives_between_link_and_baseline_is_held_back_and_not_lost() -> None:
    rig = Rig("a")
    rig.knows_responders = False
    publisher = rig.publisher(is_heard=False, is_asked=False)
    rig.publish(publisher, "a", 3)
    rig.connect()
    rig.deliver(*rig.publish(publisher, "a", 2))
    assert rig.told == []
    rig.run(1)
    assert rig.told == [rig.resyncs[0], ("a", 4), ("a", 5)]


def test_the_first_frame_of_an_unknown_stream_in_mid_flow_is_a_resync() -> None:
    rig = Rig("a")
    rig.join()
    publisher = rig.publisher(is_heard=False, is_asked=False)
    rig.publish(publisher, "a", 7)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(1)
    assert rig.reasons == ["initial", "unknown stream"]
    assert rig.told[1:] == [rig.resyncs[1], ("a", 8)]


def test_a_hello_before_any_data_of_an_unknown_publisher_is_a_resync() -> None:
    rig = Rig("a")
    rig.join()
    publisher = rig.publisher(is_heard=False, is_asked=False)
    rig.publish(publisher, "a", 7)
    rig.run(7)
    assert rig.reasons == ["initial", "unknown stream"]
    rig.deliver(*rig.publish(publisher, "a"))
    assert rig.numbers("a") == [8]


def test_a_stream_that_begins_needs_no_resync_even_when_its_publisher_is_unknown() -> None:
    rig = Rig("a")
    rig.join()
    publisher = rig.publisher(is_heard=False, is_asked=False)
    rig.deliver(*rig.publish(publisher, "a", 3))
    rig.run(20)
    assert rig.numbers("a") == [1, 2, 3]
    assert rig.reasons == ["initial"]


def test_a_further_link_resyncs_once_for_all_its_streams() -> None:
    rig = Rig()
    rig.join()
    publisher = rig.publisher(is_heard=False)
    for topic in ("a", "b", "c"):
        rig.publish(publisher, topic, 3)
    rig.connect("another")
    rig.run(2)
    assert rig.reasons == ["initial", "new link"]


def test_a_link_that_comes_and_goes_does_not_keep_the_others_waiting() -> None:
    rig = Rig()
    rig.knows_responders = False
    for _ in range(8):
        rig.connect("flapping")
        rig.run(SUBSCRIBER.ready_timeout_s / 2)
    assert rig.subscriber.is_ready


def test_joining_survives_more_questions_than_are_kept() -> None:
    rig = Rig()
    rig.knows_responders = False
    rig.join()
    rig.forget_told()
    rig.subscriber.filter_added("x/#")
    rig.subscriber.filter_up("x/#", rig.now)
    for number in range(2000):
        hello = messages.encode(messages.Hello(name=f"p{number}"))
        rig.deliver(frames.pack(Kind.HELLO, guid_of(number + 10), CONTROL_TOPIC, hello))
    rig.run(1)
    assert "subscribed" in rig.reasons


# -- order and duplicates


def test_events_come_in_order_and_once() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    made = rig.publish(publisher, "a", 6)
    rig.deliver(made[0], made[2], made[1], made[1], made[5], made[0], made[4], made[3], made[5])
    assert rig.numbers("a") == [1, 2, 3, 4, 5, 6]
    assert rig.subscriber.counters.intake.duplicates == 3
    assert rig.subscriber.counters.repair.closed_by_waiting == 2
    assert rig.reasons == ["initial"]


def test_streams_do_not_wait_for_each_other() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"), *rig.publish(publisher, "b", 2))
    assert rig.received == [("b", 1), ("b", 2)]


def test_one_number_per_stream_so_a_filter_makes_no_holes() -> None:
    rig = Rig("a")
    publisher = rig.publisher()
    rig.join()
    for _ in range(3):
        rig.publish(publisher, "elsewhere")
        rig.deliver(*rig.publish(publisher, "a"))
    rig.run(20)
    assert rig.numbers("a") == [1, 2, 3]
    assert rig.subscriber.counters.repair.gaps == 0


def test_numbers_that_were_skipped_on_purpose_are_counted_and_no_hole() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a"))
    made = rig.publish(publisher, "a", 4)[-1]
    header = frames.unpack(made, bytes_max=10_000)
    coalesced = frames.pack(
        Kind.DATA, header.guid, "a", bytes(frames.body(made, header)), first=5, after=1, count=1, timestamp=1
    )
    rig.deliver(coalesced)
    rig.run(20, hellos=False)
    assert rig.numbers("a") == [1, 5]
    assert rig.subscriber.counters.repair.skipped == 3
    assert rig.subscriber.counters.repair.gaps == 0


def test_what_no_filter_selects_is_dropped_and_counted() -> None:
    rig = Rig("a/#")
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "b"), *rig.publish(publisher, "a/x"))
    assert rig.received == [("a/x", 1)]
    assert rig.subscriber.counters.intake.unwanted == 1


# -- loss, noticed


def test_one_lost_event_is_a_loss() -> None:
    """The seed asks for more than two ids of difference, and would never see the loss of one."""
    rig = Rig(settings=NO_REPAIR)
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a"))
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(0.19)
    assert rig.numbers("a") == [1]
    rig.run(0.02)
    assert rig.reasons == ["initial", "loss"]
    assert [(lost.topic, lost.first, lost.last) for lost in rig.resyncs[-1].lost] == [("a", 2, 2)]
    assert rig.told[-2:] == [rig.resyncs[-1], ("a", 3)]


def test_a_hello_with_another_head_shows_the_loss_of_the_last_event() -> None:
    rig = Rig(settings=NO_REPAIR)
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a"))
    rig.publish(publisher, "a", 2)
    rig.run(publisher.settings.max_idle_time_s - 0.01)
    assert rig.reasons == ["initial"]
    rig.run(0.02 + SUBSCRIBER.message_delay_window_s)
    assert rig.reasons == ["initial", "loss"]
    assert [(lost.first, lost.last) for lost in rig.resyncs[-1].lost] == [(2, 3)]


def test_a_hello_with_the_same_head_changes_nothing() -> None:
    rig = Rig(settings=NO_REPAIR)
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a", 3))
    rig.run(200)
    assert rig.reasons == ["initial"]
    assert rig.subscriber.counters.repair.gaps == 0


def test_a_hello_that_overtakes_its_data_is_no_loss() -> None:
    rig = Rig(settings=NO_REPAIR)
    publisher = rig.publisher()
    rig.join()
    made = rig.publish(publisher, "a", 2)
    rig.run(5.05)
    rig.deliver(*made)
    rig.run(1)
    assert rig.numbers("a") == [1, 2]
    assert rig.reasons == ["initial"]


def test_what_comes_after_a_loss_waits_until_the_loss_is_told() -> None:
    settings = dataclasses.replace(NO_REPAIR, resync_jitter_s=1.0)
    rig = Rig(settings=settings, jitter=lambda: 1.0)
    publisher = rig.publisher()
    rig.join()
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(0.5)
    rig.deliver(*rig.publish(publisher, "a", 2))
    assert rig.received == []
    rig.run(1)
    assert rig.told == [*rig.resyncs, ("a", 2), ("a", 3), ("a", 4)]


def test_a_late_frame_after_the_resync_is_not_delivered() -> None:
    rig = Rig(settings=NO_REPAIR)
    publisher = rig.publisher()
    rig.join()
    late, seen = rig.publish(publisher, "a", 2)
    rig.deliver(seen)
    rig.run(1)
    rig.deliver(late)
    assert rig.numbers("a") == [2]


def test_silence_of_a_publisher_is_a_resync() -> None:
    rig = Rig(settings=NO_REPAIR)
    publisher = rig.publisher()
    rig.join()
    rig.publish(publisher, "a")
    rig.publishers.clear()
    rig.run(SUBSCRIBER.silence_timeout_s - 1.5)
    assert rig.reasons == ["initial"]
    rig.run(SUBSCRIBER.max_idle_time_s + 2)
    assert rig.reasons == ["initial", "silence"]
    assert rig.resyncs[-1].topics == ("#",)


def test_a_publisher_that_returns_from_silence_tells_its_heads() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    rig.run(30, hellos=False)
    assert rig.reasons == ["initial", "silence"]
    rig.publish(publisher, "a", 2)
    rig.forget_told()
    rig.run(6)
    assert [query.guid for query in rig.queries if not query.wants] == [publisher.guid]
    assert rig.numbers("a") == [1, 2]
    assert rig.reasons == []


def test_a_publisher_that_stays_away_is_resynced_once_more_and_forgotten() -> None:
    rig = Rig()
    rig.publisher()
    rig.join()
    rig.publishers.clear()
    rig.run(SUBSCRIBER.forget_time_s + 10)
    assert rig.reasons == ["initial", "silence", "silence"]
    assert rig.subscriber.publishers == {}
    assert rig.subscriber.counters.peers.publishers_forgotten == 1


def test_a_subscriber_that_stood_still_does_not_take_everybody_for_silent() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    rig.now += 100
    rig.subscriber.poll(rig.now)
    rig.settle()
    assert rig.reasons == ["initial"]
    assert rig.subscriber.counters.freezes == 1
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(14)
    assert rig.reasons == ["initial"]


def test_no_loss_means_no_questions_but_those_of_the_join() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    for _ in range(50):
        rig.deliver(*rig.publish(publisher, "a"), *rig.publish(publisher, "b"))
        rig.run(3)
    assert len(rig.queries) == 1
    assert rig.reasons == ["initial"]
    assert rig.subscriber.counters.repair.queries == 0


def test_all_streams_rest_in_the_end() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a", 3)[1:])
    rig.run(10)
    streams = rig.subscriber.publishers[publisher.guid].streams
    assert {stream.state for stream in streams.values()} == {InStreamState.LIVE}


def test_a_start_flag_needs_no_baseline() -> None:
    rig = Rig()
    rig.join()
    publisher = rig.publisher(is_asked=False)
    rig.publish(publisher, "a", 2)
    rig.run(9)
    assert rig.numbers("a") == []
    assert rig.reasons == ["initial", "loss"]


# -- the short way


def test_a_frame_takes_the_short_way_only_when_nothing_else_is_to_be_done() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    first, second, third, fourth = rig.publish(publisher, "a", 4)
    rig.deliver(first)

    def is_refused(frame: bytes, now: float | None = None) -> bool:
        before = dataclasses.replace(rig.subscriber.counters)
        stream = rig.subscriber.accept_next(header_of(frame), now or rig.now)
        return stream is None and rig.subscriber.counters == before

    assert is_refused(first), "it came before"
    assert is_refused(third), "one is missing"
    assert is_refused(frames.with_after(second, 0, None)), "its publisher says that a number was left out"
    assert is_refused(rig.publish(publisher, "b")[0]), "its stream is new"
    assert is_refused(rig.publish(rig.publisher("stranger", is_heard=False), "a")[0]), "its publisher is new"
    assert is_refused(second, rig.now + 3 * SUBSCRIBER.max_idle_time_s), "this process has stood still"
    rig.fill_queue()
    rig.deliver(*rig.publish(publisher, "c"))
    assert is_refused(second), "there is no room"
    rig.make_room(10_000)
    rig.subscriber.ask_resync(Reason.HISTORY_REPLACED, rig.now)
    assert is_refused(second), "a resync waits"
    rig.run(0.0)
    assert rig.reasons == ["initial", "history replaced"]
    stream = rig.subscriber.accept_next(header_of(second), rig.now)
    assert stream is rig.subscriber.publishers[publisher.guid].streams["a"]
    assert rig.subscriber.take() == ([], []), "what it returns is not delivered twice"
    rig.deliver(fourth)
    assert is_refused(third), "another one waits behind it"
    rig.deliver(third)
    assert rig.numbers("a") == [1, 3, 4]
    assert rig.subscriber.counters.delivered == 5
    rig.run(SUBSCRIBER.silence_timeout_s + SUBSCRIBER.max_idle_time_s, hellos=False)
    assert is_refused(rig.publish(publisher, "a")[0]), "its publisher was silent for long"
