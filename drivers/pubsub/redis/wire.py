"""One connection to a Redis server: bytes out, answers in, nothing else.  No thread, no policy, no reconnecting.

redis-py opens the connection: name resolution, TLS, login and the choice of protocol are its work.  After that this
module reads and writes the socket itself, for three reasons: redis-py reconnects without saying so, waits for each
answer before the next command, and cannot be woken while it waits.  The protocol is RESP3, so that a connection which
has subscribed can still publish; it needs Redis 6 or later.
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
"""What the reader returns when the next answer has not arrived in full."""
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ServerError(Exception):
    """An error that the server answered, as a value.  It is never raised."""


class ProtocolError(Exception):
    """The peer does not speak the protocol of Redis."""


class Wire:
    """An open connection.  One thread at a time may use it.

    Every method but `close` raises TransportUnavailable, with the reason, when the connection is lost; after that only
    `close` makes sense.
    """

    def __init__(self, settings: RedisSettings) -> None:
        """Connect and log in.  Blocks, each step for ``connect_timeout``."""
        self._operation_timeout_s = settings.operation_timeout_s
        connection = None
        try:
            connection = _connection(settings)  # which opens files of its own
            connection.connect()
        except (redis.RedisError, OSError, UnicodeError) as error:
            if connection is not None:
                connection.disconnect()
            raise TransportUnavailable(_connect_reason(error)) from error
        self._connection = connection
        # The one place that reaches into redis-py, which has no public way to wait for a connection and for a waker.
        self._socket: socket.socket = self._connection._sock
        self._socket.setblocking(False)
        self._pending = getattr(self._socket, "pending", None)
        self._reader = hiredis.Reader(protocolError=ProtocolError, replyError=ServerError, notEnoughData=_INCOMPLETE)
        self._buffer = bytearray(RECEIVE_BYTES)

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self, data: bytes) -> None:
        """Hand all of ``data`` to the system.  Blocks for ``send_timeout`` at most."""
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
        """Every answer that is complete.  Does not wait.  A push is a list, an error a `ServerError`."""
        while True:
            try:
                size = self._socket.recv_into(self._buffer)
            except _LATER:
                break
            except OSError as error:
                raise TransportUnavailable(f"the connection was lost while reading: {error}") from error
            if not size:
                raise TransportUnavailable("the server closed the connection")
            self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]  # any buffer will do
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
        """Close the socket.  Idempotent.  In a forked child the parent's connection stays as it is."""
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
    """The pauses between attempts to connect."""
    return Backoff(settings.retry_interval_s, settings.retry_interval_max_s, jitter=random.random)


def join_timeout_s(settings: RedisSettings) -> float:
    """How long a thread may take to end: a connection attempt has a handful of steps, a write may be under way, and
    then there is the callback."""
    return 5.0 + 5 * settings.connect_timeout_s + 2 * settings.operation_timeout_s
