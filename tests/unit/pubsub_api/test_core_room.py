"""What a subscriber core does when the consumer's queue has no room: hold, in order and bounded, and hand on later."""

from __future__ import annotations

import dataclasses

from pubsub_api.core.receiving.resync_requests import Reason
from pubsub_api.core.sending.publisher import PublisherCore
from tests.unit.pubsub_api.core_rig import NO_REPAIR, SUBSCRIBER, Rig


def joined(pending_bytes_max: int = 1_000_000, **changes: object) -> tuple[Rig, PublisherCore]:
    settings = dataclasses.replace(SUBSCRIBER, pending_bytes_max=pending_bytes_max, **changes)  # type: ignore[arg-type]
    rig = Rig(settings=settings)
    publisher = rig.publisher()
    rig.join()
    return rig, publisher


def test_what_finds_no_room_follows_in_order_as_room_is_made() -> None:
    rig, publisher = joined()
    made = rig.publish(publisher, "a", 10)
    rig.fill_queue()
    rig.deliver(*made)
    assert rig.numbers("a") == [1]
    assert rig.subscriber.parked_bytes == sum(map(len, made[1:]))
    rig.make_room(len(made[1]) + 1)
    assert rig.numbers("a") == [1, 2, 3], "as much as there is room for, and the frame that fills it"
    assert rig.subscriber.room.is_full
    rig.make_room(10_000)
    assert rig.numbers("a") == list(range(1, 11))
    assert not rig.subscriber.room.is_full
    assert rig.subscriber.parked_bytes == 0
    rig.run(3)
    assert (rig.reasons, rig.subscriber.counters.discarded) == (["initial"], 0)


def test_a_repair_that_releases_more_than_there_is_room_for_is_no_reason_to_resync() -> None:
    rig, publisher = joined()
    made = rig.publish(publisher, "a", 30)
    rig.deliver(*made[1:])
    parked = rig.subscriber.parked_bytes
    rig.subscriber.room.bytes_left = 3.0 * len(made[0])
    rig.run(1)
    assert len(rig.numbers("a")) == 4
    assert rig.subscriber.counters.repair.closed_by_repair == 1
    assert rig.subscriber.parked_bytes < parked, "closing a hole changes nothing about how much is kept"
    for _ in range(30):
        rig.make_room(len(made[0]))
    assert rig.numbers("a") == list(range(1, 31))
    assert rig.reasons == ["initial"]


def test_what_is_new_waits_behind_what_is_held_whatever_its_stream() -> None:
    rig, publisher = joined()
    rig.fill_queue()
    rig.deliver(*rig.publish(publisher, "a", 3))
    rig.deliver(*rig.publish(publisher, "b", 2))
    rig.make_room(1)
    rig.deliver(*rig.publish(publisher, "a", 1))
    rig.make_room(10_000)
    assert rig.received == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("a", 4)]


def test_a_resync_waits_for_what_was_ready_before_it() -> None:
    rig, publisher = joined(repair=False)
    rig.fill_queue()
    rig.deliver(*rig.publish(publisher, "a", 3))
    rig.publish(publisher, "b")
    rig.deliver(*rig.publish(publisher, "b"))
    rig.run(3)
    assert rig.reasons == ["initial"]
    rig.make_room(10_000)
    rig.run(0.1)
    assert rig.reasons == ["initial", "loss"]
    assert [getattr(item, "reason", item) for item in rig.told[-2:]] == [rig.resyncs[-1].reason, ("b", 2)]
    assert rig.numbers("a") == [1, 2, 3]


def test_too_much_that_finds_no_room_is_discarded_and_told_once() -> None:
    rig, publisher = joined(500)
    made = rig.publish(publisher, "a", 40)
    rig.fill_queue()
    for frame in made:
        rig.deliver(frame)
        assert rig.subscriber.parked_bytes <= 500
    held = [number for number in range(2, 41) if sum(map(len, made[1:number])) <= 500]
    assert rig.subscriber.room.is_overrun
    rig.make_room(10_000)
    rig.run(5)
    assert rig.numbers("a") == [1, *held]
    assert rig.reasons == ["initial", "slow consumer"]
    assert [(lost.first, lost.last) for lost in rig.resyncs[-1].lost] == [(held[-1] + 1, 40)]
    rig.deliver(*rig.publish(publisher, "a"))
    assert rig.numbers("a")[-1] == 41


def test_who_was_overrun_is_told_before_it_sees_what_follows() -> None:
    rig, publisher = joined(500, resync_interval_min_s=4.0)
    rig.fill_queue()
    rig.deliver(*rig.publish(publisher, "a", 40))
    assert rig.subscriber.room.is_overrun
    rig.make_room(10_000)
    rig.deliver(*rig.publish(publisher, "a", 2))
    assert rig.reasons == ["initial"], "it is not due yet"
    assert 41 not in rig.numbers("a")
    rig.run(5)
    assert [getattr(item, "reason", item) for item in rig.told[-3:]] == [Reason.SLOW_CONSUMER, ("a", 41), ("a", 42)]


def test_what_waits_for_the_resync_of_an_overrun_is_bounded_and_what_goes_is_counted() -> None:
    rig, publisher = joined(500, resync_interval_min_s=4.0)
    rig.fill_queue()
    rig.deliver(*rig.publish(publisher, "a", 40))
    rig.make_room(10_000)
    for frame in rig.publish(publisher, "a", 40):
        rig.deliver(frame)
        assert rig.subscriber.parked_bytes <= 500
    rig.run(5)
    assert rig.reasons == ["initial", "slow consumer"]
    assert rig.numbers("a")[-1] == 80
    assert rig.subscriber.counters.discarded == 80 - len(rig.numbers("a"))


def test_nothing_is_asked_for_while_much_is_held() -> None:
    rig, publisher = joined(1000)
    rig.fill_queue()
    rig.deliver(*rig.publish(publisher, "a", 8))
    assert rig.subscriber.parked_bytes > 500
    rig.publish(publisher, "b")
    rig.deliver(*rig.publish(publisher, "b"))
    rig.forget_told()
    rig.run(4)
    assert rig.queries == []
    rig.make_room(10_000)
    rig.run(0.5)
    assert rig.numbers("b") == [1, 2]
    assert rig.subscriber.counters.repair.queries == 1
    assert rig.reasons == []


def test_an_answer_that_finds_no_room_stays_missing_and_is_asked_for_again() -> None:
    rig, publisher = joined(1000)
    made = rig.publish(publisher, "a", 60)
    rig.deliver(made[59])
    rig.fill_queue()
    rig.run(0.4)
    assert rig.numbers("a") == [1]
    assert rig.subscriber.parked_bytes <= 1000
    for _ in range(60):
        rig.make_room(2 * len(made[0]))
        rig.run(0.4)
    assert rig.numbers("a") == list(range(1, 61))
    assert rig.reasons == ["initial"]


def test_no_more_is_asked_for_than_there_is_room_for() -> None:
    rig, publisher = joined(1000)
    made = rig.publish(publisher, "a", 200)
    rig.forget_told()
    rig.subscriber.room.bytes_left = 500.0
    rig.deliver(made[199])
    rig.run(0.25)
    (want,) = rig.queries[0].wants
    assert want.first == 1
    assert want.last <= 1500 // len(made[199])
    for _ in range(200):
        rig.make_room(500)
        rig.run(0.25)
    assert rig.numbers("a") == list(range(1, 201))
    assert rig.subscriber.counters.repair.unparked <= 1, "the frame that showed the hole"
    assert rig.reasons == []


def test_without_repair_too_much_in_order_is_for_a_slow_consumer_and_behind_a_hole_for_a_full_queue() -> None:
    rig = Rig(settings=dataclasses.replace(NO_REPAIR, pending_bytes_max=300))
    publisher = rig.publisher()
    rig.join()
    rig.fill_queue()
    rig.deliver(*rig.publish(publisher, "a", 9))
    assert rig.subscriber.room.is_overrun
    rig.make_room(10_000)
    rig.run(0.1)
    assert rig.reasons == ["initial", "slow consumer"]
