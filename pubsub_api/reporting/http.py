"""A little HTTP for servers that answer on a socket: one request with one deadline for all of it, and its answer.

`http.server` has no such deadline: a client that sends a byte now and then holds its thread for ever.
"""

from __future__ import annotations

import socket
import time
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple

from pubsub_api.core.errors import AddressInUse, InvalidConfig

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
HEAD_BYTES_MAX = 64 * 1024
"""A longer head is no request: cut off, it would say less of where it comes from than was sent."""
_REASONS = {
    200: "OK", 303: "See Other", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    409: "Conflict", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class HttpRequest(NamedTuple):
    """``method`` is empty for what is no HTTP request."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes = b""


class Page(NamedTuple):
    status: int
    content_type: str
    body: str
    headers: Mapping[str, str] = {}
    """Further ones."""


NO_REQUEST = Page(400, TEXT, "this is no HTTP request, or too large a one\n")
READ_ONLY = Page(405, TEXT, "only GET and HEAD\n")


def read_request(sock: socket.socket, deadline: float, *, body_bytes_max: int = 0) -> HttpRequest | None:
    """None when nothing more comes.  ``deadline`` is by the monotonic clock.  A head or a body that is larger, or a
    body of an unknown length, is no request.  Raises OSError."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < HEAD_BYTES_MAX:
        received = _receive(sock, deadline)
        if not received:
            return None
        data += received
    told, end, body = data.partition(b"\r\n\r\n")
    first, *rest = told.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if not end or len(words) != 3 or not words[2].startswith("HTTP/"):
        return HttpRequest("", "", "", {})
    path, _, query = words[1].partition("?")
    lines = (line.partition(":") for line in rest)
    headers = {name.lower(): value.strip() for name, _, value in lines}
    length = headers.get("content-length", "0")
    if body_bytes_max and words[0] == "POST":
        if not (length.isascii() and length.isdecimal() and int(length[:9]) <= body_bytes_max and len(length) < 10):
            return HttpRequest("", "", "", {})
        while len(body) < int(length):
            received = _receive(sock, deadline)
            if not received:
                return None
            body += received
        body = body[: int(length)]
    return HttpRequest(words[0], urllib.parse.unquote(path), query, headers, body)


def _receive(sock: socket.socket, deadline: float) -> bytes:
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    return sock.recv(4096)


def send_page(
    sock: socket.socket, page: Page, deadline: float, *, is_head: bool = False, headers: Mapping[str, str] | None = None
) -> None:
    """Raises OSError."""
    body = page.body.encode()
    told = {"Content-Type": page.content_type, "Content-Length": str(len(body)), "Connection": "close"}
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    sock.sendall(head(page.status, {**told, **(headers or {}), **page.headers}) + (b"" if is_head else body))


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """What an answer begins with.  The client may store nothing of it."""
    told = {"Cache-Control": "no-store", **headers}
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *(f"{name}: {value}" for name, value in told.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def parse_address(address: str, what: str = "metrics") -> tuple[str, int]:
    """Host and port of ``9100``, ``127.0.0.1:9100`` or ``[::1]:9100``.  Raises InvalidConfig."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65_535 or address.startswith(":"):
        raise InvalidConfig(f"{address!r} is no address for {what}: write 9100, or 127.0.0.1:9100")
    return host, int(port)


def listen(host: str, port: int, what: str) -> tuple[socket.socket, str]:
    """A socket that listens there, and its URL; port 0 takes a free one.  Raises AddressInUse."""
    shown = f"[{host}]" if ":" in host else host
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise AddressInUse(f"{what} cannot be served at {shown}:{port}: {error}") from error
    return listener, f"http://{shown}:{listener.getsockname()[1]}"
