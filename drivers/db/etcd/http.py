"""Conversations with etcd: transactions over gRPC, all else over the JSON gateway that it has at ``/v3/``.

gRPC takes half the time of the gateway, which matters where a thread waits for a commit
(`heliograph_drivers.db.etcd.wire.http2`).  The gateway is the way for everything else, and for transactions when there
is no gRPC at the endpoint, as behind a proxy for HTTP/1, and when they are large.  Its answers tell the time of the
server, too.
"""

from __future__ import annotations

import email.utils
import http
import logging
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import msgspec

from heliograph_drivers.db.etcd.config import EtcdEndpoint, EtcdSettings
from heliograph_drivers.db.etcd.endpoints import LEADER_PAUSE_S, Effort, Endpoints, judge_clusters
from heliograph_drivers.db.etcd.login import Login
from heliograph_drivers.db.etcd.refusals import (
    Refusal,
    failure_error,
    is_certificate_refused,
    read_refusal,
    refusal_error,
)
from heliograph_drivers.db.etcd.wire.http1 import EtcdAnswer, EtcdConnection, HttpConnection
from heliograph_drivers.db.etcd.wire.http2 import MESSAGE_BYTES_MAX, GrpcConnection, NotGrpc
from heliograph_drivers.db.etcd.wire.messages import Codec, Txn, TxnOutcome, WatchLine, WatchResult
from heliograph_drivers.db.etcd.wire.protobuf import PROTOBUF
from heliograph_drivers.db.handles import Handles
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import HeliographError, InvalidConfig

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_CLOCK_STEP_S = 2.0
_CLOCK_AGE_MAX_S = 10.0
"""If nothing was heard of the server's clock for so long, a transaction goes through the gateway."""
_REPEATABLE = frozenset({"kv/range", "kv/compaction", "maintenance/status", "watch"})
"""Paths of requests that may be sent again when their outcome is not known.  A transaction may be one, too."""
_LOGINS_MAX = 3
"""Of one request: a token may be refused by a member that is behind, or be forgotten while it is on its way."""
_FAILURES = (OSError, ValueError, msgspec.MsgspecError)


class StoreClock:
    """The server's clock, read off the Date of its answers, which is cut to the second.

    Each answer says that it is at least so late there; the latest such statement is the best one.
    """

    def __init__(self) -> None:
        self._offset_s: float | None = None
        self._last_date = ""
        self._heard_at = 0.0

    def observe(self, date: str | None) -> None:
        """None: the answer did not tell."""
        if date is None:
            return
        self._heard_at = time.monotonic()
        if date == self._last_date:
            return
        self._last_date = date
        offset_s = email.utils.parsedate_to_datetime(date).timestamp() - time.monotonic()
        if self._offset_s is None or not -_CLOCK_STEP_S < offset_s - self._offset_s <= 0:
            self._offset_s = offset_s

    @property
    def is_old(self) -> bool:
        """Nothing was heard of it for a while."""
        return time.monotonic() - self._heard_at > _CLOCK_AGE_MAX_S

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
            found = msgspec.json.decode(line, type=WatchLine, strict=False).result
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
        limits = settings.limits
        self._gateway: Handles[EtcdConnection] = Handles(lambda: _GatewayHandle(self.endpoints), limits)
        self._grpc: Handles[EtcdConnection] = Handles(lambda: _GrpcHandle(self.endpoints), limits)
        self._has_grpc = True
        self._login = Login()
        self.check_open = self._gateway.check_open
        self.clock = StoreClock()

    def close(self) -> None:
        """Idempotent."""
        self._gateway.close()
        self._grpc.close()

    def close_idle(self) -> None:
        """Connections that were unused for a while."""
        self._gateway.close_idle()
        self._grpc.close_idle()

    def call(self, path: str, request: dict[str, Any], answer: type[T], *, is_repeatable: bool | None = None) -> T:
        """One request, one answer.  ``is_repeatable``: done twice it does the same; by default as the path says."""
        encoded = msgspec.json.encode(request)

        def finish(connection: EtcdConnection, begun: EtcdAnswer, deadline: float) -> T:
            body = connection.read_body(begun, deadline)
            found = msgspec.json.decode(body, type=answer, strict=False)
            self.release(connection)
            return found

        if is_repeatable is None:
            is_repeatable = path in _REPEATABLE
        return self._perform(self._gateway, path, lambda _codec: encoded, finish, is_repeatable)

    def transact(self, txn: Txn, *, is_repeatable: bool = False) -> TxnOutcome:
        """``is_repeatable``: done twice it does the same."""

        def finish(connection: EtcdConnection, begun: EtcdAnswer, deadline: float) -> TxnOutcome:
            found = connection.codec.read_outcome(connection.read_body(begun, deadline))
            self.release(connection)
            return found

        if self._has_grpc and not self.clock.is_old:
            encoded = PROTOBUF.txn(txn)
            if len(encoded) <= MESSAGE_BYTES_MAX:
                try:
                    return self._perform(self._grpc, "kv/txn", lambda _codec: encoded, finish, is_repeatable)
                except NotGrpc as error:  # nothing was asked
                    self._go_without_grpc(error)
        return self._perform(self._gateway, "kv/txn", lambda codec: codec.txn(txn), finish, is_repeatable)

    def _go_without_grpc(self, error: NotGrpc) -> None:
        if error.is_certain and self._has_grpc:
            self._has_grpc = False
            LOG.info("%s speaks no gRPC, so transactions take its slower gateway: %s", self.settings.address, error)
        else:
            LOG.debug("%s: a transaction takes the gateway: %s", self.settings.address, error)

    def open_watch(self, request: dict[str, Any]) -> WatchStream:
        """Begin to hear of keys."""

        encoded = msgspec.json.encode({"create_request": request})

        def finish(connection: EtcdConnection, begun: EtcdAnswer, deadline: float) -> WatchStream:  # noqa: ARG001
            assert isinstance(connection, HttpConnection)
            assert connection.endpoint is not None
            return WatchStream(self, connection, connection.endpoint)

        return self._perform(self._gateway, "watch", lambda _codec: encoded, finish, is_repeatable=True)

    def watch(self, request: dict[str, Any], timeout_s: float) -> Generator[WatchResult, None, None]:
        """What the server reports of keys, until the time is over."""
        deadline = time.monotonic() + timeout_s
        stream = self.open_watch(request)
        try:
            while (result := stream.read(deadline)) is not None:
                yield result
        finally:
            stream.close()

    def release(self, connection: EtcdConnection) -> None:
        """Give a connection back; it is kept unless it was closed."""
        handles = self._grpc if isinstance(connection, GrpcConnection) else self._gateway
        handles.release(connection, is_whole=connection.endpoint is not None)

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
        handles: Handles[EtcdConnection],
        path: str,
        encode: Callable[[Codec], bytes],
        finish: Callable[[EtcdConnection, EtcdAnswer, float], T],
        is_repeatable: bool,
    ) -> T:
        """``finish`` gives the connection back, or keeps it, unless it raises."""
        effort = Effort(self.endpoints, self.settings, is_repeatable=is_repeatable)
        while True:
            connection = handles.acquire()
            try:
                self._connect(connection, effort)
                return self._attempt(connection, path, encode(connection.codec), effort, finish)
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

    def _connect(self, connection: EtcdConnection, effort: Effort) -> None:
        """Make one, if there is none, to the best endpoint that can be had.  Raises NotGrpc, too."""
        is_grpc = isinstance(connection, GrpcConnection)
        security = self.settings.grpc_security if is_grpc else self.settings.security
        while connection.endpoint is None:
            endpoint = self.endpoints.choose(effort.tried)
            if endpoint is None and effort.can_begin_again():
                time.sleep(LEADER_PAUSE_S)
                continue
            if endpoint is None:
                raise effort.error()
            try:
                connection.connect(endpoint, security, effort.connect_timeout_s())
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

    def _identify(self, connection: EtcdConnection, endpoint: EtcdEndpoint, effort: Effort) -> None:
        """Before anything is written there: a member of another cluster would take it."""
        number = self._read_cluster_id(connection, min(effort.request_deadline(), effort.deadline))
        if connection.endpoint is None:  # what answers on the next connection may be something else
            raise DbUnavailable(
                f"{self.settings.address}: {endpoint} ends a connection after each answer, so its cluster cannot be "
                "checked. Let the proxy in between keep connections, or name it as the only endpoint"
            )
        if self.endpoints.cluster_id is None:
            self.endpoints.cluster_id = number
        if number != self.endpoints.cluster_id:
            self.find_clusters()
        if number != self.endpoints.cluster_id:
            raise DbUnavailable(f"{self.settings.address}: {endpoint} is of another cluster, {number:x}")

    def _read_cluster_id(self, connection: EtcdConnection, deadline: float) -> int:
        begun = connection.send("maintenance/status", connection.codec.status(), "", deadline)
        body = connection.read_body(begun, deadline)
        if begun.status != http.HTTPStatus.OK:
            raise refusal_error(read_refusal(body, begun.status), self.settings)
        return connection.codec.read_cluster_id(body)

    def _attempt(
        self,
        connection: EtcdConnection,
        path: str,
        body: bytes,
        effort: Effort,
        finish: Callable[[EtcdConnection, EtcdAnswer, float], T],
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
        self, connection: EtcdConnection, path: str, body: bytes, effort: Effort
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

    def _token(self, connection: EtcdConnection, refused: str, deadline: float) -> str:
        """For the next request, empty without a login.  ``refused``: not this one.  Raises _LoginRefused."""
        if not self.settings.user:
            return ""

        def authenticate() -> str:
            request = connection.codec.login(self.settings.user, self.settings.password)
            begun = connection.send("auth/authenticate", request, "", deadline)
            body = connection.read_body(begun, deadline)
            if begun.status != http.HTTPStatus.OK:
                raise _LoginRefused(read_refusal(body, begun.status))
            return connection.codec.read_token(body)

        return self._login.token(refused, authenticate, deadline)


# A member that is cut off from the others says so at once, and ends its watches, so that another one is asked.
_HAS_LEADER = ("hasleader", "true")


class _GatewayHandle(HttpConnection):
    """A connection of the pool: not used again while its endpoint is set aside."""

    def __init__(self, endpoints: Endpoints) -> None:
        super().__init__("Grpc-Metadata-{}: {}\r\n".format(*_HAS_LEADER) if endpoints.are_several else "")
        self._endpoints = endpoints

    def is_usable(self) -> bool:
        return self.endpoint is not None and not self._endpoints.is_aside(self.endpoint) and super().is_usable()


class _GrpcHandle(GrpcConnection):
    """The same."""

    def __init__(self, endpoints: Endpoints) -> None:
        super().__init__((_HAS_LEADER,) if endpoints.are_several else ())
        self._endpoints = endpoints

    def is_usable(self) -> bool:
        return self.endpoint is not None and not self._endpoints.is_aside(self.endpoint) and super().is_usable()
