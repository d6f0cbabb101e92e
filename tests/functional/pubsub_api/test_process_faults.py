"""Processes that are killed, frozen and restarted, servers that go away: nothing is lost in silence.  On real drivers.

The subscriber's log is checked with `tests.helpers.nodes.unexplained`: order kept, nothing twice, and whatever is
missing is covered by a resync that was told in its place.
"""

from __future__ import annotations

import os
import signal

import pytest

import pubsub_api
from pubsub_api import errors
from pubsub_api.testing.fast_conf import fast_conf
from tests.functional.conftest import Bus, event
from tests.helpers.nodes import PublisherNode, SubscriberNode, unexplained
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.waiting import wait_until

TOPIC = "tenant-7/port"
CALM = {"max_idle_time": 0.5}


def fixed_url(bus: Bus) -> str:
    """A URL under which a publisher can come back."""
    return bus.url.replace(":0", f":{free_port()}") if bus.is_bind_based else bus.url


def addresses(bus: Bus, publisher: PublisherNode) -> list[str] | None:
    return [publisher.address] if bus.is_bind_based else None


def test_loss_between_two_processes_is_repaired(process_bus: Bus) -> None:
    lossy = {"drop": 0.1, "repair_attempts_max": 12, **CALM}
    with (
        PublisherNode(process_bus.url, **CALM) as publisher,
        SubscriberNode(process_bus.url, addresses(process_bus, publisher), **lossy) as subscriber,
    ):
        for first in range(1, 3001, 10):
            publisher.send(TOPIC, range(first, first + 10))
        wait_until(lambda: subscriber.last(TOPIC) == 3000, 60, "the last event")
        log = subscriber.log()
        assert unexplained(log, TOPIC, range(1, 3001)) == []
        assert subscriber.resyncs() == ["initial"]
        assert len(log) == 3001


def test_a_frozen_subscriber_is_repaired_from_the_cache(process_bus: Bus) -> None:
    with (
        PublisherNode(process_bus.url, **CALM) as publisher,
        SubscriberNode(process_bus.url, addresses(process_bus, publisher), **CALM) as subscriber,
    ):
        publisher.start_flood(TOPIC, first=1, rate=2000)
        wait_until(lambda: subscriber.last(TOPIC) > 100, 30, "the flood to arrive")
        subscriber.stop()
        frozen_at = publisher.statistics()["events"]
        wait_until(lambda: publisher.statistics()["events"] > frozen_at + 4000, 60, "events while it is frozen")
        subscriber.resume()
        last = publisher.stop_flood()
        wait_until(lambda: subscriber.last(TOPIC) == last, 60, "the last event")
        log = subscriber.log()
        assert unexplained(log, TOPIC, range(1, last + 1)) == []
        assert len(subscriber.numbers(TOPIC)) == last, "repaired, not resynced"


def test_loss_beyond_the_cache_is_covered_by_a_resync(process_bus: Bus) -> None:
    lossy = {"drop": 0.5, "data_only": True, **CALM}
    with (
        PublisherNode(process_bus.url, history=10, **CALM) as publisher,
        SubscriberNode(process_bus.url, addresses(process_bus, publisher), **lossy) as subscriber,
    ):
        publisher.start_flood(TOPIC, first=1, rate=3000)
        wait_until(lambda: "loss" in subscriber.resyncs(), 60, "a loss that nobody can repair")
        last = publisher.stop_flood()
        publisher.send(TOPIC, range(last + 1, last + 2))
        wait_until(lambda: not unexplained(subscriber.log(), TOPIC, range(1, last + 2)), 60, "a settled log")


def test_a_killed_publisher_that_comes_back_is_noticed(process_bus: Bus) -> None:
    url = fixed_url(process_bus)
    with PublisherNode(url, name="api", **CALM) as first:
        subscriber = SubscriberNode(url, addresses(process_bus, first), **CALM)
        with subscriber:
            first.send(TOPIC, range(1, 101))
            wait_until(lambda: subscriber.last(TOPIC) == 100, 30, "the events before")
            first.start_flood(TOPIC, first=101, rate=5000)
            wait_until(lambda: subscriber.last(TOPIC) > 300, 30, "the flood")
            first.kill()
            before = len(subscriber.resyncs())
            with PublisherNode(url, name="api", **CALM) as second:
                wait_until(lambda: len(subscriber.resyncs()) > before, 60, "a resync because of the restart")
                wait_until(lambda: subscriber.statistics()["links_up"] == 1, 60, "the link")
                number = 1_000_000

                def arrives() -> bool:
                    """What is sent while the link comes back may be covered by its resync."""
                    nonlocal number
                    number += 1
                    second.send(TOPIC, [number])
                    return subscriber.last(TOPIC) > 1_000_000

                wait_until(arrives, 60, "events of the new life")
                second.send(TOPIC, range(number + 1, number + 101))
                wait_until(lambda: subscriber.last(TOPIC) == number + 100, 60, "the last of them")
                numbers = subscriber.numbers(TOPIC)
                assert numbers == sorted(set(numbers))
                assert numbers[-100:] == list(range(number + 1, number + 101))


def test_a_publisher_that_says_goodbye_causes_no_resync(process_bus: Bus) -> None:
    url = fixed_url(process_bus)
    with (
        PublisherNode(url, name="api", **CALM) as first,
        SubscriberNode(url, addresses(process_bus, first), **CALM) as subscriber,
    ):
        first.send(TOPIC, range(1, 11))
        first.close()
        wait_until(lambda: subscriber.last(TOPIC) == 10, 30, "the last events")
        assert unexplained(subscriber.log(), TOPIC, range(1, 11)) == []
        assert subscriber.statistics()["lost"] == 0


def test_a_redis_server_that_is_killed_and_restarted() -> None:
    with RedisServer() as server:
        url = server.address
        with PublisherNode(url, **CALM) as publisher, SubscriberNode(url, None, **CALM) as subscriber:
            publisher.send(TOPIC, range(1, 51))
            wait_until(lambda: subscriber.last(TOPIC) == 50, 30, "the events before")
            server.kill()
            wait_until(lambda: subscriber.statistics()["links_up"] == 0, 30, "the loss of the link")
            server.restart()
            wait_until(lambda: "reconnected" in subscriber.resyncs(), 60, "the resync after reconnecting")
            number = 50

            def arrives() -> bool:
                nonlocal number
                number += 1
                publisher.send(TOPIC, [number])
                return subscriber.last(TOPIC) > 50

            wait_until(arrives, 60, "events after the restart")
            wait_until(lambda: subscriber.last(TOPIC) == number, 30, "the last event")
            assert unexplained(subscriber.log(), TOPIC, range(1, number + 1)) == []


def test_a_forked_child_gets_handles_of_its_own_or_a_clear_refusal(process_bus: Bus) -> None:
    with pubsub_api.open(conf=fast_conf(process_bus.url)) as session:
        publisher = session.publisher(name="parent")
        publisher.send_event(event(1))
        guid = publisher.guid
        pid = os.fork()
        if pid == 0:
            signal.alarm(90)
            code = 1
            try:
                publisher.send_event(event(2))
                publisher.flush(timeout_s=60)
                code = 10 if publisher.guid != guid else 11
            except errors.Forked:
                code = 12
            except errors.AddressInUse:
                code = 13
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        publisher.send_event(event(3))
        publisher.flush(timeout_s=20)
        assert publisher.statistics().events == 2, "the parent is not disturbed"
    # A bind-based child with an ephemeral port gets one of its own; on a fixed port it would be refused.
    assert code == {"redis": 10, "zmq": 10, "zenoh": 12, "longpoll": 12}[process_bus.driver]


def test_a_forked_child_cannot_take_the_parents_port() -> None:
    with pubsub_api.open(conf=fast_conf(f"zmq://127.0.0.1:{free_port()}")) as session:
        publisher = session.publisher()
        pid = os.fork()
        if pid == 0:
            signal.alarm(90)
            code = 1
            try:
                publisher.send_event(event(1))
            except errors.AddressInUse:
                code = 13
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 13


def test_two_publishers_cannot_share_an_address() -> None:
    with pubsub_api.open(f"zmq://127.0.0.1:{free_port()}") as session:
        session.publisher()
        with pytest.raises(errors.AddressInUse, match="127.0.0.1"):
            session.publisher()
