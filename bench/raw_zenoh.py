"""Zenoh as one uses it without Heliograph: put and callback, 64 events in a put, and the Advanced pub/sub of zenoh.ext.

Two peers, scouting off, publications that block instead of being dropped.
"""

from __future__ import annotations

import abc
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import zenoh
import zenoh.ext

from bench import events
from bench.ends import OPEN_TIMEOUT_S, Receiver, Sender, wait_while_it_comes
from bench.events import TunedEvent
from bench.sinks import Sink
from pubsub_api.testing.ports import free_port

BATCH = 64
READY_KEY = "bench-ready"
EVERYTHING = "**"
OVERSIZE_BYTES = 1000
DECLARED_MAX = 16
"""Topics that publishers are declared for: beyond, declaring them takes longer than publishing does."""
CACHE_SAMPLES = 100_000
HEARTBEAT_S = 0.2


def open_session(settings: dict[str, Any]) -> zenoh.Session:
    config = zenoh.Config()
    for key, value in (
        {"mode": "peer", "scouting/multicast/enabled": False, "scouting/gossip/enabled": False} | settings
    ).items():
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)


class ZenohSender(Sender):
    def __init__(self, _server: str, *, settings: dict[str, Any] | None = None) -> None:
        self.address = f"tcp/127.0.0.1:{free_port()}"
        self.session = open_session({"listen/endpoints": [self.address]} | (settings or {}))
        # Declarations of a link arrive in order: a subscriber that is answered here has its subscription in effect.
        self._ready = self.session.declare_queryable(READY_KEY, _answer)
        self._publishers: dict[str, Any] = {}

    def publisher(self, topic: str) -> Any:
        known = self._publishers.get(topic)
        if known is None:
            known = self._publishers[topic] = self.declare(topic)
        return known

    def declare(self, topic: str) -> Any:
        return self.session.declare_publisher(topic, congestion_control=zenoh.CongestionControl.BLOCK)

    def close(self) -> None:
        self.session.close()  # type: ignore[no-untyped-call]


def _answer(query: zenoh.Query) -> None:
    with query:
        query.reply(READY_KEY, b"")


class ZenohReceiver(Receiver):
    def __init__(self, _server: str, address: str, topic: str | None, sink: Sink) -> None:
        self.session = open_session({"listen/endpoints": [], "connect/endpoints": [address]})
        self.sink = sink
        self._subscriber = self.subscribe(topic or EVERYTHING, self.callback(sink.on_event))
        deadline = time.monotonic() + OPEN_TIMEOUT_S
        while not any(reply.ok for reply in self.session.get(READY_KEY, timeout=1.0)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no publisher at {address}")
            time.sleep(0.01)

    def subscribe(self, key: str, callback: Callable[[zenoh.Sample], None]) -> Any:
        return self.session.declare_subscriber(key, callback)

    @abc.abstractmethod
    def callback(self, on_event: Callable[[Any], None]) -> Callable[[zenoh.Sample], None]:
        """What zenoh calls with each sample."""

    def run(self) -> None:
        wait_while_it_comes(self.sink)

    def close(self) -> None:
        self.session.close()  # type: ignore[no-untyped-call]


class PutSender(ZenohSender):
    """A put per event, a msgpack map as payload."""

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **options)
        self._pack = msgpack.Packer().pack

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        pack = self._pack
        if len(topics) > DECLARED_MAX:
            put, block = self.session.put, zenoh.CongestionControl.BLOCK
            for number in numbers:
                put(topics[number % len(topics)], pack(events.mapping(number)), congestion_control=block)
            return
        puts = [self.publisher(topic).put for topic in topics]
        for number in numbers:
            puts[number % len(puts)](pack(events.mapping(number)))

    def send(self, topic: str, number: int) -> None:
        self.publisher(topic).put(self._pack(events.mapping(number)))


class PutReceiver(ZenohReceiver):
    @staticmethod
    def version_of(event: Any) -> int:
        return int(event["version"])

    def callback(self, on_event: Callable[[Any], None]) -> Callable[[zenoh.Sample], None]:
        unpack = msgpack.unpackb

        def on_sample(sample: zenoh.Sample) -> None:
            on_event(unpack(sample.payload.to_bytes()))

        return on_sample


class BatchSender(ZenohSender):
    """The bound: 64 events, msgspec arrays, in each put.  Only for a flood: a batch waits until it is full."""

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **options)
        self._encode = msgspec.msgpack.Encoder().encode

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        put, encode = self.publisher(topics[0]).put, self._encode
        batch: list[TunedEvent] = []
        for number in numbers:
            batch.append(events.tuned(number))
            if len(batch) == BATCH:
                put(encode(batch))
                batch = []
        if batch:
            put(encode(batch))

    def send(self, topic: str, number: int) -> None:
        self.publisher(topic).put(self._encode([events.tuned(number)]))


class BatchReceiver(ZenohReceiver):
    def callback(self, on_event: Callable[[Any], None]) -> Callable[[zenoh.Sample], None]:
        decode = msgspec.msgpack.Decoder(list[TunedEvent]).decode

        def on_sample(sample: zenoh.Sample) -> None:
            for event in decode(sample.payload.to_bytes()):
                on_event(event)

        return on_sample


class AdvancedSender(PutSender):
    """zenoh.ext with a cache and heartbeats.  ``drop`` of its samples are lost on their way.

    Zenoh has no fault injection, but a filter that drops what is too large: the samples that shall be lost are padded.
    What the cache answers is a reply and passes.
    """

    def __init__(self, server: str, *, drop: float = 0.0) -> None:
        limit = {
            "id": "loss", "flows": ["egress"], "messages": ["put"], "key_exprs": [EVERYTHING],
            "size_limit": OVERSIZE_BYTES,
        }  # fmt: skip
        super().__init__(server, settings={"low_pass_filter": [limit]} if drop else {})
        self._drop = drop
        self._random = random.Random(1)
        self._sent = 0
        self._dropped_ranges: list[tuple[int, int]] = []

    def declare(self, topic: str) -> Any:
        return zenoh.ext.declare_advanced_publisher(
            self.session, topic, congestion_control=zenoh.CongestionControl.BLOCK,
            cache=zenoh.ext.CacheConfig(max_samples=CACHE_SAMPLES),
            sample_miss_detection=zenoh.ext.MissDetectionConfig(heartbeat=HEARTBEAT_S, sporadic_heartbeat=None),
        )  # fmt: skip

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        for number in numbers:
            self.send(topics[number % len(topics)], number)

    def send(self, topic: str, number: int) -> None:
        event = events.mapping(number)
        self._sent += 1
        if self._random.random() < self._drop:
            event["padding"] = bytes(OVERSIZE_BYTES)
            self._dropped_ranges.append((self._sent, self._sent))
        self.publisher(topic).put(self._pack(event))

    def statistics(self) -> dict[str, Any]:
        return {"dropped": len(self._dropped_ranges), "dropped_ranges": self._dropped_ranges}


class AdvancedReceiver(PutReceiver):
    def __init__(self, server: str, address: str, topic: str | None, sink: Sink) -> None:
        self._misses = 0
        super().__init__(server, address, topic, sink)

    def subscribe(self, key: str, callback: Callable[[zenoh.Sample], None]) -> Any:
        subscriber = zenoh.ext.declare_advanced_subscriber(
            self.session, key, callback, recovery=zenoh.ext.RecoveryConfig(heartbeat=True, periodic_queries=None)
        )
        subscriber.sample_miss_listener(self._on_miss)
        return subscriber

    def _on_miss(self, miss: zenoh.ext.Miss) -> None:
        self._misses += miss.nb
        self.sink.on_resync()

    def statistics(self) -> dict[str, Any]:
        return {"lost": self._misses}
