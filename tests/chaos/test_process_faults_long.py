"""Long runs of real faults between real processes.  `tests/functional/pubsub_api/test_process_faults.py` has the short
samples."""

from __future__ import annotations

import random
import time

import pytest

from tests.functional.conftest import Bus, process_bus, redis_server  # noqa: F401 - fixtures
from tests.helpers.nodes import PublisherNode, SubscriberNode, unexplained
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TOPIC = "tenant-7/port"
STEADY = {"max_idle_time": 1.0, "missed_hellos_max": 10}


def listen_addresses(bus: Bus, publisher: PublisherNode) -> list[str] | None:
    return [publisher.address] if bus.is_bind_based else None


def freeze(subscriber: SubscriberNode, publisher: PublisherNode, events: int) -> None:
    """Stop the subscriber's process until the publisher has sent that many events more."""
    subscriber.stop()
    resume_at = publisher.statistics()["events"] + events
    wait_until(lambda: publisher.statistics()["events"] >= resume_at, 120, f"{events} events")
    subscriber.resume()


def test_a_subscriber_frozen_for_15_s_at_20_000_events_a_second_is_repaired(process_bus: Bus) -> None:  # noqa: F811
    with (
        PublisherNode(process_bus.url, **STEADY) as publisher,
        SubscriberNode(process_bus.url, listen_addresses(process_bus, publisher), **STEADY) as subscriber,
    ):
        publisher.start_flood(TOPIC, first=1, rate=20_000)
        wait_until(lambda: subscriber.last(TOPIC) > 1000, 60, "the flood")
        freeze(subscriber, publisher, 15 * 20_000)
        last = publisher.stop_flood()
        wait_until(lambda: subscriber.last(TOPIC) == last, 240, "the last event")
        assert unexplained(subscriber.log(), TOPIC, range(1, last + 1)) == []
        # A broker may cut the link of a client that does not read; then what passed meanwhile cannot be known.
        assert set(subscriber.resyncs()) <= {"initial", "reconnected"}


def test_a_subscriber_frozen_for_15_s_gets_one_covering_resync_when_the_cache_is_small(
    process_bus: Bus,  # noqa: F811
) -> None:
    with (
        PublisherNode(process_bus.url, history=1000, **STEADY) as publisher,
        SubscriberNode(process_bus.url, listen_addresses(process_bus, publisher), **STEADY) as subscriber,
    ):
        publisher.start_flood(TOPIC, first=1, rate=20_000)
        wait_until(lambda: subscriber.last(TOPIC) > 1000, 60, "the flood")
        freeze(subscriber, publisher, 15 * 20_000)
        last = publisher.stop_flood()
        publisher.send(TOPIC, [last + 1])
        wait_until(lambda: not unexplained(subscriber.log(), TOPIC, range(1, last + 2)), 120, "a settled log")
        # Where the server kept everything for it, nothing was lost; where it cut the link, that is a reason of its own.
        assert subscriber.resyncs().count("loss") <= 1
        assert set(subscriber.resyncs()) <= {"initial", "loss", "reconnected"}


def test_publishers_killed_again_and_again(process_bus: Bus) -> None:  # noqa: F811
    url = process_bus.url.replace(":0", f":{free_port()}") if process_bus.is_bind_based else process_bus.url
    chance = random.Random(11)
    publisher = PublisherNode(url, name="api", **STEADY)
    with SubscriberNode(url, listen_addresses(process_bus, publisher), drop=0.02, **STEADY) as subscriber:
        for life in range(1, 9):
            first = life * 1_000_000
            publisher.start_flood(TOPIC, first=first, rate=5000)
            until = first + chance.randrange(500, 5000)
            wait_until(lambda u=until: subscriber.last(TOPIC) > u, 60, f"the flood of life {life}")
            publisher.kill()
            before = len(subscriber.resyncs())
            publisher = PublisherNode(url, name="api", **STEADY)
            wait_until(lambda b=before: len(subscriber.resyncs()) > b, 60, f"the resync after life {life}")
            wait_until(lambda: subscriber.statistics()["links_up"] == 1, 60, "the link")
        numbers = subscriber.numbers(TOPIC)
        publisher.kill()
        for life in range(1, 9):
            # Each life is a stream of its own: order is promised within it.
            own = [number for number in numbers if number // 1_000_000 == life]
            assert own == sorted(set(own))


def test_a_minute_of_loss_on_many_topics(process_bus: Bus) -> None:  # noqa: F811
    topics = [f"tenant-{number}/port" for number in range(50)]
    lossy = {"drop": 0.05, "repair_attempts_max": 12, **STEADY}
    with (
        PublisherNode(process_bus.url, **STEADY) as publisher,
        SubscriberNode(process_bus.url, listen_addresses(process_bus, publisher), **lossy) as subscriber,
    ):
        sent = 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for topic in topics:
                publisher.send(topic, range(sent + 1, sent + 11))
            sent += 10
        wait_until(lambda: all(subscriber.last(topic) == sent for topic in topics), 120, "the last events")
        log = subscriber.log()
        for topic in topics:
            assert unexplained(log, topic, range(1, sent + 1)) == []
        assert subscriber.resyncs() == ["initial"]
