"""gRPC on one socket: HTTP/2, as much of it as single calls need, one after the other.

A transaction over gRPC takes etcd half the time that it takes through the gateway, which reads JSON and then makes this
very call.  The library of gRPC takes that gain away again: it hands every call to threads of its own, which do not
survive a fork either.

There is one stream at a time, and what it brings is read by the thread that waits for it.  The server is told to use no
table of headers, and that there is room for all that it may say.
"""

from __future__ import annotations

import http
import ssl
import struct
import time
import urllib.parse

import msgspec

from heliograph_drivers.db.etcd.config import EtcdEndpoint
from heliograph_drivers.db.etcd.wire.hpack import read_headers
from heliograph_drivers.db.etcd.wire.http1 import ANSWER_BYTES_MAX, EtcdAnswer, EtcdConnection, check_time
from heliograph_drivers.db.etcd.wire.protobuf import PROTOBUF

ALPN = "h2"
MESSAGE_BYTES_MAX = 47 * 1024
"""A server has room for 64 KiB that it has not read, and says that it has read some when that is a quarter of it.  So
there is room for three quarters at any time; what is larger takes the other way."""

_METHODS = {
    "kv/txn": "/etcdserverpb.KV/Txn",
    "maintenance/status": "/etcdserverpb.Maintenance/Status",
    "auth/authenticate": "/etcdserverpb.Auth/Authenticate",
}
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _HAS_PRIORITY = 0x4, 0x8, 0x20
_TABLE_SIZE, _NO_PUSH, _WINDOW_SIZE = 1, 2, 4
_HEAD = struct.Struct(">BHBBI")
_HEAD_BYTES = _HEAD.size
_FRAME_BYTES_MAX = 16 * 1024
"""That both sides have to take."""
_ROOM = 2**31 - 1
_FIRST_ROOM = 65_535
_ROOM_STEP = 2**30
_STREAM_MAX = 2**31 - 3
_PREFIX_BYTES = 5
"""Before a message: whether it is compressed, and its length."""
_BLOCKS_MAX = 32
_HEADERS_BYTES_MAX = 64 * 1024
_ASIDE_BYTES_MAX = 64 * 1024
"""What a server may say to an idle connection, and what it is to be told of with the next call."""
_PING_PAUSE_S = 0.1
"""Pings are answered with the next call, and no more often: a server sends one with each answer, to measure."""


class NotGrpc(Exception):
    """There is a server that does not answer in HTTP/2.  Nothing was asked of it."""

    def __init__(self, reason: str, *, is_certain: bool) -> None:
        """``is_certain``: it has said something else.  If not, it hung up, for whatever reason."""
        super().__init__(reason)
        self.is_certain = is_certain


class GrpcConnection(EtcdConnection):
    """Calls of `_METHODS` only.  A refusal is answered as the gateway would: status 500, code and text as JSON."""

    codec = PROTOBUF

    def __init__(self, more_headers: tuple[tuple[str, str], ...] = ()) -> None:
        """``more_headers``: of every call."""
        super().__init__()
        self._more_headers = more_headers
        self._blocks: dict[bytes, dict[str, str]] = {}
        """What header blocks say that were seen: they are nearly all the same."""
        self._begin()

    def _begin(self) -> None:
        self._stream = -1
        self._is_last = False
        self._waiting = b""
        """Frames that leave with the next call."""
        self._room = self._stream_room = _FIRST_ROOM
        """For what we send: in all, and at the beginning of a stream."""
        self._ping = b""
        """The newest one, if it is not answered."""
        self._ping_answered_at = 0.0
        self._taken = 0
        """What the server has sent since it was last told that there is room."""
        self._request_heads: dict[tuple[str, str], bytes] = {}

    def connect(self, endpoint: EtcdEndpoint, security: ssl.SSLContext | None, timeout_s: float) -> None:
        """Raises NotGrpc, too."""
        deadline = time.monotonic() + timeout_s
        super().connect(endpoint, security, timeout_s)
        self._begin()
        open_socket = self._open_socket()
        if isinstance(open_socket, ssl.SSLSocket) and open_socket.selected_alpn_protocol() != ALPN:
            raise NotGrpc("the server has not chosen HTTP/2", is_certain=True)
        settings = struct.pack(">HIHIHI", _TABLE_SIZE, 0, _NO_PUSH, 0, _WINDOW_SIZE, _ROOM)
        room = struct.pack(">I", _ROOM - _FIRST_ROOM)
        try:
            self._write(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, room), deadline)
            kind, flags, stream, payload = self._read_frame(deadline)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise NotGrpc(str(error), is_certain=False) from error
        except ValueError as error:
            raise NotGrpc(str(error), is_certain=True) from error
        if kind != _SETTINGS:
            raise NotGrpc("the server does not begin as HTTP/2 does", is_certain=True)
        self._heard(kind, flags, stream, payload)
        if self._stream_room < MESSAGE_BYTES_MAX + _PREFIX_BYTES:
            raise NotGrpc("the server takes small messages only", is_certain=True)

    def send(self, path: str, body: bytes, token: str, deadline: float) -> EtcdAnswer:
        self._stream += 2
        self._is_last |= self._stream >= _STREAM_MAX
        message = b"\0%b%b" % (len(body).to_bytes(4, "big"), body)
        while self._room < len(message):
            check_time(deadline)
            self._heard(*self._read_frame(deadline))
        self._room -= len(message)
        if self._ping and time.monotonic() - self._ping_answered_at > _PING_PAUSE_S:
            self._waiting += _frame(_PING, _ACK, 0, self._ping)
            self._ping, self._ping_answered_at = b"", time.monotonic()
        frames = [self._waiting, _frame(_HEADERS, _END_HEADERS, self._stream, self._request_head(path, token))]
        self._waiting = b""
        for start in range(0, len(message), _FRAME_BYTES_MAX):
            end = start + _FRAME_BYTES_MAX
            flags = _END_STREAM if end >= len(message) else 0
            frames.append(_frame(_DATA, flags, self._stream, message[start:end]))
        self._write(b"".join(frames), deadline)
        answer = self._read_answer(deadline)
        self.is_kept = True
        return answer

    def read_body(self, answer: EtcdAnswer, deadline: float) -> bytes:  # noqa: ARG002  it was read with its status
        if self._is_last:
            self.close()
        return answer.body

    def is_usable(self) -> bool:
        """Reads what the server has said meanwhile: it looks whether we are there, or it is about to stop."""
        heard_bytes = 0
        try:
            while self._socket is not None and not self._is_last and self._is_readable():
                before = len(self._raw)
                self._receive(0.0)
                heard_bytes += len(self._raw) - before
                if heard_bytes > _ASIDE_BYTES_MAX:
                    return False
                while self._has_frame():
                    self._heard(*self._read_frame(0.0))
        except (OSError, ValueError):
            return False
        return self._socket is not None and not self._is_last

    # -- inside

    def _request_head(self, path: str, token: str) -> bytes:
        block = self._request_heads.get((path, token))
        if block is None:
            pairs = [(":path", _METHODS[path]), (":authority", str(self.endpoint)), ("te", "trailers"),
                     ("content-type", "application/grpc"), *self._more_headers]  # fmt: skip
            pairs += [("authorization", token)] if token else []
            scheme = b"\x87" if isinstance(self._socket, ssl.SSLSocket) else b"\x86"
            block = b"\x83" + scheme + b"".join(_literal(name) + _literal(value, b"") for name, value in pairs)
            if len(self._request_heads) >= _BLOCKS_MAX:  # of tokens that are not used any more
                self._request_heads.clear()
            self._request_heads[path, token] = block
        return block

    def _read_answer(self, deadline: float) -> EtcdAnswer:
        headers: dict[str, str] = {}
        header_bytes = 0
        body = bytearray()
        while True:
            check_time(deadline)
            kind, flags, stream, payload = self._read_frame(deadline)
            if stream != self._stream:
                self._heard(kind, flags, stream, payload)
                continue
            if kind == _DATA:
                body += payload
            elif kind == _HEADERS:
                header_bytes += len(payload)
                headers |= self._read_block(flags, payload)
            elif kind == _RST_STREAM:
                raise ConnectionResetError(f"the server has given up the call, code {int.from_bytes(payload, 'big')}")
            if len(body) > ANSWER_BYTES_MAX or header_bytes > _HEADERS_BYTES_MAX:
                raise ValueError("the answer is too large")
            if flags & _END_STREAM and kind in (_DATA, _HEADERS):
                return _as_answer(headers, bytes(body))

    def _read_block(self, flags: int, block: bytes) -> dict[str, str]:
        if not flags & _END_HEADERS:
            raise ValueError("the answer has too many headers")
        found = self._blocks.get(block)
        if found is None:
            found = read_headers(block)
            if len(self._blocks) >= _BLOCKS_MAX:
                self._blocks.clear()
            self._blocks[block] = found
        return found

    def _has_frame(self) -> bool:
        return len(self._raw) >= _HEAD_BYTES and len(self._raw) >= _HEAD_BYTES + int.from_bytes(self._raw[:3], "big")

    def _read_frame(self, deadline: float) -> tuple[int, int, int, bytes]:
        """Kind, flags, stream and payload of the next one."""
        raw = self._raw
        while len(raw) < _HEAD_BYTES:
            self._receive(deadline)
        high, low, kind, flags, stream = _HEAD.unpack_from(raw)
        end = _HEAD_BYTES + (high << 16 | low)
        if end > _HEAD_BYTES + _FRAME_BYTES_MAX:
            raise ValueError("the answer is no HTTP/2 that can be understood")
        while len(raw) < end:
            self._receive(deadline)
        payload = bytes(raw[_HEAD_BYTES:end])
        del raw[:end]
        if kind in (_DATA, _HEADERS):
            if flags & (_PADDED | _HAS_PRIORITY):
                payload = _without_padding(kind, flags, payload)
            self._taken += end - _HEAD_BYTES if kind == _DATA else 0
            if self._taken > _ROOM_STEP:
                self._waiting += _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken))
                self._taken = 0
        return kind, flags, stream & 0x7FFFFFFF, payload

    def _heard(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Of what is not about the present call."""
        if kind == _SETTINGS and not flags & _ACK:
            self._waiting += _frame(_SETTINGS, _ACK, 0, b"")
            if len(self._waiting) > _ASIDE_BYTES_MAX:
                raise ValueError("the server changes its settings all the time")
            for setting, value in struct.iter_unpack(">HI", payload[: len(payload) // 6 * 6]):
                if setting == _WINDOW_SIZE:
                    self._stream_room = value
        elif kind == _PING and not flags & _ACK:
            self._ping = payload
        elif kind == _WINDOW_UPDATE and stream == 0:
            self._room += int.from_bytes(payload, "big") & 0x7FFFFFFF
        elif kind == _GOAWAY:
            self._is_last = True
            if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF < self._stream:
                raise ConnectionResetError("the server is about to stop")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def _literal(text: str, begin: bytes = b"\x10") -> bytes:
    """A text of a header block; ``begin`` says that a name comes that is not to be remembered."""
    data = text.encode()
    if len(data) < 127:
        return begin + bytes((len(data),)) + data
    rest, size = len(data) - 127, bytearray(b"\x7f")
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    size.append(rest)
    return begin + bytes(size) + data


def _without_padding(kind: int, flags: int, payload: bytes) -> bytes:
    if flags & _PADDED and payload:
        payload = payload[1 : max(1, len(payload) - payload[0])]
    return payload[5:] if kind == _HEADERS and flags & _HAS_PRIORITY else payload


def _as_answer(headers: dict[str, str], body: bytes) -> EtcdAnswer:
    status = headers.get("grpc-status")
    if status is None:  # something in between has answered, or has cut the answer short
        found = int(headers.get(":status", 0))
        return EtcdAnswer(found if found > http.HTTPStatus.OK else http.HTTPStatus.BAD_GATEWAY, body=body)
    if status != "0":
        refusal = {"code": int(status), "message": urllib.parse.unquote(headers.get("grpc-message", ""))}
        return EtcdAnswer(http.HTTPStatus.INTERNAL_SERVER_ERROR, body=msgspec.json.encode(refusal))
    message = body[_PREFIX_BYTES:]
    if body[:1] != b"\0" or int.from_bytes(body[1:_PREFIX_BYTES], "big") != len(message):
        raise ValueError("the answer is not one message")
    return EtcdAnswer(http.HTTPStatus.OK, body=message)
