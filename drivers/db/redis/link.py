"""Connections to a Redis server: commands out, answers in, errors in our words.

redis-py opens a connection and speaks the protocol.  Its own client is not used: it sends a command again when the
answer was lost, and a write that is done twice is refused the second time.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import redis

from heliograph_drivers.db.handles import Handles
from heliograph_drivers.db.redis.config import RedisDbSettings
from heliograph_drivers.redis_common import limits
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import Closed, HeliographError, InvalidConfig

Argument = bytes | str | int | float
Command = tuple[Argument, ...]

# Words in a refusal of whatever writes: no memory, no disk, a replica, too few replicas.
_NO_WRITES = ("OOM", "MISCONF", "READONLY", "NOREPLICAS")
# Words in other refusals for which trying again later can help: a long script, starting up.
_PASSING = ("BUSY", "LOADING", "MASTERDOWN", "UNBLOCKED")
_CLASSES = {"tcp": redis.Connection, "tls": redis.SSLConnection, "unix": redis.UnixDomainSocketConnection}


class Script(NamedTuple):
    """A script and the name under which the server knows it once it has seen it."""

    source: bytes
    digest: str


def make_script(source: str) -> Script:
    encoded = source.encode()
    return Script(encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest())


# Not MULTI: a server that is short of memory refuses whatever is in it, also what only reads.
_TOGETHER = make_script("""
local answers, at = {}, 1
while at <= #ARGV do
    local last = at + ARGV[at]
    answers[#answers + 1] = redis.call(unpack(ARGV, at + 1, last))
    at = last + 1
end
return answers
""")


def takes_no_writes(error: redis.ResponseError) -> bool:
    """Whether the server refuses, for now, all that may need memory or disk, and can still be read."""
    refused = isinstance(error, (redis.exceptions.ReadOnlyError, redis.exceptions.OutOfMemoryError))
    return refused or any(word in str(error) for word in _NO_WRITES)


class RedisDbLink:
    """A connection.  One thread at a time may use it.  Raises redis.RedisError and OSError."""

    def __init__(self, settings: RedisDbSettings) -> None:
        """Connect and log in."""
        kind = "tls" if settings.has_tls else "unix" if "path" in settings.arguments else "tcp"
        self._timeout_s = settings.operation_timeout_s
        self._connection: Any = _CLASSES[kind](
            **settings.arguments,
            **limits(connect_timeout_s=settings.connect_timeout_s, timeout_s=settings.operation_timeout_s),
            protocol=2,
        )
        try:
            self._connection.connect()
            self.server = self.info("server")
        except BaseException:
            self._connection.disconnect()
            raise

    @property
    def run(self) -> str:
        """The identity of the server process at the other end, which is another one after a restart."""
        return self.server["run_id"]

    def info(self, section: str) -> dict[str, str]:
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.partition(":")[::2] for line in lines if ":" in line)

    def call(self, *command: Argument, patience_s: float = 0.0) -> Any:
        """The answer to a command.  ``patience_s``: how long the server was asked to wait before it answers."""
        self._connection.send_command(*command)
        # The one place that reaches into redis-py: in its older releases an answer has no timeout of its own.
        stream = self._connection._sock
        stream.settimeout(self._timeout_s + patience_s)
        try:
            return self._connection.read_response()
        finally:
            with contextlib.suppress(OSError):  # redis-py has closed it, because of an error that is on its way
                stream.settimeout(self._timeout_s)

    def run_script(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Argument]) -> Any:
        try:
            return self.call("EVALSHA", script.digest, len(keys), *keys, *arguments)
        except redis.exceptions.NoScriptError:  # the server is new, or its scripts were flushed
            return self.call("EVAL", script.source, len(keys), *keys, *arguments)

    def transaction(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to commands that are carried out at one moment."""
        words = [word for command in commands for word in (len(command), *command)]
        answers: list[Any] = self.run_script(_TOGETHER, (), words)
        return answers

    def is_usable(self) -> bool:
        poller = select.poll()
        if self._connection._sock is None:
            return False
        poller.register(self._connection._sock, select.POLLIN)
        return not poller.poll(0)  # nothing is awaited, so what can be read is the end

    def cut(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # closed already
            self._connection._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.disconnect()


class Links:
    """The connections of one process.  Every method may be called from any thread.

    Everything raises Closed, DbUnavailable, InvalidConfig when the server refuses the user, and DbError for the rest.
    """

    def __init__(self, settings: RedisDbSettings) -> None:
        self._settings = settings
        self._handles = Handles(lambda: RedisDbLink(settings), settings.limits)
        self.check_open = self._handles.check_open
        self.close = self._handles.close
        self.close_idle = self._handles.close_idle

    @contextlib.contextmanager
    def link(self) -> Iterator[RedisDbLink]:
        """Borrow a connection.  Errors of redis-py that leave the block are raised as ours."""
        try:
            link = self._handles.acquire()
            is_whole = False
            try:
                yield link
                is_whole = True
            except (redis.ResponseError, HeliographError):
                is_whole = True  # the answer was read to its end
                raise
            finally:
                self._handles.release(link, is_whole=is_whole)
        except (redis.RedisError, OSError, UnicodeError) as error:
            raise self._translate(error) from error

    def call(self, *command: Argument) -> Any:
        with self.link() as link:
            return link.call(*command)

    def transaction(self, *commands: Command) -> list[Any]:
        with self.link() as link:
            return link.transaction(commands)

    def run_script(self, script: Script, keys: Sequence[bytes], *arguments: Argument) -> Any:
        with self.link() as link:
            return link.run_script(script, keys, arguments)

    def _translate(self, error: Exception) -> HeliographError:
        if self._handles.is_closed:
            return Closed("the database was closed meanwhile")
        message = f"{self._settings.address}: {str(error) or type(error).__name__}"
        if isinstance(error, (redis.AuthenticationError, redis.exceptions.NoPermissionError)):
            return InvalidConfig(message)
        is_refusal = isinstance(error, redis.ResponseError) and not takes_no_writes(error)
        if is_refusal and not any(word in message for word in _PASSING):
            return DbError(message)
        return DbUnavailable(message)
