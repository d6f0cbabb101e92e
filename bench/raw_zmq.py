"""ZeroMQ as one uses it without Heliograph: plain, tuned, and with 64 events in a frame.

Queues are unbounded unless ``high_water_mark`` says otherwise, because pyzmq loses events in silence at its default of
1000 messages.  The sender is an XPUB, which publishes like a PUB and sees subscriptions arrive.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import zmq

from bench import events
from bench.ends import OPEN_TIMEOUT_S, QUIET_S, Receiver, Sender
from bench.events import TOPIC_BYTES, TunedEvent
from bench.sinks import Sink

BATCH = 64
DEFAULT_HIGH_WATER_MARK = 1000


class ZmqSender(Sender):
    def __init__(self, _server: str, *, high_water_mark: int = 0) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.XPUB)
        self.socket.setsockopt(zmq.SNDHWM, high_water_mark)
        self.socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.socket.setsockopt(zmq.RCVTIMEO, int(OPEN_TIMEOUT_S * 1000))
        self.socket.bind("tcp://127.0.0.1:*")
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def wait_receivers(self, count: int) -> None:
        for _ in range(count):
            self.socket.recv()

    def close(self) -> None:
        self.socket.close(linger=0)
        self._context.term()


class ZmqReceiver(Receiver):
    def __init__(self, _server: str, address: str, topic: str | None, sink: Sink, *, high_water_mark: int = 0) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, high_water_mark)
        self.socket.setsockopt(zmq.RCVTIMEO, int(QUIET_S * 1000))
        self.socket.setsockopt(zmq.SUBSCRIBE, (topic or "").encode())
        self.socket.connect(address)
        self.sink = sink

    def run(self) -> None:
        try:
            self.receive()
        except zmq.Again:
            self.sink.give_up(QUIET_S)

    @abc.abstractmethod
    def receive(self) -> None:
        """The loop of the case.  Raises zmq.Again when nothing came for `QUIET_S`."""

    def close(self) -> None:
        self.socket.close(linger=0)
        self._context.term()


class MultipartSender(ZmqSender):
    """As in the pyzmq guide: topic and payload as two parts, a msgpack map per message."""

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **options)
        self._pack = msgpack.Packer().pack

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        send, pack, names = self.socket.send_multipart, self._pack, [topic.encode() for topic in topics]
        for number in numbers:
            send([names[number % len(names)], pack(events.mapping(number))])

    def send(self, topic: str, number: int) -> None:
        self.socket.send_multipart([topic.encode(), self._pack(events.mapping(number))])


class MultipartReceiver(ZmqReceiver):
    @staticmethod
    def version_of(event: Any) -> int:
        return int(event["version"])

    def receive(self) -> None:
        receive, unpack, on_event = self.socket.recv_multipart, msgpack.unpackb, self.sink.on_event
        while not self.sink.ended_ns:
            _, payload = receive()
            on_event(unpack(payload))


class TunedSender(ZmqSender):
    """Tuned: topic and payload in one part, a msgspec array per message."""

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **options)
        self._encode = msgspec.msgpack.Encoder().encode

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        send, encode, names = self.socket.send, self._encode, [topic.encode() for topic in topics]
        for number in numbers:
            send(names[number % len(names)] + encode(events.tuned(number)))

    def send(self, topic: str, number: int) -> None:
        self.socket.send(topic.encode() + self._encode(events.tuned(number)))


class TunedReceiver(ZmqReceiver):
    def receive(self) -> None:
        receive, decode, on_event = self.socket.recv, msgspec.msgpack.Decoder(TunedEvent).decode, self.sink.on_event
        while not self.sink.ended_ns:
            on_event(decode(memoryview(receive())[TOPIC_BYTES:]))


class BatchSender(ZmqSender):
    """The bound: the tuned form, 64 events in each message.  Only for a flood: a batch waits until it is full."""

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **options)
        self._encode = msgspec.msgpack.Encoder().encode

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        send, encode, name = self.socket.send, self._encode, topics[0].encode()
        batch: list[TunedEvent] = []
        for number in numbers:
            batch.append(events.tuned(number))
            if len(batch) == BATCH:
                send(name + encode(batch))
                batch = []
        if batch:
            send(name + encode(batch))

    def send(self, topic: str, number: int) -> None:
        self.socket.send(topic.encode() + self._encode([events.tuned(number)]))


class BatchReceiver(ZmqReceiver):
    def receive(self) -> None:
        receive, on_event = self.socket.recv, self.sink.on_event
        decode = msgspec.msgpack.Decoder(list[TunedEvent]).decode
        while not self.sink.ended_ns:
            for event in decode(memoryview(receive())[TOPIC_BYTES:]):
                on_event(event)
