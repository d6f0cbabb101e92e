"""Redis pub/sub as one uses redis-py, with hiredis, without Heliograph: plain, pipelined, and in batches of 64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import redis
import redis.utils

from bench import events
from bench.ends import OPEN_TIMEOUT_S, QUIET_S, Receiver, Sender
from bench.events import TunedEvent
from bench.sinks import Sink

BATCH = 64
EVERYTHING = "tenant-*"


class RedisSender(Sender):
    def __init__(self, server: str) -> None:
        if not redis.utils.HIREDIS_AVAILABLE:
            raise RuntimeError("hiredis is not installed: redis-py without it is not what is to be compared with")
        self.address = server
        self.client = redis.Redis.from_url(server, socket_timeout=OPEN_TIMEOUT_S)

    def close(self) -> None:
        self.client.close()


class RedisReceiver(Receiver):
    def __init__(self, server: str, _address: str, topic: str | None, sink: Sink) -> None:
        self._client = redis.Redis.from_url(server, socket_timeout=OPEN_TIMEOUT_S)
        self.pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        if topic is None:
            self.pubsub.psubscribe(EVERYTHING)
        else:
            self.pubsub.subscribe(topic)
        confirmation = self.pubsub.get_message(timeout=OPEN_TIMEOUT_S)
        if confirmation is None or not confirmation["type"].endswith("subscribe"):
            raise RuntimeError(f"redis did not confirm the subscription: {confirmation}")
        self.sink = sink

    def close(self) -> None:
        self.pubsub.close()
        self._client.close()


class PlainSender(RedisSender):
    """A PUBLISH per event, each waiting for its answer: what ``client.publish`` does."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self._pack = msgpack.Packer().pack

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        publish, pack = self.client.publish, self._pack
        for number in numbers:
            publish(topics[number % len(topics)], pack(events.mapping(number)))

    def send(self, topic: str, number: int) -> None:
        self.client.publish(topic, self._pack(events.mapping(number)))


class PlainReceiver(RedisReceiver):
    @staticmethod
    def version_of(event: Any) -> int:
        return int(event["version"])

    def run(self) -> None:
        unpack, on_event, receive = msgpack.unpackb, self.sink.on_event, self.pubsub.get_message
        while not self.sink.ended_ns:
            message = receive(timeout=QUIET_S)
            if message is None:
                self.sink.give_up(QUIET_S)
            else:
                on_event(unpack(message["data"]))


class PipelinedSender(PlainSender):
    """64 PUBLISH commands per round trip, still one message per event."""

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        pack, pipeline = self._pack, self.client.pipeline(transaction=False)
        for number in numbers:
            pipeline.publish(topics[number % len(topics)], pack(events.mapping(number)))
            if number % BATCH == 0:
                pipeline.execute()
        pipeline.execute()


class BatchSender(RedisSender):
    """The bound: 64 events, msgspec arrays, in each PUBLISH.  Only for a flood: a batch waits until it is full."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self._encode = msgspec.msgpack.Encoder().encode

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        publish, encode, topic = self.client.publish, self._encode, topics[0]
        batch: list[TunedEvent] = []
        for number in numbers:
            batch.append(events.tuned(number))
            if len(batch) == BATCH:
                publish(topic, encode(batch))
                batch = []
        if batch:
            publish(topic, encode(batch))

    def send(self, topic: str, number: int) -> None:
        self.client.publish(topic, self._encode([events.tuned(number)]))


class BatchReceiver(RedisReceiver):
    def run(self) -> None:
        on_event, receive = self.sink.on_event, self.pubsub.get_message
        decode = msgspec.msgpack.Decoder(list[TunedEvent]).decode
        while not self.sink.ended_ns:
            message = receive(timeout=QUIET_S)
            if message is None:
                self.sink.give_up(QUIET_S)
            else:
                for event in decode(message["data"]):
                    on_event(event)
