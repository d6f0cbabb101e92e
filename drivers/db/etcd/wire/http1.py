"""HTTP/1.1 on one socket, as much of it as the gateway of etcd needs: requests in one write, answers, and streams.

http.client sends the header and the body apart, and reads the header of an answer with the parser of e-mails, which
takes more time than everything else in a request.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import select
import socket
import ssl
import time

from heliograph_drivers.db.etcd.config import EtcdEndpoint
from heliograph_drivers.db.etcd.wire.messages import JSON, Codec

_PORTION = 32 * 1024
"""Read at once.  Memory for more would be asked of the system for each answer, and that takes longer than the rest."""
_HEADER_MAX = 64 * 1024
ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Of one answer, or one line of a stream.  A page of a snapshot is far smaller: what is larger is no answer of etcd."""


@dataclasses.dataclass(slots=True)
class EtcdAnswer:
    """The beginning of an answer, or all of it."""

    status: int
    date: str | None = None
    length: int | None = None
    is_chunked: bool = False
    is_last: bool = False
    body: bytes = b""
    """Where all of it is there already."""


def read_answer(head: bytes) -> EtcdAnswer:
    """Of HTTP/1.  Raises ValueError for what is no answer."""
    lines = head.split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ValueError(f"the answer is no HTTP: {lines[0][:40]!r}")
    answer = EtcdAnswer(int(rest[:3]), date="", is_last=version == b"HTTP/1.0")
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-length":
                answer.length = int(value)
            case b"transfer-encoding":
                answer.is_chunked = value.strip().lower() == b"chunked"
            case b"connection":
                answer.is_last |= value.strip().lower() == b"close"
            case b"date":
                answer.date = value.strip().decode("ascii", "replace")
    return answer


class EtcdConnection(abc.ABC):
    """A connection to one endpoint, made when it is needed.  For one thread at a time, but for `cut`.

    Everything raises OSError, TimeoutError among them, and ValueError for an answer that cannot be understood.  After
    any of them but the TimeoutError of `HttpConnection.read_line` the connection must be closed.
    """

    codec: Codec
    """How messages are written for it."""

    def __init__(self) -> None:
        self.endpoint: EtcdEndpoint | None = None
        """Where it leads to, None while there is no connection."""
        self.is_kept = False
        """It has answered already: the server may have hung up since without a word."""
        self._socket: socket.socket | None = None
        self._raw = bytearray()

    def connect(self, endpoint: EtcdEndpoint, security: ssl.SSLContext | None, timeout_s: float) -> None:
        """Raises ssl.SSLError, too."""
        connected = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security is not None:
                connected = security.wrap_socket(connected, server_hostname=endpoint.host)
        except (ssl.SSLEOFError, ConnectionResetError) as error:
            connected.close()
            raise ConnectionResetError(
                "the server hung up instead of beginning with TLS. If it always does so, write etcd:// in [db] url"
            ) from error
        except BaseException:
            connected.close()
            raise
        self._socket, self.endpoint = connected, endpoint

    @abc.abstractmethod
    def send(self, path: str, body: bytes, token: str, deadline: float) -> EtcdAnswer:
        """One request; returns when its answer begins.  Then `read_body`."""

    @abc.abstractmethod
    def read_body(self, answer: EtcdAnswer, deadline: float) -> bytes:
        """All of it."""

    # -- heliograph_drivers.db.handles.Handle

    def is_usable(self) -> bool:
        return self._socket is not None and not self._is_readable()  # a server that hung up has made it readable

    def cut(self) -> None:
        open_socket = self._socket
        if open_socket is not None:
            with contextlib.suppress(OSError):
                # Of a TLS connection, too: unwrapped, it would wait for the thread that reads.
                socket.socket.shutdown(open_socket, socket.SHUT_RDWR)

    def close(self) -> None:
        open_socket, self._socket, self.endpoint, self.is_kept = self._socket, None, None, False
        self._raw.clear()
        if open_socket is not None:
            open_socket.close()

    # -- for those that are built on it

    def _is_readable(self) -> bool:
        poller = select.poll()
        poller.register(self._open_socket(), select.POLLIN)
        return bool(poller.poll(0))

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionResetError("the connection is closed")
        return self._socket

    def _write(self, data: bytes, deadline: float) -> None:
        open_socket = self._open_socket()
        open_socket.settimeout(_left(deadline))
        try:
            open_socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses our certificate says so, and hangs up without having read.
            self._receive(deadline)
            raise

    def _receive(self, deadline: float) -> None:
        """Wait for more.  Raises TimeoutError."""
        open_socket = self._open_socket()
        open_socket.settimeout(_left(deadline))
        try:
            portion = open_socket.recv(_PORTION)
        except (BlockingIOError, ssl.SSLWantReadError) as error:
            raise TimeoutError("no answer in time") from error
        if not portion:
            raise ConnectionResetError("the server hung up")
        self._raw += portion

    def _exactly(self, count: int, deadline: float) -> bytes:
        """So many bytes.  Nothing is taken unless all are there."""
        while len(self._raw) < count:
            self._receive(deadline)
        found = bytes(self._raw[:count])
        del self._raw[:count]
        return found


class HttpConnection(EtcdConnection):
    """HTTP/1.1."""

    codec = JSON

    def __init__(self, more_headers: str = "") -> None:
        """``more_headers``: lines of every request, each with its end."""
        super().__init__()
        self._chunk_size: int | None = None
        self._lines = bytearray()
        self._searched = 0
        self._head = b""
        self._more_headers = more_headers

    def connect(self, endpoint: EtcdEndpoint, security: ssl.SSLContext | None, timeout_s: float) -> None:
        super().connect(endpoint, security, timeout_s)
        self._head = f" HTTP/1.1\r\nHost: {endpoint}\r\nContent-Type: application/json\r\n{self._more_headers}".encode()

    def send(self, path: str, body: bytes, token: str, deadline: float) -> EtcdAnswer:
        """Then `read_body`, or `read_line` again and again."""
        login = f"Authorization: {token}\r\n" if token else ""
        self._write(
            b"POST /v3/%s%s%sContent-Length: %d\r\n\r\n%s" % (
                path.encode(), self._head, login.encode(), len(body), body,
            ),
            deadline,
        )  # fmt: skip
        return read_answer(self._until(b"\r\n\r\n", _HEADER_MAX, deadline))

    def read_body(self, answer: EtcdAnswer, deadline: float) -> bytes:
        """All of it."""
        if answer.is_chunked:
            whole = bytearray()
            while chunk := self._chunk(deadline):
                whole += chunk
                _check_size(len(whole))
                check_time(deadline)
            body = bytes(whole)
        elif answer.length is None:
            raise ValueError("the answer does not say how long it is")
        else:
            _check_size(answer.length)
            body = self._exactly(answer.length, deadline)
        self.is_kept = True
        if answer.is_last:
            self.close()
        return body

    def read_line(self, deadline: float) -> bytes:
        """The next line of a stream.  After a TimeoutError it may be called again; a deadline that has passed takes
        what is there already.  Raises ConnectionResetError when the server ends it."""
        while (end := self._lines.find(b"\n", self._searched)) < 0:
            self._searched = len(self._lines)
            _check_size(self._searched)
            chunk = self._chunk(deadline)
            if not chunk:
                raise ConnectionResetError("the server has ended the watch")
            self._lines += chunk
        line = bytes(self._lines[:end])
        del self._lines[: end + 1]
        self._searched = 0
        return line

    def close(self) -> None:
        self._lines.clear()
        self._chunk_size, self._searched = None, 0
        super().close()

    # -- inside

    def _until(self, mark: bytes, length_max: int, deadline: float) -> bytes:
        """What comes before the mark.  Nothing is taken unless all is there."""
        while (end := self._raw.find(mark)) < 0:
            if len(self._raw) > length_max:
                raise ValueError("the answer is no HTTP that can be understood")
            self._receive(deadline)
        found = bytes(self._raw[:end])
        del self._raw[: end + len(mark)]
        return found

    def _chunk(self, deadline: float) -> bytes:
        """The next chunk of a body, nothing at its end."""
        if self._chunk_size is None:
            self._chunk_size = int(self._until(b"\r\n", _HEADER_MAX, deadline).partition(b";")[0], 16)
            _check_size(self._chunk_size)
        if self._chunk_size == 0:
            while self._until(b"\r\n", _HEADER_MAX, deadline):
                """Headers that follow the body."""
            self._chunk_size = None
            return b""
        chunk = self._exactly(self._chunk_size + 2, deadline)[:-2]
        self._chunk_size = None
        return chunk


def _check_size(count: int) -> None:
    """Raises ValueError: a server that never stops must not take all memory."""
    if not 0 <= count <= ANSWER_BYTES_MAX:
        raise ValueError(f"the answer has {count} bytes, which no answer of etcd has")


def check_time(deadline: float) -> None:
    """A server that never stops to talk is read from at any time.  Raises TimeoutError."""
    if time.monotonic() > deadline:
        raise TimeoutError("no answer in time")


def _left(deadline: float) -> float:
    """Seconds, 0 when there are none: a socket then does what it can at once."""
    return max(0.0, deadline - time.monotonic())
