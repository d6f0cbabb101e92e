"""Conversations with etcd over HTTP: the JSON gateway that every etcd 3.4 and later has at ``/v3/``.

Why not gRPC: its library runs threads of its own that do not survive a fork, and the writers here are forked workers.
Why not a client from PyPI: those that exist stand on gRPC or on a web framework, and what is needed is six calls.  The
gateway costs base64 on the way; msgspec reads that, and numbers written as strings, straight into the structs below.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import select
import socket
import time
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import msgspec

from drivers.db.etcd.config import EtcdSettings
from drivers.db.handles import Handles
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import InvalidConfig, LimitReached

T = TypeVar("T")

_CODE_INVALID_ARGUMENT, _CODE_EXHAUSTED, _CODE_OUT_OF_RANGE = 3, 8, 11
_CODES_PERMISSION = (7, 16)
_CODES_PASSING = (1, 4, 10, 14)  # cancelled, deadline exceeded, aborted, unavailable
_CLOCK_STEP_S = 2.0


class KeyValue(msgspec.Struct, frozen=True):
    """A key as of some revision.  ``version`` counts the times it was put since it was created."""

    key: bytes
    mod_revision: int
    create_revision: int = 0
    version: int = 0
    value: bytes = b""


class EtcdHeader(msgspec.Struct, frozen=True):
    revision: int


class RangeAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader
    kvs: list[KeyValue] = []
    more: bool = False


class PutAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader
    prev_kv: KeyValue | None = None


class TxnPart(msgspec.Struct, frozen=True):
    response_range: RangeAnswer | None = None


class TxnAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader
    succeeded: bool = False
    responses: list[TxnPart] = []


def found_in(answer: TxnAnswer) -> list[KeyValue | None]:
    """What the ranges of a transaction have found, each of one key."""
    ranges = [part.response_range for part in answer.responses]
    return [one.kvs[0] if one and one.kvs else None for one in ranges]


class CompactAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader


class StatusAnswer(msgspec.Struct, frozen=True):
    version: str = ""


class WatchEvent(msgspec.Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"


class WatchResult(msgspec.Struct, frozen=True):
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    events: list[WatchEvent] = []


class _WatchLine(msgspec.Struct, frozen=True):
    result: WatchResult | None = None


class _Refusal(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class Compacted(DbUnavailable):
    """The revision asked for is no longer known.  Leaves the driver only when a compaction runs in between; retry."""


class StoreClock:
    """The server's clock, read off the Date of its answers, which is cut to the second.

    Each answer says that it is at least so late there; the latest such statement is the best one.
    """

    def __init__(self) -> None:
        self._offset_s: float | None = None
        self._last_date = ""

    def observe(self, date: str | None) -> None:
        if date is None or date == self._last_date:
            return
        self._last_date = date
        offset_s = email.utils.parsedate_to_datetime(date).timestamp() - time.monotonic()
        if self._offset_s is None or not -_CLOCK_STEP_S < offset_s - self._offset_s <= 0:
            self._offset_s = offset_s

    def now(self) -> float:
        """Seconds since 1970 there.  Only after an answer has been observed."""
        assert self._offset_s is not None
        return time.monotonic() + self._offset_s


class _Connection(http.client.HTTPConnection):
    """A connection, made when the first request is sent."""

    def is_usable(self) -> bool:
        if self.sock is None:
            return False
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        return not poller.poll(0)  # a server that hung up has made it readable

    def cut(self) -> None:
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class EtcdClient:
    """The connections of one process.  Every method may be called from any thread.

    Calls raise Closed, DbUnavailable, LimitReached, InvalidConfig (no permission), DbError, and Compacted.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._handles = Handles(lambda: _Connection(settings.host, settings.port), settings.limits)
        self.check_open = self._handles.check_open
        self.close = self._handles.close
        self.close_idle = self._handles.close_idle
        self.clock = StoreClock()

    def call(self, path: str, request: dict[str, Any], answer: type[T]) -> T:
        """One request, one answer."""
        with self._connection() as connection:
            response = self._send(connection, path, request)
            body = response.read()
            if response.status != http.client.OK:
                raise self._refusal(body)
            return msgspec.json.decode(body, type=answer, strict=False)

    def watch(self, request: dict[str, Any], timeout_s: float) -> Generator[WatchResult, None, None]:
        """What the server reports of a key, until the time is over.  Holds a connection, and closes it in the end."""
        deadline = time.monotonic() + timeout_s
        with self._connection() as connection:
            try:
                response = self._send(connection, "watch", {"create_request": request})
                if response.status != http.client.OK:
                    raise self._refusal(response.read())
                while (line := _read_line(connection, response, deadline)) is not None:
                    if (result := msgspec.json.decode(line, type=_WatchLine, strict=False).result) is None:
                        raise self._refusal(line)
                    yield result
            finally:
                connection.close()  # the stream has no end of its own

    @contextlib.contextmanager
    def _connection(self) -> Iterator[_Connection]:
        connection = self._handles.acquire()
        is_whole = False
        try:
            yield connection
            is_whole = True
        except (DbError, LimitReached, InvalidConfig):
            is_whole = True  # the answer was read to its end
            raise
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            self.check_open()
            reason = str(error) or type(error).__name__
            raise DbUnavailable(f"{self._settings.address}: {reason}") from error
        finally:
            self._handles.release(connection, is_whole=is_whole and connection.sock is not None)

    def _send(self, connection: _Connection, path: str, request: dict[str, Any]) -> http.client.HTTPResponse:
        if connection.sock is None:
            connection.timeout = self._settings.connect_timeout_s
            connection.connect()
            self.check_open()
        connection.sock.settimeout(self._settings.operation_timeout_s)
        connection.request("POST", f"/v3/{path}", msgspec.json.encode(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.clock.observe(response.getheader("Date"))
        return response

    def _refusal(self, body: bytes) -> Exception:
        refusal = _read_refusal(body)
        message = f"{self._settings.address}: {refusal.message}"
        if refusal.code == _CODE_OUT_OF_RANGE and "compacted" in refusal.message:
            return Compacted(message)
        if refusal.code == _CODE_EXHAUSTED or (
            refusal.code == _CODE_INVALID_ARGUMENT and "too large" in refusal.message
        ):
            return LimitReached(message)
        if refusal.code in _CODES_PERMISSION:
            return InvalidConfig(message)
        return DbUnavailable(message) if refusal.code in _CODES_PASSING else DbError(message)


def _read_refusal(body: bytes) -> _Refusal:
    """A stream wraps its refusals, a plain call does not, and a proxy in between says what it likes."""
    try:
        found = msgspec.json.decode(body)
        return msgspec.convert(found.get("error", found) if isinstance(found.get("error"), dict) else found, _Refusal)
    except (msgspec.MsgspecError, AttributeError):
        return _Refusal(message=body[:200].decode(errors="replace"))


def _read_line(connection: _Connection, response: http.client.HTTPResponse, deadline: float) -> bytes | None:
    """The next line of a stream, None when the time is over.  Raises OSError when the server ends it."""
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        return None
    connection.sock.settimeout(remaining_s)
    try:
        line = response.readline()
    except TimeoutError:
        return None
    if not line:
        raise ConnectionResetError("the server ended the watch")
    return line
