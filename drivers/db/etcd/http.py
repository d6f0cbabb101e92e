"""Conversations with etcd over HTTP: the JSON gateway that every etcd 3.4 and later has at ``/v3/``.

Why not gRPC: its library runs threads of its own that do not survive a fork, and the writers here are forked workers.
Why not a client from PyPI: those that exist stand on gRPC or on a web framework, and what is needed is few calls.  The
gateway costs base64 on the way; msgspec reads that, and numbers written as strings, straight into the structs below.

A request goes to one endpoint.  When that fails, the next one is asked if nothing can have happened yet, or if it does
no harm to do it twice; else whether it was done is not known, and the caller is told so.
"""

from __future__ import annotations

import email.utils
import http
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import msgspec

from drivers.db.etcd.config import EtcdEndpoint, EtcdSettings
from drivers.db.etcd.endpoints import LEADER_PAUSE_S, Effort, Endpoints, judge_clusters
from drivers.db.etcd.login import Login
from drivers.db.etcd.refusals import (
    Compacted,
    Refusal,
    failure_error,
    is_certificate_refused,
    read_refusal,
    refusal_error,
)
from drivers.db.etcd.wire import EtcdAnswer, HttpConnection
from drivers.db.handles import Handles
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import HeliographError, InvalidConfig

__all__ = ["Compacted", "EtcdClient", "KeyValue", "WatchBroken", "WatchStream"]

T = TypeVar("T")

_CLOCK_STEP_S = 2.0
_REPEATABLE = frozenset({"kv/range", "kv/compaction", "maintenance/status", "watch"})
"""Paths of requests that may be sent again when nobody knows whether they were done.  A transaction may be one, too."""
_LOGINS_MAX = 3
"""Of one request: a token may be refused by a member that is behind, or be forgotten while it is on its way."""
_FAILURES = (OSError, ValueError, msgspec.MsgspecError)


class KeyValue(msgspec.Struct, frozen=True):
    """A key as of some revision.  ``version`` counts the times it was put since it was created."""

    key: bytes
    mod_revision: int
    create_revision: int = 0
    version: int = 0
    value: bytes = b""


class EtcdHeader(msgspec.Struct, frozen=True):
    revision: int = 0
    cluster_id: int = 0


class RangeAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader
    kvs: list[KeyValue] = []
    more: bool = False
    count: int = 0


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
    header: EtcdHeader
    version: str = ""


class _LoginAnswer(msgspec.Struct, frozen=True):
    token: str = ""


class WatchEvent(msgspec.Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"


class WatchResult(msgspec.Struct, frozen=True):
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: list[WatchEvent] = []


class _WatchLine(msgspec.Struct, frozen=True):
    result: WatchResult | None = None


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


class _TryAgain(Exception):
    """The attempt has failed, and another one may follow."""


class _LoginRefused(Exception):
    """The server has refused the login, and was not asked for more."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class WatchBroken(DbUnavailable):
    """The server is gone, or has ended the watch.  It can go on elsewhere, from what was heard last."""


class WatchStream:
    """What the server reports of keys.  For one thread at a time; close it.  It holds a connection."""

    def __init__(self, client: EtcdClient, connection: HttpConnection, endpoint: EtcdEndpoint) -> None:
        self._client = client
        self._connection = connection
        self._endpoint = endpoint
        self._is_closed = False

    def read(self, deadline: float) -> WatchResult | None:
        """The next report, None when the time is over; one that has passed takes what is there already.

        One that is ``canceled`` says so because of a compaction.  Raises Closed, WatchBroken, InvalidConfig.
        """
        client = self._client
        try:
            line = self._connection.read_line(deadline)
            found = msgspec.json.decode(line, type=_WatchLine, strict=False).result
        except TimeoutError:
            return None
        except _FAILURES as error:
            client.check_open()
            client.endpoints.failed(self._endpoint)
            raise WatchBroken(str(failure_error(error, self._endpoint, client.settings))) from error
        if found is None:
            raise self._refused(read_refusal(line))
        if found.canceled and not found.compact_revision:
            code = 7 if "permission denied" in found.cancel_reason.lower() else 14
            raise self._refused(Refusal(code, found.cancel_reason or "the watch was cancelled"))
        return found

    def close(self) -> None:
        """Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._connection.close()  # the stream has no end of its own
            self._client.release(self._connection)

    @property
    def is_doubtful(self) -> bool:
        """Its endpoint has failed others lately."""
        return self._client.endpoints.is_aside(self._endpoint)

    def _refused(self, refusal: Refusal) -> Exception:
        failure = refusal_error(refusal, self._client.settings)
        if not refusal.is_passing:
            return failure
        self._client.endpoints.failed(self._endpoint)
        return WatchBroken(str(failure))


class EtcdClient:
    """The connections of one process.  Every method may be called from any thread.

    Calls raise Closed, DbUnavailable, LimitReached, InvalidConfig (no permission), DbError, and Compacted.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings
        self.endpoints = Endpoints(settings.endpoints)
        self._handles: Handles[HttpConnection] = Handles(lambda: _Handle(self.endpoints), settings.limits)
        self._login = Login()
        self.check_open = self._handles.check_open
        self.close = self._handles.close
        self.close_idle = self._handles.close_idle
        self.clock = StoreClock()

    def call(self, path: str, request: dict[str, Any], answer: type[T], *, is_repeatable: bool | None = None) -> T:
        """One request, one answer.  ``is_repeatable``: done twice it does the same; by default as the path says."""

        def finish(connection: HttpConnection, begun: EtcdAnswer, deadline: float) -> T:
            body = connection.read_body(begun, deadline)
            found = msgspec.json.decode(body, type=answer, strict=False)
            self.release(connection)
            return found

        return self._perform(path, request, finish, path in _REPEATABLE if is_repeatable is None else is_repeatable)

    def open_watch(self, request: dict[str, Any]) -> WatchStream:
        """Begin to hear of keys."""

        def finish(connection: HttpConnection, begun: EtcdAnswer, deadline: float) -> WatchStream:  # noqa: ARG001
            assert connection.endpoint is not None
            return WatchStream(self, connection, connection.endpoint)

        return self._perform("watch", {"create_request": request}, finish, is_repeatable=True)

    def watch(self, request: dict[str, Any], timeout_s: float) -> Generator[WatchResult, None, None]:
        """What the server reports of keys, until the time is over."""
        deadline = time.monotonic() + timeout_s
        stream = self.open_watch(request)
        try:
            while (result := stream.read(deadline)) is not None:
                yield result
        finally:
            stream.close()

    def release(self, connection: HttpConnection) -> None:
        """Give a connection back; it is kept unless it was closed."""
        self._handles.release(connection, is_whole=connection.endpoint is not None)

    def find_clusters(self) -> None:
        """Ask every endpoint of which cluster it is.  Raises InvalidConfig when they are of different ones."""
        found: dict[EtcdEndpoint, int] = {}
        timeout_s = min(self.settings.connect_timeout_s, self.settings.operation_timeout_s / len(self.endpoints.listed))
        for endpoint in self.endpoints.listed:
            connection = HttpConnection()
            try:
                connection.connect(endpoint, self.settings.security, timeout_s)
                found[endpoint] = self._read_cluster_id(connection, time.monotonic() + timeout_s)
            except (*_FAILURES, DbError, InvalidConfig):
                self.endpoints.failed(endpoint)  # why, the next request tells
            finally:
                connection.close()
        self.endpoints.cluster_id = judge_clusters(found, self.endpoints.cluster_id, len(self.endpoints.listed))

    # -- inside

    def _perform(
        self,
        path: str,
        request: dict[str, Any],
        finish: Callable[[HttpConnection, EtcdAnswer, float], T],
        is_repeatable: bool,
    ) -> T:
        """``finish`` gives the connection back, or keeps it, unless it raises."""
        body = msgspec.json.encode(request)
        effort = Effort(self.endpoints, self.settings, is_repeatable=is_repeatable)
        while True:
            connection = self._handles.acquire()
            try:
                self._connect(connection, effort)
                return self._attempt(connection, path, body, effort, finish)
            except _TryAgain:
                connection.close()
                self.release(connection)
            except HeliographError:
                self.release(connection)  # the answer was read to its end, or the connection is closed
                raise
            except BaseException:
                connection.close()
                self.release(connection)
                raise

    def _connect(self, connection: HttpConnection, effort: Effort) -> None:
        """Make one, if there is none, to the best endpoint that can be had."""
        while connection.endpoint is None:
            endpoint = self.endpoints.choose(effort.tried)
            if endpoint is None and effort.can_begin_again():
                time.sleep(LEADER_PAUSE_S)
                continue
            if endpoint is None:
                raise effort.error()
            try:
                connection.connect(endpoint, self.settings.security, effort.connect_timeout_s())
                self.check_open()
                if self.endpoints.are_several:
                    self._identify(connection, endpoint, effort)
                connection.is_kept = False
                self.endpoints.works(endpoint)
            except (DbError, InvalidConfig) as error:
                connection.close()
                effort.failed(endpoint, error)
            except _FAILURES as error:
                connection.close()
                self.check_open()
                effort.failed(endpoint, failure_error(error, endpoint, self.settings, is_new=True))

    def _identify(self, connection: HttpConnection, endpoint: EtcdEndpoint, effort: Effort) -> None:
        """Before anything is written there: a member of another cluster would take it."""
        number = self._read_cluster_id(connection, min(effort.request_deadline(), effort.deadline))
        if self.endpoints.cluster_id is None:
            self.endpoints.cluster_id = number
        if number != self.endpoints.cluster_id:
            self.find_clusters()
        if number != self.endpoints.cluster_id:
            raise DbUnavailable(f"{self.settings.address}: {endpoint} is of another cluster, {number:x}")

    def _read_cluster_id(self, connection: HttpConnection, deadline: float) -> int:
        begun = connection.send("maintenance/status", b"{}", "", deadline)
        body = connection.read_body(begun, deadline)
        if begun.status != http.HTTPStatus.OK:
            raise refusal_error(read_refusal(body, begun.status), self.settings)
        return msgspec.json.decode(body, type=StatusAnswer, strict=False).header.cluster_id

    def _attempt(
        self,
        connection: HttpConnection,
        path: str,
        body: bytes,
        effort: Effort,
        finish: Callable[[HttpConnection, EtcdAnswer, float], T],
    ) -> T:
        """Raises _TryAgain when another one may follow."""
        endpoint, was_kept = connection.endpoint, connection.is_kept
        assert endpoint is not None
        effort.is_sent = False
        try:
            begun, refusal, deadline = self._send(connection, path, body, effort)
            if refusal is None:
                return finish(connection, begun, deadline)
        except _LoginRefused as refused:
            refusal = refused.refusal
        except HeliographError:
            raise
        except _FAILURES as error:
            connection.close()
            self.check_open()
            raise self._broken(endpoint, was_kept, effort, error) from error
        failure = refusal_error(refusal, self.settings)
        if isinstance(failure, DbUnavailable) and refusal.is_passing and self.endpoints.are_several:
            effort.failed(endpoint, failure, is_alive=True)
            if refusal.is_untouched or effort.is_repeatable or not effort.is_sent:
                raise _TryAgain
        raise failure

    def _broken(self, endpoint: EtcdEndpoint, was_kept: bool, effort: Effort, error: Exception) -> Exception:
        """What to raise after a connection broke."""
        failure = failure_error(error, endpoint, self.settings, is_new=not was_kept)
        # A server that was restarted has hung up; the same endpoint may be asked once more.
        if not was_kept or isinstance(error, TimeoutError):
            effort.failed(endpoint, failure)
        is_harmless = not effort.is_sent or effort.is_repeatable or is_certificate_refused(error)
        return _TryAgain() if is_harmless and time.monotonic() < effort.deadline else failure

    def _send(
        self, connection: HttpConnection, path: str, body: bytes, effort: Effort
    ) -> tuple[EtcdAnswer, Refusal | None, float]:
        """Until the answer begins, or is a refusal; and how long the rest of it may take.  Logs in when need be."""
        deadline = min(effort.request_deadline(), effort.deadline)
        token = ""
        for attempt in range(1, _LOGINS_MAX + 1):
            token = self._token(connection, token, deadline)
            effort.is_sent = True
            begun = connection.send(path, body, token, deadline)
            self.clock.observe(begun.date)
            if begun.status == http.HTTPStatus.OK:
                return begun, None, deadline
            refusal = read_refusal(connection.read_body(begun, deadline), begun.status)
            if not token or not refusal.is_about_token or attempt == _LOGINS_MAX:
                break
            effort.is_sent = False
        return begun, refusal, deadline

    def _token(self, connection: HttpConnection, refused: str, deadline: float) -> str:
        """For the next request, empty when nobody logs in.  ``refused``: not this one.  Raises _LoginRefused."""
        if not self.settings.user:
            return ""

        def authenticate() -> str:
            request = {"name": self.settings.user, "password": self.settings.password}
            begun = connection.send("auth/authenticate", msgspec.json.encode(request), "", deadline)
            body = connection.read_body(begun, deadline)
            if begun.status != http.HTTPStatus.OK:
                raise _LoginRefused(read_refusal(body, begun.status))
            return msgspec.json.decode(body, type=_LoginAnswer, strict=False).token

        return self._login.token(refused, authenticate, deadline)


class _Handle(HttpConnection):
    """A connection of the pool: not used again while its endpoint is set aside."""

    def __init__(self, endpoints: Endpoints) -> None:
        # A member that is cut off from the others says so at once, and ends its watches, so that another one is asked.
        super().__init__("Grpc-Metadata-Hasleader: true\r\n" if endpoints.are_several else "")
        self._endpoints = endpoints

    def is_usable(self) -> bool:
        return self.endpoint is not None and not self._endpoints.is_aside(self.endpoint) and super().is_usable()
