"""HTTP as the gateway of etcd speaks it, read from a socket in pieces of any size."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from heliograph_drivers.db.etcd.config import EtcdEndpoint
from heliograph_drivers.db.etcd.wire import http1
from heliograph_drivers.db.etcd.wire.http1 import HttpConnection
from tests.helpers.waiting import wait_until

PATIENCE_S = 60.0
PLAIN = b"HTTP/1.1 200 OK\r\nDate: Wed, 18 Nov 2026 09:08:49 GMT\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\nTrailer: Grpc-Status\r\n\r\n"
    b"3\r\nhel\r\n2;name=value\r\nlo\r\n0\r\nGrpc-Status: 0\r\n\r\n"
)


class Server:
    """One connection, which answers with what a test says."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = EtcdEndpoint("127.0.0.1", self._listening.getsockname()[1])
        self.connection = HttpConnection("More: yes\r\n")
        self.connection.connect(self.endpoint, None, PATIENCE_S)
        self.socket, _ = self._listening.accept()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def answer(self, text: bytes, portion: int) -> threading.Thread:
        """Bit by bit, each only when the one before was taken."""

        def write() -> None:
            for start in range(0, len(text), portion):
                self.socket.sendall(text[start : start + portion])

        writing = threading.Thread(target=write)
        writing.start()
        return writing

    def close(self) -> None:
        self.connection.close()
        self.socket.close()
        self._listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def soon() -> float:
    return time.monotonic() + PATIENCE_S


@pytest.mark.parametrize("portion", [1, 2, 7, 1000])
@pytest.mark.parametrize(("text", "status"), [(PLAIN, 200), (CHUNKED, 403)])
def test_answers_follow_each_other(server: Server, text: bytes, status: int, portion: int) -> None:
    writing = server.answer(2 * text, portion)
    for _ in range(2):
        begun = server.connection.send("kv/range", b"{}", "", soon())
        assert begun.status == status
        assert server.connection.read_body(begun, soon()) == b"hello"
    writing.join()
    assert server.connection.is_usable()


def test_a_request_is_one_write(server: Server) -> None:
    server.answer(PLAIN, len(PLAIN)).join()
    server.connection.send("kv/range", b"{body}", "my-token", soon())
    head, _, body = server.socket.recv(65536).partition(b"\r\n\r\n")
    assert body == b"{body}"
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v3/kv/range HTTP/1.1"
    assert {b"Content-Length: 6", b"Authorization: my-token", b"More: yes"} <= set(lines)
    assert f"Host: {server.endpoint}".encode() in lines


@pytest.mark.parametrize("portion", [1, 5, 1000])
def test_lines_of_a_stream(server: Server, portion: int) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    writing = server.answer(head + b"4\r\none\n\r\n3\r\ntwo\r\n8\r\n\nthree\nf\r\n", portion)
    server.connection.send("watch", b"{}", "", soon())
    assert [server.connection.read_line(soon()) for _ in range(3)] == [b"one", b"two", b"three"]
    writing.join()
    with pytest.raises(TimeoutError):
        server.connection.read_line(0.0)
    server.answer(b"4\r\nour\n\r\n", portion).join()
    assert server.connection.read_line(soon()) == b"four"
    server.answer(b"0\r\n\r\n", portion).join()
    with pytest.raises(ConnectionResetError, match="ended the watch"):
        server.connection.read_line(soon())


@pytest.mark.parametrize(
    "text",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 none\r\n\r\n", b"x" * 100_000, b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["another-protocol", "no-status", "endless", "no-length"],
)
def test_what_is_no_answer_is_refused(server: Server, text: bytes) -> None:
    writing = server.answer(text, 65536)
    with pytest.raises(ValueError, match="answer|invalid literal"):
        server.connection.read_body(server.connection.send("kv/range", b"{}", "", soon()), soon())
    writing.join()


HEAD = b"HTTP/1.1 200 OK\r\n"
ENDLESS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + b"Content-Length: 99999999999\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        ENDLESS + b"fffffffffff\r\n",
        ENDLESS + b"-1\r\n",
        ENDLESS + 20 * (b"a\r\n0123456789\r\n"),
    ],
    ids=["length", "negative", "chunk", "negative-chunk", "chunks"],
)
def test_what_is_too_large_is_refused_before_it_is_read(
    server: Server, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "ANSWER_BYTES_MAX", 100)
    writing = server.answer(text, 65536)
    with pytest.raises(ValueError, match="which no answer of etcd has"):
        server.connection.read_body(server.connection.send("kv/range", b"{}", "", soon()), soon())
    writing.join()


def test_a_line_without_an_end_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "ANSWER_BYTES_MAX", 100)
    writing = server.answer(ENDLESS + 20 * (b"a\r\n0123456789\r\n"), 65536)
    server.connection.send("watch", b"{}", "", soon())
    with pytest.raises(ValueError, match="which no answer of etcd has"):
        server.connection.read_line(soon())
    writing.join()


def test_a_server_that_hangs_up_is_noticed(server: Server) -> None:
    assert server.connection.is_usable()
    server.socket.close()
    wait_until(lambda: not server.connection.is_usable(), PATIENCE_S, "the end")
    with pytest.raises(ConnectionResetError):
        server.connection.send("kv/range", b"{}", "", soon())


def test_an_answer_that_is_the_last_one_closes(server: Server) -> None:
    text = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    server.answer(text, len(text)).join()
    assert server.connection.read_body(server.connection.send("kv/range", b"{}", "", soon()), soon()) == b""
    assert server.connection.endpoint is None


def test_cut_ends_a_read(server: Server) -> None:
    timer = threading.Timer(0.05, server.connection.cut)
    timer.start()
    with pytest.raises(ConnectionResetError):
        server.connection.send("kv/range", b"{}", "", soon())
    timer.join()
