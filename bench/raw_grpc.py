"""gRPC as one uses it without Heliograph: a unary call per event to each subscriber, and 64 events per call.

A receiver is a server of its own and tells the sender where it is; the sender then calls it, as systems do that notify
their peers by gRPC.  Each call waits for its answer: with several under way events would overtake each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgpack  # type: ignore[import-untyped]
import msgspec

from bench import events
from bench.ends import OPEN_TIMEOUT_S, Receiver, Sender, wait_while_it_comes
from bench.events import TunedEvent
from bench.sinks import Sink

BATCH = 64
_JOIN, _EVENT = "/bench/Join", "/bench/Event"


def _serve(method: str, handle: Callable[[bytes], None]) -> tuple[grpc.Server, str]:
    """A server with one method, on a free port."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            if handler_call_details.method != method:
                return None

            def answer(request: bytes, _context: grpc.ServicerContext) -> bytes:
                handle(request)
                return b""

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(1))  # one thread: events must not overtake each other
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


class GrpcSender(Sender):
    def __init__(self, _server: str) -> None:
        self._channels: list[grpc.Channel] = []
        self.calls: list[Any] = []
        self._joined = threading.Condition()
        self._server, self.address = _serve(_JOIN, self._on_join)

    def _on_join(self, address: bytes) -> None:
        channel = grpc.insecure_channel(address.decode())
        with self._joined:
            self._channels.append(channel)
            self.calls.append(channel.unary_unary(_EVENT))
            self._joined.notify_all()

    def wait_receivers(self, count: int) -> None:
        with self._joined:
            self._joined.wait_for(lambda: len(self.calls) >= count, OPEN_TIMEOUT_S)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self._server.stop(0).wait()


class GrpcReceiver(Receiver):
    """Decodes what a call carries and gives it to the sink."""

    def __init__(self, _server: str, address: str, _topic: str | None, sink: Sink) -> None:
        self.sink = sink
        self._server, own = _serve(_EVENT, self.on_call)
        with grpc.insecure_channel(address) as channel:
            join: Any = channel.unary_unary(_JOIN)
            join(own.encode(), timeout=OPEN_TIMEOUT_S)

    def on_call(self, payload: bytes) -> None:
        self.sink.on_event(msgpack.unpackb(payload))

    @staticmethod
    def version_of(event: Any) -> int:
        return int(event["version"])

    def run(self) -> None:
        wait_while_it_comes(self.sink)

    def close(self) -> None:
        self._server.stop(0).wait()


class UnarySender(GrpcSender):
    """A call per event, each waiting for its answer."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self._pack = msgpack.Packer().pack

    def flood(self, _topics: Sequence[str], numbers: range) -> None:
        pack, calls = self._pack, self.calls
        for number in numbers:
            payload = pack(events.mapping(number))
            for call in calls:
                call(payload)

    def send(self, _topic: str, number: int) -> None:
        payload = self._pack(events.mapping(number))
        for call in self.calls:
            call(payload)


class BatchSender(GrpcSender):
    """The bound: 64 events, msgspec arrays, in each call.  Only for a flood: a batch waits until it is full."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self._encode = msgspec.msgpack.Encoder().encode

    def flood(self, _topics: Sequence[str], numbers: range) -> None:
        batch: list[TunedEvent] = []
        for number in numbers:
            batch.append(events.tuned(number))
            if len(batch) == BATCH:
                self._call(batch)
                batch = []
        if batch:
            self._call(batch)

    def send(self, _topic: str, number: int) -> None:
        self._call([events.tuned(number)])

    def _call(self, batch: list[TunedEvent]) -> None:
        payload = self._encode(batch)
        for call in self.calls:
            call(payload)


class BatchReceiver(GrpcReceiver):
    def __init__(self, server: str, address: str, topic: str | None, sink: Sink) -> None:
        self._decode = msgspec.msgpack.Decoder(list[TunedEvent]).decode
        super().__init__(server, address, topic, sink)

    def on_call(self, payload: bytes) -> None:
        for event in self._decode(payload):
            self.sink.on_event(event)

    @staticmethod
    def version_of(event: Any) -> int:
        return int(event.version)
