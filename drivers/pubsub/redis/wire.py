"""One connection to a Redis server: writes bytes, reads answers.  It has no thread, no policy, and never reconnects.

redis-py opens the connection: it resolves names, does TLS and login, and chooses the protocol.  After that this module
uses the socket itself, because redis-py reconnects silently, waits for each answer before the next command, and cannot
be woken while it waits.  The protocol is RESP3, with which a subscribed connection can still publish; it needs Redis 6
or later.
"""

from __future__ import annotations

import random
import select
import socket
import ssl
import time
from typing import Any, Final

import hiredis
import redis

from heliograph_drivers.pubsub.redis.config import RedisSettings
from heliograph_drivers.redis_common import limits
from pubsub_api.driver_kit import Backoff
from pubsub_api.errors import TransportUnavailable

BULK_BYTES_MAX = 512 * 1024 * 1024
"""The server's own limit (proto-max-bulk-len), and so the largest frame."""
RECEIVE_BYTES = 256 * 1024
_INCOMPLETE: Final = object()
"""The reader returns it when the next answer is not complete."""
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ServerError(Exception):
    """An error in an answer of the server, used as a value.  It is never raised."""


class ProtocolError(Exception):
    """The peer does not speak the protocol of Redis."""


class Wire:
    """An open connection.  One thread at a time may use it.

    Every method except `close` raises TransportUnavailable, with the reason, when the connection is lost; after that
    only `close` may be called.
    """

    def __init__(self, settings: RedisSettings) -> None:
        """Connect and log in.  Blocks, each step for ``connect_timeout``."""
        self._operation_timeout_s = settings.operation_timeout_s
        connection = None
        try:
            connection = _connection(settings)  # in the try, because it opens the files of TLS
            connection.connect()
        except (redis.RedisError, OSError, UnicodeError) as error:
            if connection is not None:
                connection.disconnect()
            raise TransportUnavailable(_connect_reason(error)) from error
        self._connection = connection
        # A private attribute of redis-py, which has no public way to wait for a connection and a waker together.
        self._socket: socket.socket = self._connection._sock
        self._socket.setblocking(False)
        self._pending = getattr(self._socket, "pending", None)
        self._reader = hiredis.Reader(protocolError=ProtocolError, replyError=ServerError, notEnoughData=_INCOMPLETE)
        self._buffer = bytearray(RECEIVE_BYTES)

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self, data: bytes) -> None:
        """Hand all of ``data`` to the system.  Blocks for ``operation_timeout_s`` at most."""
        rest: bytes | memoryview = data
        deadline = 0.0
        while True:
            awaited = select.POLLOUT
            try:
                sent = self._socket.send(rest)
            except _LATER as error:
                sent = 0
                if isinstance(error, ssl.SSLWantReadError):
                    awaited = select.POLLIN
            except OSError as error:
                raise TransportUnavailable(f"the connection was lost while writing: {error}") from error
            if sent == len(rest):
                return
            rest = memoryview(rest)[sent:]
            deadline = deadline or time.monotonic() + self._operation_timeout_s
            if not self.wait(awaited, deadline):
                raise TransportUnavailable(f"the server did not take a command within {self._operation_timeout_s} s")

    def wait(self, events: int, deadline: float) -> bool:
        """Block until the socket is ready for ``events`` (as in ``select.poll``); False when the deadline passed."""
        poller = select.poll()
        poller.register(self._socket, events)
        return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))

    def receive(self) -> list[Any]:
        """The complete answers that have arrived.  Does not block.  A push is a list, an error a `ServerError`."""
        while True:
            try:
                size = self._socket.recv_into(self._buffer)
            except _LATER:
                break
            except OSError as error:
                raise TransportUnavailable(f"the connection was lost while reading: {error}") from error
            if not size:
                raise TransportUnavailable("the server closed the connection")
            self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]  # takes any buffer
            if self._pending is None or not self._pending():  # decrypted bytes would not wake a poll
                break
        return self._parse()

    def _parse(self) -> list[Any]:
        answers = []
        try:
            while (answer := self._reader.gets()) is not _INCOMPLETE:
                answers.append(answer)
        except ProtocolError as error:
            raise TransportUnavailable(f"the server does not speak the protocol of Redis: {error}") from error
        return answers

    def close(self) -> None:
        """Close the socket.  Idempotent.  In a forked child it does not disturb the parent's connection."""
        self._connection.disconnect()


def _connection(settings: RedisSettings) -> Any:
    server = settings.server
    arguments: dict[str, Any] = {
        **server.arguments,
        **limits(connect_timeout_s=settings.connect_timeout_s, timeout_s=settings.connect_timeout_s),
        "protocol": 3,
        "socket_keepalive": True,
    }
    if not server.has_tls:
        return redis.Connection(**arguments)  # type: ignore[no-untyped-call]
    return redis.SSLConnection(
        **arguments,
        ssl_ca_certs=settings.ca_file,
        ssl_certfile=settings.cert_file,
        ssl_keyfile=settings.key_file,
        ssl_check_hostname=True,
    )


def _connect_reason(error: Exception) -> str:
    if isinstance(error, redis.AuthenticationError):
        return f"the server refused the login: {error}"
    if isinstance(error, redis.ResponseError):
        return f"the server refused the connection, which needs Redis 6 or later: {error}"
    return f"the server cannot be reached: {str(error).rstrip('.')}"


def reconnecting(settings: RedisSettings) -> Backoff:
    """The back-off between attempts to connect."""
    return Backoff(settings.retry_interval_s, settings.retry_interval_max_s, jitter=random.random)


def join_timeout_s(settings: RedisSettings) -> float:
    """How long a thread may take to end: the steps of an attempt to connect, a write, and a callback."""
    return 5.0 + 5 * settings.connect_timeout_s + 2 * settings.operation_timeout_s
