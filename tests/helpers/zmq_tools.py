"""What the tests of the ZeroMQ driver share: drivers by URL, and raw sockets in the part of strangers."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import zmq

from pubsub_api import loading
from pubsub_api.driver import PubSubApi
from pubsub_api.publishing.publisher import Publisher
from pubsub_api.testing.conformance.stage import Listener, Speaker, Stage

URL = "zmq://127.0.0.1:0"
SYNC = b"$sync/"
WAIT_MS = 60_000
"""How long a raw socket waits for something that must come."""


def driver_at(url: str) -> PubSubApi:
    return loading.build_driver(loading.conf_from_url(url))


@contextlib.contextmanager
def open_stage(url: str = URL) -> Iterator[Stage]:
    with contextlib.closing(Stage(driver_at(url), driver_at, url)) as stage:
        yield stage


def listener_at(stage: Stage, address: str, *filters: str) -> Listener:
    """A running subscriber, whatever its link is doing."""
    listener = stage.unstarted_subscriber(*filters)
    listener.listen_to([address])
    listener.api.daemonize()
    return listener


class RawPeer:
    """A stranger that speaks the protocol of ZeroMQ (ZMTP 3.0, no security) byte by byte, and so can break it."""

    _GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

    def __init__(self, address: str, kind: bytes) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_MS / 1000)
        self._socket.sendall(self._GREETING)
        self._read(len(self._GREETING))
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        self._socket.sendall(b"\x04" + bytes([len(ready)]) + ready)
        self._read(self._read(2)[1])

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            received = self._socket.recv(count - len(data))
            if not received:
                raise ConnectionError("the other end has closed the connection")
            data += received
        return data

    def send(self, data: bytes, *, more: bool = False) -> None:
        """One part of a message."""
        self.send_raw(self.part(data, more=more))

    @staticmethod
    def part(data: bytes, *, more: bool = False) -> bytes:
        if len(data) < 256:
            return bytes([more, len(data)]) + data
        return bytes([more | 2]) + struct.pack(">Q", len(data)) + data

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def wait_cut(self) -> None:
        """Until the other end has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while self._socket.recv(65536):
                pass

    def close(self) -> None:
        self._socket.close()


class RawSockets:
    """Sockets of a stranger.  ``close`` closes all of them."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        sock = self._context.socket(kind)
        sock.set(zmq.RCVTIMEO, WAIT_MS)
        self._sockets.append(sock)
        return sock

    def publisher(self) -> tuple[zmq.Socket[bytes], str]:
        """A publisher that confirms no subscriptions, and its address."""
        publisher = self.socket(zmq.XPUB)
        return publisher, f"tcp://127.0.0.1:{publisher.bind_to_random_port('tcp://127.0.0.1')}"

    def query_address(self, speaker: Speaker | Publisher) -> str:
        """Where one of our publishers answers queries, as it tells whoever subscribes to a nonce."""
        subscriber = self.socket(zmq.SUB)
        nonce = SYNC + os.urandom(16)
        subscriber.subscribe(nonce)
        subscriber.connect(speaker.address)
        topic, echo = subscriber.recv_multipart()
        magic, version, _publisher, serves, port = struct.unpack(">4sB16sBH", echo)
        assert (topic, magic, version, serves) == (nonce, b"HGSY", 1, 1)
        return f"tcp://127.0.0.1:{port}"

    def close(self) -> None:
        for sock in self._sockets:
            sock.close(0)
        self._context.term()
