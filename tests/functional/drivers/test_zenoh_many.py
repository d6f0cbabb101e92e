"""Many of everything on Zenoh: thousands of filters, each an exact topic, and sessions that are opened and closed."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from pubsub_api import Event
from tests.functional.conftest import Bus, Consumer
from tests.helpers.waiting import WAIT_S, wait_joined, wait_until

TOPICS = [f"tenant-{number % 40}/port/{number}" for number in range(10_000)]


def event(topic: str, number: int) -> Event:
    return Event(topic=topic, table="port", key="p", action="set", value=number, version=number)


def test_ten_thousand_exact_filters(consumer: Consumer) -> None:
    bus = Bus("zenoh", "zenoh://127.0.0.1:0?send_wait=10")
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(TOPICS, consumer.on_event, addresses=[publisher.address])
    wait_joined(subscriber, [publisher.address])
    publisher.send_event(event("tenant-1/port/not-wanted", 1))
    publisher.send_events([event(topic, number) for number, topic in enumerate(TOPICS)])
    wait_until(lambda: len(consumer.events) == len(TOPICS), WAIT_S, "all events")
    assert [item.topic for item in consumer.events] == TOPICS
    statistics = subscriber.statistics()
    assert (statistics.repair.gaps, statistics.intake.unwanted) == (0, 1)
    bus.close()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """What is released must not wait for it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.usefixtures("no_garbage_collection")
def test_what_is_closed_keeps_no_descriptor() -> None:
    def open_and_close() -> None:
        bus = Bus("zenoh", "zenoh://127.0.0.1:0")
        publisher = bus.session().publisher()
        subscriber = bus.session().subscriber(["#"], lambda _event: None, addresses=[publisher.address])
        wait_joined(subscriber, [publisher.address])
        for number in range(5):  # enough for a publisher to be declared
            publisher.send_event(event("t", number))
        bus.close()

    open_and_close()  # what the library opens once for the process
    before = descriptors()
    for _ in range(10):
        open_and_close()
    # Zenoh releases the shared memory of a closed session a moment later.
    wait_until(lambda: descriptors() <= before, WAIT_S, "as many descriptors as before")
