"""Sockets of one thread: a selector with a way to wake it, and connections that never block.

Best effort: what cannot be sent because a connection is gone or its peer does not read is dropped and counted.  The
protocol above repeats whatever matters.
"""

from __future__ import annotations

import contextlib
import socket

from pubsub_api.errors import FrameError
from shared_subscriptions.wire import Unsealer, seal

_READ_BYTES = 1 << 18


def split_endpoint(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address: str) -> socket.socket:
    """A listening socket at a free port.  Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind((address, 0))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


class MessageConnection:
    """One end of a connection.  Owned by one thread."""

    def __init__(self, end: socket.socket, key: bytes, *, bytes_max: int, is_stranger: bool = False) -> None:
        """``is_stranger``: until its first valid message, the peer may send no more than a greeting needs."""
        end.setblocking(False)
        with contextlib.suppress(OSError):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end = end
        self.is_open = True
        self.dropped = 0
        """Messages that were not sent because too much was waiting already."""
        self._key = key
        self._bytes_max = bytes_max
        self._unsealer = Unsealer(key, bytes_max=bytes_max, is_stranger=is_stranger)
        self._waiting = bytearray()

    @classmethod
    def to(cls, endpoint: str, key: bytes, *, bytes_max: int) -> MessageConnection:
        """Begin to connect.  Raises OSError and ValueError."""
        host, port = split_endpoint(endpoint)
        end = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            end.setblocking(False)
            end.connect_ex((host, port))
        except OSError:
            end.close()
            raise
        return cls(end, key, bytes_max=bytes_max)

    @property
    def wants_to_write(self) -> bool:
        return bool(self._waiting)

    def send(self, body: bytes) -> bool:
        """Queue a message, which leaves with `flush`; False when it is dropped."""
        if not self.is_open:
            return False
        if len(self._waiting) > self._bytes_max:
            self.dropped += 1
            return False
        self._waiting += seal(body, self._key)
        return True

    def flush(self) -> None:
        """Send what the socket takes now."""
        while self._waiting and self.is_open:
            try:
                sent = self.end.send(self._waiting)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            del self._waiting[:sent]

    def receive(self) -> list[bytes]:
        """Whole messages that have arrived.  Raises FrameError for bytes of a stranger."""
        try:
            data = self.end.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        try:
            return self._unsealer.feed(data)
        except FrameError:
            self.close()
            raise

    def close(self) -> None:
        self.is_open = False
        with contextlib.suppress(OSError):
            self.end.close()
