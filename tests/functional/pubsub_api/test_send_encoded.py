"""Forwarding events that another process encoded: the same promises as for events that are sent one by one."""

from __future__ import annotations

import pytest

from pubsub_api import config, errors
from pubsub_api.core.events import encode_event
from tests.functional.conftest import Bus, Consumer, event
from tests.helpers.waiting import wait_until


def encoded(numbers: range) -> list[bytes]:
    return [encode_event(event(number), 1000 + number) for number in numbers]


def test_encoded_events_arrive_like_others_and_between_them(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["tenant-7/#"], consumer.on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    publisher.send_event(event(1))
    publisher.send_encoded("tenant-7/port", encoded(range(2, 1500)))
    publisher.send_event(event(1500))
    publisher.send_encoded("tenant-7/port", [])
    publisher.send_encoded("tenant-7/port", encoded(range(1501, 1505)), is_flush_next=True)
    publisher.send_encoded("tenant-7/port", encoded(range(1505, 1510)), is_flush_next=True)
    publisher.flush(timeout_s=20)
    wait_until(lambda: len(consumer.events) >= 1509, 20, "1,509 events")
    assert consumer.versions == list(range(1, 1510))
    assert consumer.events[1].timestamp == 1002, "the stamp is that of who encoded it"
    assert publisher.heads() == {"tenant-7/port": 1509}


def test_a_backlog_that_is_full_is_sent_by_the_caller(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "SEND_QUEUE_BYTES_MAX", 2048)
    publisher = bus.session().publisher()
    publisher.send_encoded("a", [b"\xc0" * 100] * 30)
    assert publisher.statistics().events == 30


def test_what_cannot_be_sent_is_refused_whole(bus: Bus) -> None:
    publisher = bus.session(frame_bytes_max=65_536).publisher()
    with pytest.raises(errors.InvalidEvent, match="frame_bytes_max"):
        publisher.send_encoded("a", [b"\xc0", b"\xc0" * 70_000])
    with pytest.raises(errors.InvalidTopic):
        publisher.send_encoded("a//b", [b"\xc0"])
    publisher.flush(timeout_s=20)
    assert publisher.heads() == {}
    publisher.close()
    with pytest.raises(errors.Closed):
        publisher.send_encoded("a", [b"\xc0"])


def test_an_event_that_is_forwarded_alone_keeps_its_place_among_others(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["tenant-7/#"], consumer.on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    first, second, third, fourth = encoded(range(1, 5))
    assert not publisher.send_encoded_alone("tenant-7/port", first), "its topic is new"
    publisher.send_encoded("tenant-7/port", [first], is_flush_next=True)
    publisher.flush(timeout_s=20)
    wait_until(lambda: publisher.send_encoded_alone("tenant-7/port", second), 20, "the publisher's thread is done")
    publisher.send_encoded("tenant-7/port", [third], is_flush_next=True)
    if not publisher.send_encoded_alone("tenant-7/port", fourth):  # else the thread has sent the one before already
        publisher.send_encoded("tenant-7/port", [fourth])
    assert not publisher.send_encoded_alone("tenant-7/port", bytes(2**24)), "too large"
    wait_until(lambda: len(consumer.events) >= 4, 20, "4 events")
    assert consumer.versions == [1, 2, 3, 4]
    assert not publisher.has_untold
