"""The HTTP endpoint of a process: ``/metrics``, ``/healthz``, ``/readyz`` and ``/status``.

It reads one request with one deadline for all of it, which `http.server` cannot do, and answers it.  There is no
password: it is on loopback unless the address says otherwise.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pubsub_api.core.errors import AddressInUse, InvalidConfig
from pubsub_api.reporting.answering import AnsweringServer
from pubsub_api.reporting.families import CONTENT_TYPE, exposition
from pubsub_api.reporting.report import ProcessReport
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

_REQUEST_BYTES_MAX = 16 * 1024
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Page(NamedTuple):
    status: int
    content_type: str
    body: str


class Endpoint(Closeable):
    """Answers until it is closed.  ``report`` is what it tells; add to it at any time."""

    def __init__(self, listener: socket.socket, report: ProcessReport, status: Callable[[], dict[str, Any]]) -> None:
        self.report = report
        self._status = status
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._pages = {
            "/metrics": self._metrics,
            "/healthz": lambda: self._verdict(report.problems(only_vital=True)),
            "/readyz": lambda: self._verdict(report.problems()),
            "/status": self._all,
            "/": self._all,
        }
        self._server = AnsweringServer(listener, self._answer)

    def close(self) -> None:
        """Idempotent."""
        self._server.close()

    def _metrics(self) -> Page:
        return Page(200, CONTENT_TYPE, exposition(self.report.families()))

    @staticmethod
    def _verdict(problems: list[str]) -> Page:
        return Page(503 if problems else 200, _TEXT, "\n".join(problems or ["ok"]) + "\n")

    def _all(self) -> Page:
        status = self._status()
        return Page(200 if status.get("ok") else 503, _JSON, json.dumps(status, default=str) + "\n")

    def _answer(self, sock: socket.socket, deadline: float) -> None:
        request = b""
        while b"\r\n\r\n" not in request and len(request) < _REQUEST_BYTES_MAX:
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            received = sock.recv(4096)
            if not received:
                return
            request += received
        method, page = self._page(request)
        body = page.body.encode()
        head = (
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        sock.sendall(head.encode() + (b"" if method == "HEAD" else body))

    def _page(self, request: bytes) -> tuple[str, Page]:
        words = request.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return "", Page(400, _TEXT, "this is no HTTP request\n")
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return method, Page(405, _TEXT, "only GET and HEAD\n")
        page = self._pages.get(path)
        if page is None:
            return method, Page(404, _TEXT, f"there are {', '.join(sorted(self._pages))}\n")
        try:
            return method, page()
        except Exception as error:
            LOG.exception("The process cannot tell how it is.")
            return method, Page(503, _TEXT, f"{type(error).__name__}: {error}\n")


def serve(
    address: str, report: ProcessReport | None = None, *, status: Callable[[], dict[str, Any]] | None = None
) -> Endpoint:
    """Answer at ``host:port``, or at a port of loopback; port 0 takes a free one.  Close it when done.

    ``status`` replaces what ``/status`` tells; ``ok`` in it decides the HTTP status.  Raises InvalidConfig for an
    address that is none, AddressInUse, LimitReached.
    """
    report = report or ProcessReport()
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise AddressInUse(f"metrics cannot be told at {address}: {error}") from error
    return Endpoint(listener, report, status or report.status)


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``9100``, ``127.0.0.1:9100`` or ``[::1]:9100``.  Raises InvalidConfig."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65_535 or address.startswith(":"):
        raise InvalidConfig(f"{address!r} is no address for metrics: write 9100, or 127.0.0.1:9100")
    return host, int(port)
