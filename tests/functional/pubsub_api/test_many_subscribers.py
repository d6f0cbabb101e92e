"""Many subscribers in one process: they share threads, and what one of them does holds up none of the others."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pubsub_api import Event, Publisher, Subscriber
from tests.functional.conftest import Bus, Consumer, event
from tests.helpers.waiting import wait_joined, wait_until

WAIT_S = 60.0
MANY = 30
THREADS_MAX = 16
"""Of a process with a publisher and any number of subscribers by ZeroMQ."""


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Callbacks that wait for it last until the end of the test."""
    opened = threading.Event()
    yield opened
    opened.set()


@pytest.fixture(params=["zmq"])
def zmq_bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    bus = Bus(request.param, "zmq://127.0.0.1:0?send_wait=20")
    yield bus
    bus.close()


def subscribe(bus: Bus, publisher: Publisher, topic: str, on_event: Any) -> Subscriber:
    addresses = bus.addresses(publisher)
    subscriber = bus.session().subscriber([topic], on_event, addresses=addresses)
    wait_joined(subscriber, addresses)
    return subscriber


def test_many_subscribers_have_as_many_threads_as_one(zmq_bus: Bus) -> None:
    before = len(os.listdir("/proc/self/task"))
    publisher = zmq_bus.session().publisher()
    consumers = [Consumer() for _ in range(MANY)]
    for number, consumer in enumerate(consumers):
        subscribe(zmq_bus, publisher, f"t/{number}", consumer.on_event)
    for number in range(MANY):
        publisher.send_event(event(number + 1, f"t/{number}"))
    wait_until(lambda: [one.versions for one in consumers] == [[n + 1] for n in range(MANY)], WAIT_S, "the events")
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= before + THREADS_MAX, WAIT_S, "idle threads to end")


def test_callbacks_that_last_hold_up_no_other_subscriber(bus: Bus, gate: threading.Event) -> None:
    publisher = bus.session().publisher()
    entered: list[int] = []

    def last(got: Event) -> None:
        entered.append(got.version)
        gate.wait(WAIT_S)

    count = 8
    for number in range(count):
        subscribe(bus, publisher, f"slow/{number}", last)
    consumer = Consumer()
    subscribe(bus, publisher, "quick", consumer.on_event)
    for number in range(count):
        publisher.send_event(event(number + 1, f"slow/{number}"))
    wait_until(lambda: sorted(entered) == list(range(1, count + 1)), WAIT_S, "every callback that lasts")
    for number in range(1, 101):
        publisher.send_event(event(number, "quick"))
    wait_until(lambda: consumer.versions == list(range(1, 101)), WAIT_S, "events of another subscriber meanwhile")
    assert not gate.is_set()
    gate.set()


def test_a_callback_may_close_other_subscribers_and_wait_for_events_of_others(bus: Bus) -> None:
    publisher = bus.session().publisher()
    other, awaited = Consumer(), threading.Event()
    others = [subscribe(bus, publisher, f"other/{number}", other.on_event) for number in range(3)]
    subscribe(bus, publisher, "awaited", lambda _got: awaited.set())
    done: list[bool] = []

    def on_event(_got: Event) -> None:
        for one in others:
            one.close()
        publisher.send_event(event(1, "awaited"))
        done.append(awaited.wait(WAIT_S))

    subscribe(bus, publisher, "t", on_event)
    publisher.send_event(event(1, "t"))
    wait_until(lambda: done == [True], WAIT_S, "the callback to return")
    publisher.send_event(event(2, "other/1"))
    publisher.send_event(event(2, "t"))
    wait_until(lambda: done == [True, True], WAIT_S, "the next event")
    assert other.versions == []


def test_a_name_that_is_not_found_for_long_holds_up_no_other_subscriber(
    zmq_bus: Bus, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, consumer: Consumer
) -> None:
    asked = threading.Event()
    look_up = socket.getaddrinfo

    def look_up_slowly(name: Any, *rest: Any, **named: Any) -> Any:
        if name != "nowhere.invalid":
            return look_up(name, *rest, **named)
        asked.set()
        gate.wait(WAIT_S)
        raise OSError("no answer")

    monkeypatch.setattr(socket, "getaddrinfo", look_up_slowly)
    publisher = zmq_bus.session().publisher()
    zmq_bus.session().subscriber(["t"], consumer.on_event, addresses=["tcp://nowhere.invalid:5555"])
    assert asked.wait(WAIT_S)
    subscribe(zmq_bus, publisher, "t", consumer.on_event)
    publisher.send_event(event(1, "t"))
    wait_until(lambda: consumer.versions == [1], WAIT_S, "an event from a publisher that has an address")
    assert not gate.is_set()
    gate.set()


def test_a_publisher_is_reached_by_its_name(zmq_bus: Bus, consumer: Consumer) -> None:
    publisher = zmq_bus.session().publisher()
    address = publisher.address.replace("127.0.0.1", "localhost")
    if socket.AF_INET not in {one[0] for one in socket.getaddrinfo("localhost", None)}:
        pytest.skip("localhost has no address of IPv4")
    subscriber = zmq_bus.session().subscriber(["t"], consumer.on_event, addresses=[address])
    wait_joined(subscriber, [address])
    publisher.send_event(event(1, "t"))
    wait_until(lambda: consumer.versions == [1], WAIT_S, "the event")


def test_a_forked_child_has_subscribers_of_its_own(zmq_bus: Bus, consumer: Consumer) -> None:
    publisher = zmq_bus.session().publisher()
    inherited = subscribe(zmq_bus, publisher, "t", consumer.on_event)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            inherited.close()
            got = threading.Event()
            bus = Bus("zmq", "zmq://127.0.0.1:0")
            own = bus.session().subscriber(["t"], lambda _got: got.set(), addresses=[publisher.address])
            own.wait_ready(timeout_s=WAIT_S)
            os.write(write, b"r")
            if got.wait(WAIT_S):
                bus.close()
                code = 0
        finally:
            os._exit(code)
    assert os.read(read, 1) == b"r"
    publisher.send_event(event(1, "t"))
    assert os.waitpid(pid, 0)[1] == 0
    wait_until(lambda: consumer.versions == [1], WAIT_S, "the event, in the parent as well")
    os.close(read)
    os.close(write)
