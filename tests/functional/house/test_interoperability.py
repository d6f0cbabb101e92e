"""Programs that know nothing of Heliograph: what they publish is passed on, and what we publish they can read."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import redis
import zenoh
import zmq

from tests.functional.conftest import Bus, Consumer, event
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until


def read_plain(frame: bytes) -> tuple[str, list[list[Any]]]:
    """Topic and events of a frame, with nothing but a msgpack library and the table in docs/wire-format.md."""
    magic, version, kind, _flags, _guid, first, after, count, _timestamp, topic, body, _mac = msgpack.unpackb(frame)
    assert (magic, version, kind) == ("HG", 1, 1)
    assert first == after + 1
    assert len(body) == count
    return topic, body


def read_until(receive: Callable[[], bytes], count: int) -> list[list[Any]]:
    events: list[list[Any]] = []
    while len(events) < count:
        frame = receive()
        if msgpack.unpackb(frame)[2] == 1:
            events += read_plain(frame)[1]
    return events


EXPECTED = [["port", f"p{number % 10}", "set", {"n": number}, number] for number in (1, 2, 3)]


def without_timestamps(events: list[list[Any]]) -> list[list[Any]]:
    return [item[:5] for item in events]


def test_a_plain_redis_subscriber_reads_our_frames(redis_server: Any) -> None:
    bus = Bus("redis", f"{redis_server.address}?channel_prefix=plain:")
    with redis.Redis.from_url(redis_server.address) as client, client.pubsub() as channel:
        channel.subscribe("plain:tenant-7/port")
        assert channel.get_message(timeout=60)["type"] == "subscribe"
        publisher = bus.session().publisher()
        publisher.send_events([event(1), event(2), event(3)])
        received = read_until(lambda: channel.get_message(ignore_subscribe_messages=True, timeout=60)["data"], 3)
        assert without_timestamps(received) == EXPECTED
    bus.close()


def test_a_plain_zmq_subscriber_reads_our_frames() -> None:
    bus = Bus("zmq", "zmq://127.0.0.1:0")
    publisher = bus.session().publisher()
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.connect(publisher.address)
        subscriber.subscribe(b"tenant-7/port\0")
        subscriber.setsockopt(zmq.RCVTIMEO, 100)

        def is_joined() -> bool:
            publisher.send_event(event(0))
            try:
                return bool(subscriber.recv_multipart())
            except zmq.Again:
                return False

        wait_until(is_joined, 60, "the plain subscriber to join")
        subscriber.setsockopt(zmq.RCVTIMEO, 60_000)
        publisher.send_events([event(1), event(2), event(3)])
        received: list[list[Any]] = []
        while len(received) < 3:
            received += [item for item in read_until(lambda: subscriber.recv_multipart()[1], 1) if item[4]]
        assert without_timestamps(received) == EXPECTED
    bus.close()


def test_a_plain_zenoh_subscriber_reads_our_frames() -> None:
    port = free_port()
    bus = Bus("zenoh", f"zenoh://127.0.0.1:{port}")
    publisher = bus.session().publisher()
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with plain_zenoh(port) as session:
        session.declare_subscriber("heliograph/tenant-7/port", lambda sample: frames.put(sample.payload.to_bytes()))

        def is_joined() -> bool:
            publisher.send_event(event(0))
            return not frames.empty()

        wait_until(is_joined, 60, "the plain subscriber to join")
        publisher.send_events([event(1), event(2), event(3)])
        received: list[list[Any]] = []
        while len(received) < 3:
            received += [item for item in read_until(lambda: frames.get(timeout=60), 1) if item[4]]
        assert without_timestamps(received) == EXPECTED
    bus.close()


def plain_zenoh(port: int) -> zenoh.Session:
    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", f'["tcp/127.0.0.1:{port}"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    return zenoh.open(config)


def expect_foreign(consumer: Consumer, send: Callable[[], object]) -> None:
    """What a plain publisher sends arrives, unnumbered, as bytes, in an event with its topic."""

    def has_arrived() -> bool:
        send()
        return bool(consumer.events)

    wait_until(has_arrived, 60, "the plain message")
    item = consumer.events[0]
    assert (item.topic, item.value, item.version, item.action) == ("tenant-7/plain", b"not a frame", 0, "set")


@pytest.fixture
def reliable() -> Consumer:
    return Consumer()


def test_a_plain_redis_publisher_is_heard(redis_server: Any, reliable: Consumer) -> None:
    bus = Bus("redis", f"{redis_server.address}?channel_prefix=plain2:")
    subscriber = bus.session().subscriber(["tenant-7/#"], reliable.on_event)
    subscriber.wait_ready(timeout_s=60)
    with redis.Redis.from_url(redis_server.address) as client:
        expect_foreign(reliable, lambda: client.publish("plain2:tenant-7/plain", b"not a frame"))
    assert subscriber.statistics().intake.foreign >= 1
    assert subscriber.statistics().bad_frames == {}
    bus.close()


def test_a_plain_zmq_publisher_is_heard(reliable: Consumer) -> None:
    bus = Bus("zmq", "zmq://127.0.0.1:0")
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        bus.session().subscriber(["tenant-7/#"], reliable.on_event, addresses=[f"tcp://127.0.0.1:{port}"])
        expect_foreign(reliable, lambda: publisher.send_multipart([b"tenant-7/plain", b"not a frame"]))
    bus.close()


def test_a_plain_zenoh_publisher_is_heard(reliable: Consumer) -> None:
    port = free_port()
    bus = Bus("zenoh", f"zenoh://127.0.0.1:{port}")
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["tenant-7/#"], reliable.on_event, addresses=[publisher.address])
    subscriber.wait_ready(timeout_s=60)
    # A peer does not route between its clients, so the plain publisher listens itself and is one more address.
    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    own_port = free_port()
    config.insert_json5("listen/endpoints", f'["tcp/127.0.0.1:{own_port}"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config) as session:
        subscriber.listen_to(publisher.address.replace(str(port), str(own_port)))
        expect_foreign(reliable, lambda: session.put("heliograph/tenant-7/plain", b"not a frame"))
        session.delete("heliograph/tenant-7/plain")
        wait_until(lambda: reliable.events[-1].action == "delete", 60, "the deletion")
        assert reliable.events[-1].value is None
    bus.close()
