"""Where the service tells how it is: one JSON object per connection, on a socket file or over HTTP on loopback.

Who asks gets an answer even when it says nothing: on the socket file the object is written at once.  Over HTTP any
``GET`` is answered, with status 200 when all is well and 503 when not, as load balancers and probes expect.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from pubsub_api.errors import AddressInUse, HeliographError, LimitReached, TransportUnavailable
from pubsub_api.runtime import socket_file
from pubsub_api.runtime.rare_logging import SeldomLog
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

Report = dict[str, Any]
_ANSWER_S = 2.0
"""How long one who asks may take, from the connection to the end of the answer."""
_ASKERS_MAX = 16
"""Who asks while so many others do is turned away: each of them costs a thread for a moment."""
_REQUEST_BYTES_MAX = 16 * 1024
_PAUSE_S = 0.2
"""Who cannot accept a connection, for want of a descriptor, say, tries again after this long."""


class HealthServer:
    """Answers on threads of its own.  ``report`` is called there; ``report["ok"]`` decides the HTTP status."""

    def __init__(self, listener: socket.socket, report: Callable[[], Report], *, is_http: bool) -> None:
        self._listener = listener
        self._report = report
        self._is_http = is_http
        self._closing = threading.Event()
        self._places = threading.BoundedSemaphore(_ASKERS_MAX)
        self._thread = threading.Thread(target=self._run, name="heliograph-health", daemon=True)
        self._log = SeldomLog(LOG)
        listener.setblocking(True)
        try:
            start_thread(self._thread)
        except LimitReached:
            listener.close()
            raise

    @property
    def address(self) -> str:
        name = self._listener.getsockname()
        return f"http://{name[0]}:{name[1]}/" if self._is_http else f"unix:{name}"

    def close(self) -> None:
        """Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._listener.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    self._log("The health endpoint cannot accept a connection: %s. It will be tried again.", error)
                    self._closing.wait(_PAUSE_S)
                continue
            if not self._places.acquire(blocking=False):
                sock.close()
                continue
            # Each in a thread of its own: who asks slowly holds up nobody but itself.
            answering = threading.Thread(target=self._serve, args=(sock,), name="heliograph-health-answer", daemon=True)
            try:
                start_thread(answering)
            except LimitReached as error:
                self._log("The health endpoint cannot answer: %s", error)
                sock.close()
                self._places.release()

    def _serve(self, sock: socket.socket) -> None:
        try:
            # Whoever asked and went away, or does not take the answer, is not our problem.
            with sock, contextlib.suppress(OSError):
                self._answer(sock, time.monotonic() + _ANSWER_S)
        finally:
            self._places.release()

    def _look(self) -> Report:
        try:
            return self._report()
        except Exception as error:
            LOG.exception("The service cannot tell how it is.")
            return {"ok": False, "problem": f"{type(error).__name__}: {error}"}

    def _answer(self, sock: socket.socket, deadline: float) -> None:
        sock.settimeout(_ANSWER_S)
        if self._is_http:
            request = b""
            while b"\r\n\r\n" not in request and len(request) < _REQUEST_BYTES_MAX:
                sock.settimeout(max(deadline - time.monotonic(), 0.001))
                received = sock.recv(4096)
                if not received:
                    return
                request += received
        elif not socket_file.is_trusted(socket_file.credentials(sock)):
            return
        report = self._look()
        body = json.dumps(report).encode() + b"\n"
        if self._is_http:
            status = "200 OK" if report.get("ok") else "503 Service Unavailable"
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            body = f"{head}Connection: close\r\n\r\n".encode() + body
        sock.sendall(body)
        sock.shutdown(socket.SHUT_WR)


def serve_unix(path: pathlib.Path, report: Callable[[], Report]) -> HealthServer:
    """Raises AddressInUse, InvalidConfig."""
    return HealthServer(socket_file.listen(path), report, is_http=False)


def serve_http(port: int, report: Callable[[], Report]) -> HealthServer:
    """On 127.0.0.1.  Raises AddressInUse."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise AddressInUse(f"the health endpoint cannot use port {port} of 127.0.0.1: {error}") from error
    return HealthServer(listener, report, is_http=True)


def ask(path: pathlib.Path, *, timeout_s: float) -> Report:
    """What the service behind a health socket tells.  Raises TransportUnavailable when it does not answer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            return _parse(_read_all(sock))
    except OSError as error:
        raise TransportUnavailable(f"no publisher service answers at {path}: {error}") from error


def ask_http(port: int, *, timeout_s: float) -> Report:
    """The same over HTTP on loopback."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return _parse(_read_all(sock).partition(b"\r\n\r\n")[2])
    except OSError as error:
        raise TransportUnavailable(f"no publisher service answers at port {port}: {error}") from error


def _read_all(sock: socket.socket) -> bytes:
    received = b""
    while chunk := sock.recv(65_536):
        received += chunk
    return received


def _parse(body: bytes) -> Report:
    try:
        report = json.loads(body)
    except ValueError as error:
        raise HeliographError(f"what answers is no publisher service: {error}") from error
    if not isinstance(report, dict):
        raise HeliographError("what answers is no publisher service")
    return report
