"""etcd with put and watch, as one uses its JSON gateway with http.client by hand, without Heliograph.

Each object is a key, its value JSON.  The writer has one connection that is kept.  A follower reads all keys, then
watches from the revision after that, and keeps a dict of decoded values.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench.change_ends import ChangeFollower, ChangeWriter, CopySink, ObjectWrite
from bench.ends import OPEN_TIMEOUT_S

_TOGETHER_MAX = 128
"""What a server takes in one transaction unless it is told otherwise."""


class _KeyValue(msgspec.Struct):
    key: bytes
    value: bytes = b""


class _Event(msgspec.Struct):
    kv: _KeyValue


class _Header(msgspec.Struct):
    revision: int


class _Result(msgspec.Struct):
    created: bool = False
    events: list[_Event] = []


class _Line(msgspec.Struct):
    result: _Result


class _Range(msgspec.Struct):
    header: _Header
    kvs: list[_KeyValue] = []


class _Gateway:
    """One connection.  ``etcd://host:port/prefix``."""

    def __init__(self, database: str, timeout_s: float | None = OPEN_TIMEOUT_S) -> None:
        url = urlsplit(database)
        self.prefix = f"{url.path.strip('/')}/".encode()
        self.connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout_s)
        self._encode = msgspec.json.Encoder().encode

    def begin(self, call: str, request: dict[str, Any]) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json"}
        self.connection.request("POST", f"/v3/{call}", self._encode(request), headers)
        answer = self.connection.getresponse()
        if answer.status != http.client.OK:
            raise RuntimeError(f"etcd refused {call}: {answer.read()!r}")
        return answer

    def everything(self) -> dict[str, bytes]:
        """What selects all keys of the prefix."""
        return {"key": self.prefix, "range_end": self.prefix[:-1] + bytes([self.prefix[-1] + 1])}


class PutWriter(ChangeWriter):
    def __init__(self, database: str, _bus: str) -> None:
        self._gateway = _Gateway(database)
        self._encode = msgspec.json.Encoder().encode

    def _pair(self, write: ObjectWrite) -> dict[str, bytes]:
        """msgspec writes bytes as base64, which is what the gateway reads."""
        return {"key": self._gateway.prefix + write.key.encode(), "value": self._encode(write.value)}

    def put(self, write: ObjectWrite) -> None:
        self._gateway.begin("kv/put", self._pair(write)).read()

    def put_together(self, writes: Sequence[ObjectWrite]) -> None:
        operations = [{"request_put": self._pair(write)} for write in writes]
        self._gateway.begin("kv/txn", {"success": operations}).read()

    def fill(self, writes: Sequence[ObjectWrite]) -> None:
        for first in range(0, len(writes), _TOGETHER_MAX):
            self.put_together(writes[first : first + _TOGETHER_MAX])

    def close(self) -> None:
        self._gateway.connection.close()


class WatchFollower(ChangeFollower):
    def __init__(self, database: str, _bus: str, _addresses: Sequence[str], sink: CopySink) -> None:
        self._sink = sink
        self._gateway = gateway = _Gateway(database, timeout_s=None)
        self._start = len(gateway.prefix)
        self._decode = msgspec.json.Decoder().decode
        found = msgspec.json.decode(gateway.begin("kv/range", gateway.everything()).read(), type=_Range, strict=False)
        self._copy: dict[str, Any] = {self._key(pair): self._decode(pair.value) for pair in found.kvs}
        watch = gateway.everything() | {"start_revision": found.header.revision + 1}
        self._answer = gateway.begin("watch", {"create_request": watch})
        self._answer.readline()  # it says that the watch is made
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _key(self, pair: _KeyValue) -> str:
        return pair.key[self._start :].decode()

    def _run(self) -> None:
        decode, copy, on_change, start = self._decode, self._copy, self._sink.on_change, self._start
        read_line, decode_line = self._answer.readline, msgspec.json.Decoder(_Line).decode
        while not self._is_closed:
            for event in decode_line(read_line()).result.events:
                key, value = event.kv.key[start:].decode(), decode(event.kv.value)
                copy[key] = value
                on_change(key, value)

    def numbers(self) -> dict[str, int]:
        return {key: value["number"] for key, value in self._copy.items()}

    def close(self) -> None:
        """The thread waits for a line, and ends with the process."""
        self._is_closed = True
