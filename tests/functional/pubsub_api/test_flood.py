"""A flood of events, which takes the short way: what is refused, stamped, counted and sent is as for lone events."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import pubsub_api
from pubsub_api import config, errors
from tests.functional.conftest import Bus, Consumer, event
from tests.helpers.waiting import wait_until

TOPIC = "tenant-7/port"


@pytest.fixture
def memory() -> Iterator[Bus]:
    bus = Bus("memory", f"memory://{uuid.uuid4().hex}")
    yield bus
    bus.close()


def joined(bus: Bus, consumer: Consumer, **options: Any) -> pubsub_api.Publisher:
    publisher = bus.session(**options).publisher()
    subscriber = bus.session(**options).subscriber(["#"], consumer.on_event)
    subscriber.wait_ready(timeout_s=60)
    return publisher


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"table": 7}, "table must be a str"),
        ({"key": None}, "key must be a str"),
        ({"action": "update"}, "is none of"),
        ({"action": {"set"}}, "is none of"),
        ({"version": -1}, "version -1 is not an int"),
        ({"version": 2**63}, "is not an int from 0"),
        ({"version": True}, "version True is not an int"),
        ({"version": "1"}, "version '1' is not an int"),
        ({"timestamp": -5}, "timestamp -5 is not an int"),
        ({"value": object()}, "cannot be sent as msgpack"),
        ({"value": "\ud800"}, "cannot be sent as msgpack"),
        ({"value": b"x" * 70_000}, "more than frame_bytes_max allows"),
    ],
)
def test_a_bad_event_is_refused_in_the_midst_of_a_flood_and_the_others_are_not(
    memory: Bus, consumer: Consumer, fields: dict[str, Any], reason: str
) -> None:
    publisher = joined(memory, consumer, frame_bytes_max=65_536)
    for number in range(1, 301):
        publisher.send_event(event(number))
        if number % 7 == 0:
            with pytest.raises(errors.InvalidEvent, match=reason):
                publisher.send_event(msgspec.structs.replace(event(number), **fields))
    publisher.flush(timeout_s=60)
    wait_until(lambda: len(consumer.events) >= 300, 60, "300 events")
    assert consumer.versions == list(range(1, 301))


@pytest.mark.parametrize("topic", ["a//b", "a/#", "", 7, None, ["a"]])
def test_a_bad_topic_is_refused_in_the_midst_of_a_flood(memory: Bus, consumer: Consumer, topic: Any) -> None:
    publisher = joined(memory, consumer)
    for number in range(1, 21):
        publisher.send_event(event(number))
        with pytest.raises(errors.InvalidTopic):
            publisher.send_event(event(number, topic))
    publisher.flush(timeout_s=60)
    wait_until(lambda: len(consumer.events) >= 20, 60, "20 events")
    assert publisher.heads() == {TOPIC: 20}


def test_timestamps_of_a_publisher_only_grow_however_its_events_are_sent(memory: Bus, consumer: Consumer) -> None:
    publisher = joined(memory, consumer, batch_events_max=50)
    number = 0
    for run in (1, 200, 3, 49, 50, 51, 1, 1, 700):
        for _ in range(run):
            number += 1
            publisher.send_event(event(number))
        publisher.send_events([event(number + 1), event(number + 2)])
        number += 2
        if run == 3:
            publisher.flush(timeout_s=60)
    publisher.flush(timeout_s=60)
    wait_until(lambda: len(consumer.events) >= number, 60, "all events")
    stamps = [one.timestamp for one in consumer.events]
    assert consumer.versions == list(range(1, number + 1))
    assert stamps == sorted(set(stamps))


def test_an_event_that_has_a_timestamp_keeps_it_in_a_flood(memory: Bus, consumer: Consumer) -> None:
    publisher = joined(memory, consumer)
    for number in range(1, 101):
        publisher.send_event(event(number, timestamp=number % 2 * 1_000))
    publisher.flush(timeout_s=60)
    wait_until(lambda: len(consumer.events) >= 100, 60, "100 events")
    assert {one.timestamp == 1_000 for one in consumer.events if one.version % 2} == {True}
    assert {one.timestamp > 1_000 for one in consumer.events if not one.version % 2} == {True}


def test_what_was_changed_after_it_was_sent_arrives_as_it_was(memory: Bus, consumer: Consumer) -> None:
    publisher = joined(memory, consumer)
    value = {"n": 0}
    for number in range(1, 101):
        value["n"] = number
        publisher.send_event(event(number, value=value))
    publisher.flush(timeout_s=60)
    wait_until(lambda: len(consumer.events) >= 100, 60, "100 events")
    assert [one.value["n"] for one in consumer.events] == list(range(1, 101))


@pytest.mark.parametrize("size", [10, 200, 300, 5_000])
def test_no_frame_is_larger_than_it_may_be_and_the_backlog_is_bounded(
    memory: Bus, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "SEND_QUEUE_BYTES_MAX", 65_536)
    monkeypatch.setattr(config, "BATCH_BYTES_MAX", 16_384)
    publisher = memory.session().publisher()
    largest = 0
    for number in range(1, 2_001):
        publisher.send_event(event(number, f"t/{number % 5}", value=b"x" * size))
        if number % 100 == 0:
            largest = max(largest, publisher.statistics().backlog_bytes)
    publisher.flush(timeout_s=60)
    statistics = publisher.statistics()
    assert largest <= 65_536
    assert statistics.backlog_bytes == 0
    assert statistics.events == 2_000
    assert statistics.frames >= 2_000 * size / 16_384


def test_a_closed_publisher_refuses_events_after_a_flood(memory: Bus) -> None:
    publisher = memory.session().publisher()
    for number in range(1, 101):
        publisher.send_event(event(number))
    publisher.close()
    with pytest.raises(errors.Closed):
        publisher.send_event(event(101))
    assert publisher.heads() == {TOPIC: 100}
