"""Where the service tells how it is: one JSON object per connection, on a socket file or over HTTP on loopback.

A client gets an answer even when it sends nothing: on the socket file the object is written at once.  HTTP is the
endpoint that every process can have (`pubsub_api.reporting`), with status 503 when the service is not well, as load
balancers and probes expect.
"""

from __future__ import annotations

import json
import logging
import pathlib
import socket
from collections.abc import Callable
from typing import Any

from pubsub_api.errors import HeliographError, TransportUnavailable
from pubsub_api.reporting.answering import AnsweringServer
from pubsub_api.runtime.sockets import socket_file

LOG = logging.getLogger(__name__)

Report = dict[str, Any]


def serve_unix(path: pathlib.Path, report: Callable[[], Report]) -> AnsweringServer:
    """Answer users that the socket file trusts.  Raises AddressInUse, InvalidConfig, LimitReached."""

    def answer(sock: socket.socket, _deadline: float) -> None:
        if socket_file.is_trusted(socket_file.credentials(sock)):
            sock.sendall(json.dumps(guarded(report)).encode() + b"\n")

    return AnsweringServer(socket_file.listen(path), answer)


def guarded(report: Callable[[], Report]) -> Report:
    """The report; one that says so when it cannot be made."""
    try:
        return report()
    except Exception as error:
        LOG.exception("The service cannot tell how it is.")
        return {"ok": False, "problem": f"{type(error).__name__}: {error}"}


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
            sock.sendall(b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
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
