"""Holes that caches close: exact ranges, several caches, retries, and giving up only when nobody has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.frame import Kind
from pubsub_api.core.receiving.questions import HURRY_MAX, WANTS_PER_QUERY_MAX, SubscriberQuestions
from pubsub_api.core.receiving.statistics import SubscriberCounters
from pubsub_api.core.sending.publisher import PublisherCore
from pubsub_api.core.settings import CacheSettings, History
from pubsub_api.core.topics import CONTROL_TOPIC, FilterSet
from tests.unit.pubsub_api.core_rig import PUBLISHER, SUBSCRIBER, Rig, guid_of, header_of

NO_CACHE = dataclasses.replace(PUBLISHER, cache=None)
WINDOW_S = SUBSCRIBER.message_delay_window_s
CATCH_UP_S = SUBSCRIBER.catch_up_time_s


def wanted(rig: Rig) -> list[list[tuple[str, int, int]]]:
    """The ranges of every repair query, in order."""
    return [[(want.topic, want.first, want.last) for want in query.wants] for query in rig.queries if query.wants]


def test_exactly_what_is_missing_is_asked_for_and_delivered_in_order() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    made = rig.publish(publisher, "a", 9)
    rig.deliver(made[0], made[3], made[4], made[8])
    rig.run(WINDOW_S + 0.01)
    assert wanted(rig) == [[("a", 2, 3), ("a", 6, 8)]]
    assert rig.numbers("a") == list(range(1, 10))
    assert rig.reasons == ["initial"]
    assert rig.subscriber.counters.repair.closed_by_repair == 1
    assert rig.subscriber.counters.lost == 0


def test_holes_of_many_streams_are_asked_for_in_one_question() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    for topic in ("a", "b", "c"):
        rig.publish(publisher, topic)
        rig.deliver(*rig.publish(publisher, topic))
    rig.run(WINDOW_S + 0.01)
    assert wanted(rig) == [[("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]]
    assert sorted(rig.received) == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("c", 2)]


@pytest.mark.parametrize("idle_s", [0.0, 0.001, 2.5, 4.999, 5.0, 7.3, 12.0, 61.0, 1000.0])
@pytest.mark.parametrize("others", [0, 50])
def test_the_lost_tail_is_asked_for_within_the_bound(idle_s: float, others: int) -> None:
    """``max_idle_time`` + ``message_delay_window`` after the lost event, whatever the stream did before it and however
    many others there are; and no sooner, since it is the stream's first hello that shows the hole."""
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(idle_s)
    for number in range(others):
        rig.publish(publisher, f"other/{number}")
    lost_at, hellos = rig.now, rig.subscriber.counters.intake.hellos
    rig.publish(publisher, "a", 3)
    while not rig.subscriber.counters.repair.queries:
        rig.run(0.01)
        assert rig.now < lost_at + PUBLISHER.max_idle_time_s + WINDOW_S + 0.02, "late"
    assert rig.now >= lost_at + PUBLISHER.max_idle_time_s + WINDOW_S
    assert rig.subscriber.counters.intake.hellos > hellos
    assert ("a", 2, 4) in wanted(rig)[0]
    assert rig.numbers("a") == [1, 2, 3, 4]
    assert rig.reasons == ["initial"]


def test_late_frames_close_a_hole_before_anybody_is_asked() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    late, early = rig.publish(publisher, "a", 2)
    rig.deliver(early)
    rig.run(WINDOW_S - 0.01)
    rig.deliver(late)
    rig.run(5)
    assert wanted(rig) == []
    assert rig.subscriber.counters.repair.closed_by_waiting == 1


def test_partial_answers_of_several_caches_are_combined() -> None:
    rig = Rig()
    publisher = rig.publisher(settings=NO_CACHE)
    rig.join()
    made = rig.publish(publisher, "a", 6)
    rig.cache(made[1], made[3])
    rig.cache(made[2], made[3])
    rig.deliver(made[0], made[5])
    rig.cache(made[4])
    rig.run(WINDOW_S + 0.01)
    assert rig.numbers("a") == [1, 2, 3, 4, 5, 6]
    assert rig.subscriber.counters.intake.duplicates == 1
    assert rig.reasons == ["initial"]


def test_a_cache_that_lacks_the_range_does_not_hide_one_that_has_it() -> None:
    rig = Rig()
    publisher = rig.publisher(settings=NO_CACHE)
    rig.join()
    made = rig.publish(publisher, "a", 2)
    rig.cache()
    rig.cache(made[0])
    rig.deliver(made[1])
    rig.run(WINDOW_S + 0.01)
    assert rig.numbers("a") == [1, 2]


def test_when_all_answered_and_none_has_it_the_loss_is_told_at_once_with_the_exact_ranges() -> None:
    rig = Rig()
    publisher = rig.publisher(settings=NO_CACHE)
    rig.join()
    made = rig.publish(publisher, "a", 9)
    rig.cache(made[1])
    rig.deliver(made[0], made[4], made[8])
    rig.run(WINDOW_S + 0.01)
    assert rig.reasons == ["initial", "loss"]
    assert [str(lost) for lost in rig.resyncs[-1].lost] == [
        f"a 3..4 of host ({publisher.guid.hex()[:8]})",
        f"a 6..8 of host ({publisher.guid.hex()[:8]})",
    ]
    assert rig.subscriber.counters.lost == 5
    # Everything that did come is delivered, behind the resync.
    assert rig.told[-3:] == [rig.resyncs[-1], ("a", 5), ("a", 9)]
    assert rig.numbers("a") == [1, 2, 5, 9]


def test_a_question_that_is_not_answered_is_repeated_with_growing_patience() -> None:
    rig = Rig()
    rig.knows_responders = False
    publisher = rig.publisher()
    rig.join()
    rig.forget_told()
    rig.responders.clear()
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"))
    asked_at = []
    start = rig.now
    for _ in range(600):
        before = len(rig.queries)
        rig.run(0.01)
        if len(rig.queries) > before:
            asked_at.append(round(rig.now - start, 1))
    # The publisher had answered the join at once: so the first waits are short, and then as long as anybody's.
    assert asked_at == [0.2, 0.2, 0.3, 0.4, 0.7, 1.2, 2.2]
    assert rig.reasons == ["loss"]


def test_the_first_wait_for_an_answer_follows_how_long_answers_take() -> None:
    questions = SubscriberQuestions(SUBSCRIBER, SubscriberCounters(), FilterSet(), guid=guid_of(1), jitter=lambda: 0.0)
    assert questions.hurry == 0

    def answer_after(seconds: float) -> None:
        questions.ranges([messages.Want(guid_of(2), "a", 1, 1)], 100.0)
        questions.answered(questions.take()[0].id, guid_of(2), 0, 1, 100.0 + seconds)

    answer_after(0.001)
    assert questions.hurry == HURRY_MAX
    answer_after(0.06)
    assert questions.hurry == 2
    assert questions.patience(-questions.hurry) == SUBSCRIBER.repair_timeout_s / 4
    answer_after(2.0)
    assert questions.hurry == 0
    for _ in range(40):
        answer_after(0.001)
    assert questions.hurry == HURRY_MAX


def long_answer(rig: Rig) -> list[bytes]:
    """A hole was asked for, and nobody has answered yet: the parts of the answer to come, many."""
    rig.knows_responders = False
    publisher = rig.publisher(settings=dataclasses.replace(PUBLISHER, cache=CacheSettings(reply_bytes_max=200)))
    rig.join()
    answer = rig.responders.pop()
    made = rig.publish(publisher, "a", 40)
    rig.deliver(made[0], made[39])
    rig.run(WINDOW_S + 0.001)
    parts = list(answer(rig.queries[-1]))
    assert len(parts) > 10
    assert len(wanted(rig)) == 1
    return parts


def test_a_long_answer_that_is_under_way_is_not_asked_for_again() -> None:
    """Its first part has to come as soon as answers do.  The others have the time that late frames have."""
    rig = Rig()
    parts = long_answer(rig)
    rig.run(SUBSCRIBER.repair_timeout_s / 2**HURRY_MAX - 0.002)
    for part in parts:
        rig.deliver(part)
        rig.run(WINDOW_S - 0.002)
    assert len(wanted(rig)) == 1
    assert rig.numbers("a") == list(range(1, 41))


def test_parts_that_come_slowly_are_waited_for_as_long_as_parts_take() -> None:
    rig = Rig()
    parts = long_answer(rig)
    rig.deliver(parts[0])
    rig.run(WINDOW_S - 0.002)
    rig.deliver(parts[1])
    for part in parts[2:]:
        rig.run(2 * WINDOW_S - 0.005)
        rig.deliver(part)
    assert len(wanted(rig)) == 1
    assert rig.numbers("a") == list(range(1, 41))


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    """However long its parts took: no longer than ``repair_timeout`` is waited for the next one."""
    rig = Rig()
    parts = long_answer(rig)
    rig.deliver(parts[0])
    rig.now += 60.0
    rig.deliver(parts[1])
    rig.run(SUBSCRIBER.repair_timeout_s + 0.002)
    assert len(wanted(rig)) == 2


@pytest.mark.parametrize("still_s", [CATCH_UP_S + 0.001, 3.0, 60.0])
def test_who_stood_still_reads_what_has_come_before_asking_again(still_s: float) -> None:
    """After SIGCONT the clock runs first, and the answer waits in a socket: every deadline has passed meanwhile."""
    rig = Rig()
    parts = long_answer(rig)
    rig.now = rig.subscriber.next_deadline() + still_s
    rig.subscriber.poll(rig.now)
    rig.settle()
    assert len(wanted(rig)) == 1
    assert rig.counters["put_off"] == 1
    rig.deliver(*parts)
    rig.run(5)
    assert len(wanted(rig)) == 1
    assert rig.numbers("a") == list(range(1, 41))


@pytest.mark.parametrize(("late_s", "put_off"), [(1.9, 0), (2.1, 1)])
def test_how_late_is_too_late_is_a_setting(late_s: float, put_off: int) -> None:
    rig = Rig(settings=dataclasses.replace(SUBSCRIBER, catch_up_time_s=2.0))
    long_answer(rig)
    rig.now = rig.subscriber.next_deadline() + late_s
    rig.subscriber.poll(rig.now)
    rig.settle()
    assert (rig.counters["put_off"], len(wanted(rig))) == (put_off, 2 - put_off)
    assert not put_off or rig.subscriber.next_deadline() == rig.now + 2.0, "for as long is read what has come"


def test_who_stood_still_asks_again_when_nothing_has_come() -> None:
    """It is put off once, and then done, however late the clock comes again."""
    rig = Rig()
    long_answer(rig)
    for still_s in (3.0, CATCH_UP_S, 3.0, 3.0):
        rig.now += still_s
        rig.subscriber.poll(rig.now)
        rig.settle()
    assert len(wanted(rig)) == 3
    assert rig.counters["put_off"] == 2


def test_who_stood_still_gives_nothing_up_before_reading_what_has_come() -> None:
    rig = Rig()
    parts = long_answer(rig)
    while rig.reasons == ["initial"] and len(wanted(rig)) < HURRY_MAX + SUBSCRIBER.repair_attempts_max:
        rig.run(0.01)
    rig.now += 60.0
    rig.subscriber.poll(rig.now)
    rig.deliver(*parts)
    rig.run(5)
    assert rig.numbers("a") == list(range(1, 41))
    assert rig.reasons == ["initial"]


def frozen_with_two_losses(rig: Rig, publisher: PublisherCore) -> list[bytes]:
    """Stand still for a minute.  What waits then: frames 2..30, of which two runs were lost and no cache has them."""
    rig.deliver(*rig.publish(publisher, "a"))
    waiting: list[bytes] = []
    for _ in range(29):
        rig.now += 2.0
        waiting += rig.publish(publisher, "a")
    rig.now += 2.0
    rig.subscriber.poll(rig.now)
    return waiting[:5] + waiting[9:15] + waiting[20:]


@pytest.mark.parametrize("sign", ["data", "hello"])
def test_losses_that_show_after_a_standstill_are_told_by_one_resync(sign: str) -> None:
    """Each shows when what waits is read; the first must not be told before the rest was read as well."""
    rig = Rig()
    publisher = rig.publisher(settings=NO_CACHE)
    rig.join()
    for frame in frozen_with_two_losses(rig, publisher):
        rig.deliver(frame)
        rig.run(0.3, hellos=False)
    assert rig.reasons == ["initial"]
    if sign == "data":
        rig.deliver(*rig.publish(publisher, "a"))
    rig.run(PUBLISHER.max_idle_time_s + 0.01)
    assert rig.reasons == ["initial", "loss"]
    last = 31 if sign == "data" else 30
    assert rig.numbers("a") == [*range(1, 7), *range(11, 17), *range(22, last + 1)]
    assert rig.told.index(rig.resyncs[-1]) == 1 + len(range(1, 7)), "where the first of them happened"
    rig.deliver(*rig.publish(publisher, "a")[1:])
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(WINDOW_S + 0.01)
    assert rig.reasons == ["initial", "loss", "loss"], "a loss after that is told at once"


def test_a_tail_that_was_lost_during_a_standstill_is_covered_by_the_same_resync() -> None:
    """A sign of life comes first; what was lost at the end would show only when the stream itself says hello."""
    rig = Rig()
    publisher = rig.publisher(settings=NO_CACHE)
    rig.join()
    rig.deliver(*frozen_with_two_losses(rig, publisher)[:11])
    rig.run(1.0, hellos=False)
    assert rig.reasons == ["initial"]
    rig.now += PUBLISHER.max_idle_time_s
    said = publisher.poll(rig.now, rig.stamp)
    rig.deliver(*(frame for topic, frame in said if topic == CONTROL_TOPIC))
    assert rig.reasons == ["initial", "loss"], "at once, since the publisher has told its head"
    rig.run(2 * PUBLISHER.max_idle_time_s)
    assert rig.reasons == ["initial", "loss"]
    rig.deliver(*rig.publish(publisher, "a"))
    assert rig.numbers("a") == [*range(1, 7), *range(11, 17), 31]


def test_losses_after_a_standstill_are_told_in_time_though_nobody_sends_any_more() -> None:
    rig = Rig()
    publisher = rig.publisher(settings=NO_CACHE)
    rig.join()
    waiting = frozen_with_two_losses(rig, publisher)
    rig.publishers.clear()
    rig.deliver(*waiting)
    rig.run(SUBSCRIBER.silence_timeout_s - 0.1)
    assert rig.reasons == ["initial"]
    rig.run(0.2)
    assert rig.reasons[:2] == ["initial", "loss"]


def test_what_is_no_loss_is_told_at_once_after_a_standstill() -> None:
    rig = Rig()
    publisher = rig.publisher(settings=NO_CACHE)
    rig.join()
    waiting = frozen_with_two_losses(rig, publisher)
    rig.disconnect()
    rig.deliver(*waiting)
    rig.connect()
    rig.run(SUBSCRIBER.ready_timeout_s + 0.01, hellos=False)
    assert rig.reasons[:2] == ["initial", "reconnected"]


def test_a_lost_part_of_a_reply_is_asked_for_again() -> None:
    settings = dataclasses.replace(PUBLISHER, cache=CacheSettings(reply_bytes_max=200))
    rig = Rig()
    publisher = rig.publisher(settings=settings)
    rig.join()
    whole = rig.responders.pop()
    rig.responders.append(lambda query: list(whole(query))[1:] if len(wanted(rig)) == 1 else whole(query))
    made = rig.publish(publisher, "a", 8)
    rig.deliver(made[0], made[7])
    rig.run(WINDOW_S + 0.01)
    assert rig.numbers("a") == [1]
    rig.run(1)
    assert rig.numbers("a") == list(range(1, 9))
    assert len(wanted(rig)) == 2
    assert rig.reasons == ["initial"]


def test_an_empty_last_part_does_not_conclude_when_an_earlier_part_was_lost() -> None:
    """The publisher holds the range; only its reply was lost in part: that is no proof of absence."""
    settings = dataclasses.replace(PUBLISHER, cache=CacheSettings(reply_bytes_max=200))
    rig = Rig()
    publisher = rig.publisher(settings=settings)
    rig.join()
    whole = rig.responders.pop()
    rig.responders.append(lambda query: list(whole(query))[-1:] if len(wanted(rig)) < 3 else whole(query))
    made = rig.publish(publisher, "a", 8)
    rig.deliver(made[0], made[7])
    rig.run(5)
    assert rig.numbers("a") == list(range(1, 9))
    assert rig.reasons == ["initial"]


def test_a_hole_that_opens_during_a_repair_has_a_repair_of_its_own() -> None:
    rig = Rig()
    rig.knows_responders = False
    publisher = rig.publisher()
    rig.join()
    made = rig.publish(publisher, "a", 10)
    answer = rig.responders.pop()
    replies: list[bytes] = []

    def answer_later(query: messages.Query) -> Iterable[bytes]:
        replies.extend(answer(query))
        return []

    rig.responders.append(answer_later)
    rig.deliver(made[0], made[2])
    rig.run(WINDOW_S + 0.01)
    rig.deliver(made[5])
    rig.responders[0] = answer
    rig.deliver(*replies)
    assert rig.numbers("a") == [1, 2, 3]
    rig.run(WINDOW_S + 0.01)
    assert wanted(rig) == [[("a", 2, 2)], [("a", 4, 5)]]
    assert rig.numbers("a") == [1, 2, 3, 4, 5, 6]
    assert rig.subscriber.counters.repair.closed_by_repair == 2


def test_steady_loss_does_not_use_up_the_attempts() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    for _ in range(100):
        for position, frame in enumerate(rig.publish(publisher, "a", 10)):
            if position % 3:
                rig.deliver(frame)
        rig.run(0.07)
    rig.run(10)
    assert rig.numbers("a") == list(range(1, 1001))
    assert rig.reasons == ["initial"]


def test_more_holes_than_fit_a_question_are_asked_for_in_portions() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    made = rig.publish(publisher, "a", 5 * WANTS_PER_QUERY_MAX)
    rig.deliver(*made[::2])
    rig.run(10)
    assert rig.numbers("a") == list(range(1, 5 * WANTS_PER_QUERY_MAX + 1))
    assert max(len(ranges) for ranges in wanted(rig)) <= WANTS_PER_QUERY_MAX
    assert rig.reasons == ["initial"]


def test_a_reply_may_hold_data_frames_only() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    inner = frames.pack(Kind.REPLY, guid_of(9), CONTROL_TOPIC, messages.encode(messages.Reply(id=1)))
    for _ in range(3000):
        inner = frames.pack(
            Kind.REPLY, guid_of(9), CONTROL_TOPIC, messages.encode(messages.Reply(id=1, frames=[inner]))
        )
        if len(inner) > SUBSCRIBER.frame.bytes_max // 2:
            break
    rig.responders.append(lambda query: [_with_id(inner, query.id)])
    rig.publish(publisher, "a")
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(1)
    assert rig.numbers("a") == [1, 2]
    assert rig.subscriber.counters.bad_frames["MalformedFrame"] >= 1


def _with_id(reply: bytes, query_id: int) -> bytes:
    return frames.pack(
        Kind.REPLY, guid_of(9), CONTROL_TOPIC, messages.encode(messages.Reply(id=query_id, frames=[reply]))
    )


def test_late_replies_are_counted_and_change_nothing() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.join()
    reply = next(iter(publisher.answer(messages.Query(id=999, topics=["#"]), rig.stamp, rig.now)))
    rig.deliver(reply)
    assert rig.subscriber.counters.repair.late_replies == 1


# -- periodic queries


def test_periodic_questions_find_a_lost_tail_without_hellos() -> None:
    rig = Rig(settings=dataclasses.replace(SUBSCRIBER, query_interval_s=2.0))
    publisher = rig.publisher()
    rig.join()
    rig.publish(publisher, "a", 3)
    rig.run(2.5, hellos=False)
    assert rig.numbers("a") == [1, 2, 3]
    assert rig.reasons == ["initial"]


# -- history


def history_rig(history: History, *, depth: int = 3) -> Rig:
    """Four events are published into a cache of some depth, then a subscriber joins, then a fifth."""
    rig = Rig("a", history=history)
    settings = dataclasses.replace(PUBLISHER, cache=CacheSettings(events_max=depth))
    publisher = rig.publisher(settings=settings, is_heard=False)
    for number in range(4):
        rig.now += 1
        rig.publish(publisher, "a")
        assert publisher.streams["a"].head == number + 1
    rig.connect()
    rig.run(0)
    rig.deliver(*rig.publish(publisher, "a"))
    rig.run(30)
    return rig


@pytest.mark.parametrize(
    ("history", "depth", "expected"),
    [
        (History(), 3, [2, 3, 4, 5]),
        (History(), 10, [1, 2, 3, 4, 5]),
        (History(newest=2), 3, [3, 4, 5]),
        (History(newest=100), 3, [2, 3, 4, 5]),
        (History(since=int(1003e9)), 10, [3, 4, 5]),
        (History(newest=1, since=int(1003e9)), 10, [4, 5]),
    ],
)
def test_history_comes_in_order_before_live_events(history: History, depth: int, expected: list[int]) -> None:
    rig = history_rig(history, depth=depth)
    assert rig.numbers("a") == expected
    assert rig.reasons == ["initial"]
    assert rig.told[0] is rig.resyncs[0]


def test_without_history_nothing_of_the_past_comes() -> None:
    rig = Rig("a")
    publisher = rig.publisher(is_heard=False)
    rig.publish(publisher, "a", 4)
    rig.join()
    rig.deliver(*rig.publish(publisher, "a"))
    assert rig.numbers("a") == [5]


def test_history_is_cut_within_a_frame() -> None:
    rig = Rig("a", history=History(newest=2))
    publisher = rig.publisher(is_heard=False)
    stream = publisher.stream("a")
    first = rig.publish(publisher, "a")
    assert header_of(first[0]).count == 1
    from tests.unit.pubsub_api.core_rig import drain, event_bytes

    stream.pending += [event_bytes(number, rig.stamp) for number in range(2, 6)]
    (batch,) = drain(publisher, "a", rig.now, rig.stamp)
    assert header_of(batch).count == 4
    rig.join()
    assert rig.numbers("a") == [4, 5]


def test_history_is_not_asked_for_again_by_later_joins() -> None:
    rig = history_rig(History())
    rig.forget_told()
    rig.disconnect()
    rig.connect()
    rig.run(2)
    assert [query.history for query in rig.queries] == [False]
    assert rig.received == []


def test_history_of_a_stream_that_is_live_already_is_combined() -> None:
    rig = Rig("a", history=History())
    rig.knows_responders = False
    publisher = rig.publisher(is_heard=False)
    rig.publish(publisher, "a", 3)
    live = rig.publish(publisher, "a", 2)
    rig.subscriber.link_up("link", rig.now)
    rig.subscriber.on_frames(live, rig.now)
    rig.settle()
    rig.run(1)
    assert rig.numbers("a") == [1, 2, 3, 4, 5]


def test_a_long_hole_is_not_given_up_while_answers_bring_something() -> None:
    """Every answer loses all parts but one: more rounds than there are attempts, and each of them closes a little."""
    rig = Rig()
    publisher = rig.publisher(settings=dataclasses.replace(PUBLISHER, cache=CacheSettings(reply_bytes_max=200)))
    rig.join()
    whole = rig.responders.pop()
    rig.responders.append(lambda query: list(whole(query))[:1])
    made = rig.publish(publisher, "a", 40)
    rig.deliver(made[0], made[39])
    rig.run(60)
    assert rig.numbers("a") == list(range(1, 41))
    assert len(wanted(rig)) > SUBSCRIBER.repair_attempts_max + HURRY_MAX
    assert rig.reasons == ["initial"]
