"""gRPC as etcd speaks it: frames of HTTP/2, header blocks and messages, read from a socket in pieces of any size."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from heliograph_drivers.db.etcd.config import EtcdEndpoint
from heliograph_drivers.db.etcd.wire.hpack import read_headers
from heliograph_drivers.db.etcd.wire.http2 import MESSAGE_BYTES_MAX, GrpcConnection, NotGrpc
from heliograph_drivers.db.etcd.wire.messages import Txn
from heliograph_drivers.db.etcd.wire.protobuf import PROTOBUF
from tests.helpers.waiting import wait_until

PATIENCE_S = 60.0
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def answer(stream: int, message: bytes) -> bytes:
    data = b"\0" + len(message).to_bytes(4, "big") + message
    return (
        frame(HEADERS, END_HEADERS, stream, b"\x88" + literal("content-type", "application/grpc"))
        + frame(DATA, 0, stream, data)
        + frame(HEADERS, END_HEADERS | END, stream, literal("grpc-status", "0"))
    )


def refusal(stream: int, code: int, text: str) -> bytes:
    block = b"\x88" + literal("grpc-status", str(code)) + literal("grpc-message", text)
    return frame(HEADERS, END_HEADERS | END, stream, block)


class Server:
    """One connection, which says what a test tells it to say."""

    def __init__(self, first_words: bytes, portion: int = 1000) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = EtcdEndpoint("127.0.0.1", self._listening.getsockname()[1])
        self.connection = GrpcConnection((("more", "yes"),))
        self.portion = portion
        self._accepted: list[socket.socket] = []
        self._greeting = threading.Thread(target=self._greet, args=(first_words,))
        self._greeting.start()

    def _greet(self, words: bytes) -> None:
        accepted, _ = self._listening.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._accepted.append(accepted)
        accepted.recv(65536)
        self.say(words)
        if not words:
            accepted.close()

    def connect(self) -> None:
        self.connection.connect(self.endpoint, None, PATIENCE_S)
        self._greeting.join()

    @property
    def socket(self) -> socket.socket:
        return self._accepted[0]

    def say(self, words: bytes) -> None:
        for start in range(0, len(words), self.portion):
            self.socket.sendall(words[start : start + self.portion])

    def call(self, *words: bytes, body: bytes = b"asked") -> tuple[int, bytes]:
        """Make a call that is answered so."""
        saying = threading.Thread(target=self.say, args=(b"".join(words),))
        saying.start()
        begun = self.connection.send("kv/txn", body, "my-token", time.monotonic() + PATIENCE_S)
        saying.join()
        return begun.status, self.connection.read_body(begun, time.monotonic())

    def close(self) -> None:
        self.connection.close()
        self._greeting.join()
        for one in (*self._accepted, self._listening):
            one.close()


@pytest.fixture(params=[1, 7, 1000])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(frame(SETTINGS, 0, 0), portion=request.param)
    server.connect()
    yield server
    server.close()


def test_calls_follow_each_other(server: Server) -> None:
    for stream in (1, 3, 5):
        assert server.call(answer(stream, b"hello")) == (200, b"hello")
    assert server.connection.is_usable()


def test_what_the_server_says_besides_is_heard(server: Server) -> None:
    besides = frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x09") + frame(PING, 0, 0, b"pingping") + frame(0x55, 0, 0, b"new")
    assert server.call(besides, answer(1, b"one")) == (200, b"one")
    server.socket.recv(65536)
    assert server.call(answer(3, b"two")) == (200, b"two")
    assert frame(PING, 1, 0, b"pingping") in server.socket.recv(65536)


def test_a_refusal_tells_code_and_text_as_the_gateway_does(server: Server) -> None:
    status, body = server.call(refusal(1, 11, "etcdserver: mvcc%3A compacted"))
    assert status != 200
    assert json.loads(body) == {"code": 11, "message": "etcdserver: mvcc: compacted"}
    assert server.call(answer(3, b"again")) == (200, b"again")


def test_an_answer_without_a_status_is_none(server: Server) -> None:
    status, _ = server.call(frame(HEADERS, END_HEADERS | END, 1, b"\x88"))
    assert status >= 500


def test_a_call_that_the_server_gives_up_breaks_the_connection(server: Server) -> None:
    with pytest.raises(ConnectionResetError, match="given up"):
        server.call(frame(RST_STREAM, 0, 1, b"\0\0\0\x07"))


def test_a_server_that_is_about_to_stop_still_answers(server: Server) -> None:
    goodbye = frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0))
    assert server.call(goodbye, answer(1, b"last")) == (200, b"last")
    assert server.connection.endpoint is None


def test_a_server_that_stops_without_having_taken_the_call_breaks_the_connection(server: Server) -> None:
    with pytest.raises(ConnectionResetError, match="about to stop"):
        server.call(frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)))


def test_goodbye_to_an_idle_connection_makes_it_unusable(server: Server) -> None:
    assert server.call(answer(1, b"one")) == (200, b"one")
    server.say(frame(PING, 0, 0, b"pingping"))
    assert server.connection.is_usable()
    server.say(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)))
    wait_until(lambda: not server.connection.is_usable(), PATIENCE_S, "the goodbye")


def test_a_large_call_waits_for_room(server: Server) -> None:
    body = b"x" * 40_000
    assert server.call(answer(1, b"one"), body=body) == (200, b"one")
    room = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 40_000))
    assert server.call(room, answer(3, b"two"), body=body) == (200, b"two")


def test_a_call_waits_for_no_room_that_a_server_does_not_tell_of() -> None:
    """A server that has read less than a quarter of its room does not say so: the rest is all that can be hoped for."""
    server = Server(frame(SETTINGS, 0, 0))
    server.connect()
    try:
        assert server.call(answer(1, b"one"), body=b"x" * (65_535 // 4 - 1 - 5)) == (200, b"one")
        assert server.call(answer(3, b"two"), body=b"x" * MESSAGE_BYTES_MAX) == (200, b"two")
    finally:
        server.close()


@contextlib.contextmanager
def talking(server: Server, words: bytes) -> Iterator[None]:
    """The server says it again and again, until the connection is closed."""

    def talk() -> None:
        with contextlib.suppress(OSError):
            while True:
                server.socket.sendall(words)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        server.connection.close()
        thread.join()


@pytest.mark.parametrize(
    "words",
    [
        frame(PING, 0, 0, b"pingping") * 1000, frame(SETTINGS, 0, 0) * 1000, frame(DATA, 0, 1, b"x" * 16_000) * 8,
        frame(DATA, 0, 7, b"x" * 16_000) * 8, frame(HEADERS, END_HEADERS, 1, literal("a", "v" * 100)) * 100,
    ],
    ids=["ping", "settings", "data", "another-call", "headers"],
)  # fmt: skip
def test_a_server_that_never_stops_to_talk_ends_the_call(words: bytes) -> None:
    server = Server(frame(SETTINGS, 0, 0))
    server.connect()
    try:
        with talking(server, words), pytest.raises((TimeoutError, ValueError)):
            server.connection.send("kv/txn", b"asked", "", time.monotonic() + 0.5)
    finally:
        server.close()


def test_an_idle_connection_that_never_stops_to_talk_is_not_used(server: Server) -> None:
    with talking(server, frame(PING, 0, 0, b"pingping") * 1000):
        wait_until(lambda: not server.connection.is_usable(), PATIENCE_S, "that it is given up")


@pytest.mark.parametrize(
    ("words", "is_certain"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", True), (frame(PING, 0, 0, b"pingping"), True), (b"", False)],
    ids=["http1", "another-frame", "hangs-up"],
)
def test_a_server_that_speaks_something_else(words: bytes, is_certain: bool) -> None:
    server = Server(words)
    try:
        with pytest.raises(NotGrpc) as raised:
            server.connect()
        assert raised.value.is_certain == is_certain
    finally:
        server.close()


def test_header_blocks_with_texts_in_huffmans_code() -> None:
    # From the examples of RFC 7541, C.6.1, which may be read without its table: every name is one of the table.
    block = bytes.fromhex("4882640258 85aec3771a4b 6196d07abe941054d444a8200595040b8166e082a62d1bff".replace(" ", ""))
    assert read_headers(block) == {":status": "302"}
    assert read_headers(bytes.fromhex("008825a849e95ba97d7f8925a849e95bb8e8b4bf")) == {"custom-key": "custom-value"}


@pytest.mark.parametrize("block", [b"\x00", b"\x00\x05abc", b"\xff\xff\xff\xff\xff\xff", b"\xbf", b"\x00\x81\x00\x00"])
def test_what_is_no_header_block_is_refused(block: bytes) -> None:
    with pytest.raises(ValueError, match="header block"):
        read_headers(block)


def test_an_answer_that_is_cut_short_is_refused() -> None:
    whole = b"\x0a\x02\x18\x07\x10\x01"
    assert PROTOBUF.read_outcome(whole) == (7, True, [])
    for length in (1, 3, 5):
        with pytest.raises(ValueError, match="answer"):
            PROTOBUF.read_outcome(whole[:length])


def varint(number: int) -> bytes:
    return bytes((number,)) if number < 128 else bytes((number & 127 | 128,)) + varint(number >> 7)


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (3,), (1, 3), (2, 3, 4), (4, 3, 2, 1)])
def test_the_revision_of_a_transaction_is_read_whatever_else_the_header_says(order: tuple[int, ...]) -> None:
    """In the order in which etcd writes it, and in any other that protobuf allows."""
    for revision, identity in itertools.product([1, 127, 128, 2**31, 2**63 - 1], [0, 1, 0x10 << 7, 2**64 - 1]):
        header = b"".join(varint(number << 3) + varint(revision if number == 3 else identity) for number in order)
        done = b"\x0a" + varint(len(header)) + header + b"\x10\x01"
        assert PROTOBUF.read_outcome(done) == (revision, True, []), identity
        assert PROTOBUF.read_outcome(done + b"\x1a\x02\x12\x00") == (revision, True, []), identity
        assert PROTOBUF.read_outcome(done[:-2]) == (revision, False, []), identity


def test_a_transaction_as_etcd_reads_it() -> None:
    txn = Txn([(b"k", 300, b"v")], [(b"p", b"x")], [(b"a", b"b"), (b"c", b"")], [b"r"])
    assert PROTOBUF.txn(txn) == (
        b"\x0a\x08\x10\x02\x1a\x01k\x30\xac\x02" + b"\x0a\x08\x10\x03\x1a\x01k\x3a\x01v"
        + b"\x12\x08\x12\x06\x0a\x01p\x12\x01x" + b"\x12\x08\x1a\x06\x0a\x01a\x12\x01b" + b"\x12\x05\x1a\x03\x0a\x01c"
        + b"\x1a\x05\x0a\x03\x0a\x01r"
    )  # fmt: skip
