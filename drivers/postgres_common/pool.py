"""Connections to PostgreSQL, and its errors in our words.

psycopg's own pool works with threads, which a fork would lose, and psycopg waits for an answer as long as the server
lets it.  A server that is stopped or cut off lets it wait for ever, so here every wait for the socket has a deadline.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from heliograph_drivers.db.handles import Handles
from heliograph_drivers.postgres_common.settings import PostgresSettings
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import Closed, HeliographError, InvalidConfig

T = TypeVar("T")
Row = tuple[Any, ...]
RawRow = tuple[bytes | None, ...]

_GRACE_S = 1.0
"""The server ends a statement at its timeout; one that has not even done that a moment later is given up."""
_READ, _WRITE = 1, 2  # as psycopg's generators say what they wait for, and want to be told what is ready

# Classes of SQLSTATE for which trying again later can help: connection, transaction state (a standby is read-only),
# rollback, resources, lock not available, operator intervention (which includes timeouts), system.
_PASSING = {"08", "25", "40", "53", "55", "57", "58"}
# No privilege; a schema, table or column is not there: an operator has to set something up.
_CONFIGURATION = {"42501", "3F000", "42P01", "42703"}

# What it says when max_connections are open.  A refusal at login has no SQLSTATE that libpq would show.
_FULL = ("too many clients", "too many connections", "remaining connection slots")
_FULL_PAUSE_S = 0.1

_SESSION = """
SELECT set_config('statement_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('synchronous_commit',
               CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                    ELSE current_setting('synchronous_commit') END, false)
"""


class FunctionsMissing(InvalidConfig):
    """The database lacks a function of ours.  Nothing was done."""


class PreparedStatement(NamedTuple):
    """A statement for `PostgresConnection.call`."""

    name: bytes
    """No other source has it."""
    source: bytes
    formats: Sequence[int]
    """Of the parameters: 0 for text, 1 for the bytes themselves."""


def prepared(source: str, formats: Sequence[int]) -> PreparedStatement:
    """A statement whose name follows from its source."""
    digest = hashlib.blake2b(source.encode(), digest_size=12).hexdigest()
    return PreparedStatement(f"heliograph_{digest}".encode(), source.encode(), formats)


class PostgresConnection(psycopg.Connection[Row]):
    """A connection in autocommit whose every wait for the server is bounded."""

    answer_timeout_s: float = math.inf
    was_notified = False
    _reading: select.poll | None = None
    """Waits for what can be read.  Used by the one thread that has the connection."""
    _known_calls: frozenset[bytes] = frozenset()
    """The names of statements that `call` has prepared here."""

    def wait(self, gen: PQGen[T], *_: Any, **__: Any) -> T:
        """Drive one of psycopg's generators.  Raises psycopg.OperationalError when the server says nothing in time."""
        deadline = time.monotonic() + self.answer_timeout_s
        try:
            wanted = int(next(gen))
            while True:
                try:
                    ready = self._await_socket(wanted, deadline)
                except psycopg.Error:
                    self.pgconn.finish()  # what the generator does last, to end a pipeline, must not wait either
                    with contextlib.suppress(psycopg.Error):
                        gen.close()
                    raise
                wanted = int(gen.send(ready))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def call(self, statement: PreparedStatement, parameters: Sequence[bytes | None]) -> list[RawRow]:
        """The rows that a statement answers with, as text; one round trip once it is prepared here.

        For what is called all the time: a cursor of psycopg takes longer than a server on the same host.  Raises
        psycopg.Error.
        """
        try:
            return self._call_prepared(statement, parameters)
        except psycopg.errors.InvalidSqlStatementName:  # a proxy between us and the server has forgotten it
            self._known_calls -= {statement.name}
        except psycopg.errors.FeatureNotSupported:  # what it calls was replaced by something that answers otherwise
            self._known_calls -= {statement.name}
            self.execute(b"DEALLOCATE " + statement.name)
        return self._call_prepared(statement, parameters)

    def _call_prepared(self, statement: PreparedStatement, parameters: Sequence[bytes | None]) -> list[RawRow]:
        if statement.name not in self._known_calls:
            # The name stands for the source, so one that is there is ours: a proxy between us and the server has given
            # us a connection that another one of our clients had.
            with contextlib.suppress(psycopg.errors.DuplicatePreparedStatement):
                self.pgconn.send_prepare(statement.name, statement.source)
                self._await_result()
            self._known_calls |= {statement.name}
        self.pgconn.send_query_prepared(statement.name, parameters, statement.formats)
        result = self._await_result()
        columns = range(result.nfields)
        return [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]

    def _await_result(self) -> PGresult:
        """Of the one statement that was sent.  Raises psycopg.Error, also when the server says nothing in time."""
        pgconn, deadline = self.pgconn, time.monotonic() + self.answer_timeout_s
        while pgconn.flush():
            if self._await_socket(_READ | _WRITE, deadline) & _READ:
                pgconn.consume_input()
        while pgconn.is_busy():
            self._await_socket(_READ, deadline)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            raise psycopg.OperationalError("the server has sent no result")
        while pgconn.is_busy():  # its last words about it
            self._await_socket(_READ, deadline)
            pgconn.consume_input()
        pgconn.get_result()
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            raise psycopg.errors.error_from_result(result)
        return result

    def _await_socket(self, wanted: int, deadline: float) -> int:
        ready = self.poll(wanted, deadline - time.monotonic())
        if not ready:
            raise psycopg.OperationalError(f"the server has not answered for {self.answer_timeout_s:g} s")
        return ready

    def poll(self, wanted: int, timeout_s: float) -> int:
        """Which of ``wanted`` the socket is ready for; 0 when the time is over.  An error counts as ready."""
        milliseconds = None if timeout_s == math.inf else max(0, math.ceil(timeout_s * 1000))
        if wanted == _READ:  # for every change, twice
            if self._reading is None:
                self._reading = select.poll()
                self._reading.register(self.pgconn.socket, select.POLLIN)
            return _READ if self._reading.poll(milliseconds) else 0
        poller = select.poll()
        mask = (select.POLLIN if wanted & _READ else 0) | (select.POLLOUT if wanted & _WRITE else 0)
        poller.register(self.pgconn.socket, mask)
        events = poller.poll(milliseconds)
        if not events:
            return 0
        occurred = events[0][1]
        is_broken = occurred & ~(select.POLLIN | select.POLLOUT)
        ready = (_READ if occurred & select.POLLIN else 0) | (_WRITE if occurred & select.POLLOUT else 0)
        return wanted if is_broken else ready

    def listen(self, channel: str) -> None:
        """Begin to receive notifications.  Raises psycopg.Error."""
        self.add_notify_handler(self._note)
        self.execute(f"LISTEN {channel}")

    def unlisten(self) -> None:
        """End it.  A connection that listens and is not read would in the end block the server's queue."""
        self.execute("UNLISTEN *")
        self.remove_notify_handler(self._note)

    def await_notification(self, timeout_s: float) -> None:
        """Return when one arrived since ``was_notified`` was last cleared, or when the time is over."""
        if not self.was_notified and self.poll(_READ, timeout_s):
            self.discard_input()

    def discard_input(self) -> None:
        """Read what the server sent without being asked.  Raises psycopg.OperationalError when it has hung up."""
        self.pgconn.consume_input()
        while self.pgconn.notifies():
            pass

    def is_usable(self) -> bool:
        """Whether an idle connection still stands: a server that went away has said so, unless the network is cut."""
        try:
            while self.poll(_READ, 0):  # last words first, the end of the stream after them
                self.discard_input()
        except (psycopg.Error, OSError):
            return False
        return not self.closed and self.pgconn.transaction_status == TransactionStatus.IDLE

    def cut(self) -> None:
        """End it under the feet of whatever thread uses it, which gets an error at once."""
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.pgconn.socket)) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    def _note(self, _: psycopg.Notify) -> None:
        self.was_notified = True


class PostgresPool:
    """The connections of one process.  Every method may be called from any thread."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._handles = Handles(self._open, settings.limits)
        self.check_open = self._handles.check_open
        self.acquire = self._handles.acquire
        self.close = self._handles.close
        self.close_idle = self._handles.close_idle

    @contextlib.contextmanager
    def connection(self) -> Iterator[PostgresConnection]:
        """Borrow a connection.  Errors of psycopg that leave the block are raised as ours."""
        with self.translated():
            connection = self.acquire()
            try:
                yield connection
            finally:
                self.release(connection)

    def call(self, statement: PreparedStatement, parameters: Sequence[bytes | None]) -> list[RawRow]:
        """As `PostgresConnection.call`, on one of ours and with our errors.  In one piece, because it is called for
        every change."""
        try:
            connection = self.acquire()
            try:
                return connection.call(statement, parameters)
            finally:
                self.release(connection)
        except psycopg.Error as error:
            raise self._translate(error) from error

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of psycopg as ours: Closed, DbUnavailable, InvalidConfig, or DbError for the rest."""
        try:
            yield
        except psycopg.Error as error:
            raise self._translate(error) from error

    def release(self, connection: PostgresConnection) -> None:
        """Give one back, whatever state it is in."""
        is_whole = not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE
        self._handles.release(connection, is_whole=is_whole)

    def _open(self) -> PostgresConnection:
        """A server that has no room for another connection is asked again, as long as connecting may take."""
        deadline = time.monotonic() + self._settings.connect_timeout_s
        while True:
            try:
                return self._connect()
            except psycopg.OperationalError as error:
                if not any(words in str(error) for words in _FULL) or time.monotonic() > deadline:
                    raise
            self.check_open()
            time.sleep(random.uniform(0.5, 1.0) * _FULL_PAUSE_S)

    def _connect(self) -> PostgresConnection:
        settings = self._settings
        connection = PostgresConnection.connect(
            settings.conninfo,
            autocommit=True,
            connect_timeout=math.ceil(settings.connect_timeout_s),
            fallback_application_name="heliograph",
            client_encoding="UTF8",
            keepalives_idle=10,  # a wait can be long and silent; a peer that is gone is noticed within half a minute
            keepalives_interval=5,
            keepalives_count=3,
        )
        try:
            connection.answer_timeout_s = settings.operation_timeout_s + _GRACE_S
            timeouts = (settings.operation_timeout_s, settings.idle_timeout_s)
            connection.execute(_SESSION, [f"{math.ceil(seconds * 1000)}ms" for seconds in timeouts])
        except BaseException:
            connection.close()
            raise
        return connection

    def _translate(self, error: psycopg.Error) -> HeliographError:
        if self._handles.is_closed:
            return Closed("the database was closed meanwhile")
        state = error.sqlstate or ""
        message = f"{self._settings.address}: {str(error).strip() or type(error).__name__}"
        if isinstance(error, psycopg.errors.UndefinedFunction):
            return FunctionsMissing(message)
        if state in _CONFIGURATION:
            return InvalidConfig(message)
        is_passing = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) or state[:2] in _PASSING
        return DbUnavailable(message) if is_passing else DbError(message)
