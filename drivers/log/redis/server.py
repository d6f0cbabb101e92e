"""The connection to the server: scripts and commands, and what errors become.  The only file that knows the library."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult

import redis
from oslo_config import cfg

from durable_log.core.fence import lease_lost
from durable_log.core.positions import wrong_end
from durable_log.errors import LogError, LogUnavailable
from durable_log.storage.segmented import replaced
from heliograph_drivers.log.redis.config import CONNECT_TIMEOUT_S, CONNECTIONS_MAX, REPLICAS_MIN
from heliograph_drivers.log.redis.masters import find_master
from heliograph_drivers.log.redis.scripts import LEASE_LOST, REPLACED, WRONG_END
from heliograph_drivers.redis_common import limits as redis_limits
from pubsub_api.errors import Closed

T = TypeVar("T")

Argument = bytes | str | int

_REPLICAS_PART = 0.5
"""How much of the time for an operation may pass until replicas have it: the answer must come before its end."""
_NOT_MASTER = (
    redis.exceptions.ReadOnlyError, redis.exceptions.AskError, redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)  # fmt: skip
"""Raised for a server that does not have the log now.  MOVED is a kind of ASK, MASTERDOWN of CLUSTERDOWN."""
_SAID_BY_OTHERS = (
    "READONLY", "NOREPLICAS", "UNBLOCKED", "MASTERDOWN", "non local key", "cluster is down", "with replica instances",
)  # fmt: skip
"""In the texts of such a server that the library has no class for: most are those of scripts."""


class RedisLogServer:
    """The server that has the log, for any thread.  A forked child gets connections of its own: the library sees to
    that."""

    def __init__(self, url: SplitResult, options: cfg.ConfigOpts.GroupAttr, limits: cfg.ConfigOpts.GroupAttr) -> None:
        self._master = find_master(
            url,
            options.key_prefix,
            {
                **redis_limits(connect_timeout_s=CONNECT_TIMEOUT_S, timeout_s=limits.operation_timeout),
                "max_connections": CONNECTIONS_MAX,
                "protocol": 2,
            },
            {"ssl": True, "ssl_ca_certs": options.tls_ca_file},
        )
        self.address = self._master.address
        self.prefix = self._master.key_prefix(options.key_prefix)
        self.is_replicated = self._master.is_replicated
        self.identity = ""
        """Of the log that was opened; for errors."""
        self._replicas_min = REPLICAS_MIN if self.is_replicated else 0
        self._replicas_wait_ms = int(limits.operation_timeout * 1000 * _REPLICAS_PART)
        self._is_closed = False
        self._digests: dict[str, str] = {}

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back."""
        self._is_closed = True
        self._master.disconnect()

    def check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the log at {self.address} is closed")

    def script(self, source: str, *arguments: Argument, changes: bool = True) -> Any:
        """Run a script.  ``changes``: it may write.  Raises LogUnavailable, LogError, Closed."""
        digest = self._digests.get(source)
        if digest is None:
            digest = self._digests[source] = hashlib.sha1(source.encode()).hexdigest()

        def call(client: redis.Redis) -> Any:
            try:
                return run(client, "EVALSHA", digest, 0, *arguments)
            except redis.exceptions.NoScriptError:
                return run(client, "EVAL", source, 0, *arguments)

        run = self._run_replicated if changes and self._replicas_min else _run
        return self._call(call)

    def command(self, *arguments: Argument) -> Any:
        """Run one command that reads; the answer as the server gives it.  Raises LogUnavailable, LogError, Closed."""
        return self._call(lambda client: _run(client, *arguments))

    def transaction(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run commands so that all see the same moment."""

        def call(client: redis.Redis) -> list[Any]:
            with client.pipeline(transaction=True) as pipeline:
                for arguments in commands:
                    pipeline.execute_command(*arguments)  # type: ignore[no-untyped-call]
                return pipeline.execute()

        return self._call(call)

    def _run_replicated(self, client: redis.Redis, *words: Argument) -> Any:
        """Done when so many replicas have it that a fail-over does not lose it.  They are asked on the connection that
        has written: Redis knows no other way."""
        with client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
            pipeline.execute_command("WAIT", self._replicas_min, self._replicas_wait_ms)  # type: ignore[no-untyped-call]
            answer, replicas = pipeline.execute(raise_on_error=False)
        for error in (answer, replicas):
            if isinstance(error, Exception):
                raise error
        if replicas < self._replicas_min:
            raise redis.exceptions.ConnectionError(
                f"{replicas} replicas have what was written, and {self._replicas_min} must: a fail-over would lose it"
            )
        return answer

    def _call(self, call: Callable[[redis.Redis], T]) -> T:
        self.check_open()
        try:
            return call(self._master.client())
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            self.check_open()
            raise self._unavailable(error) from error
        except redis.exceptions.RedisError as error:
            word, _, found = str(error).partition(" ")
            if word == REPLACED:
                raise replaced(self.address, self.identity, found) from error
            if word == LEASE_LOST:
                raise lease_lost() from error
            if word == WRONG_END:
                raise wrong_end(int(found)) from error
            if isinstance(error, _NOT_MASTER) or any(sign in str(error) for sign in _SAID_BY_OTHERS):
                raise self._unavailable(error) from error
            raise LogError(f"the log at {self.address} refuses: {error}") from error
        finally:
            if self._is_closed:
                self._master.disconnect()

    def _unavailable(self, error: Exception) -> LogUnavailable:
        if self.is_replicated:
            with contextlib.suppress(redis.RedisError, OSError):
                self._master.look_again()
        return LogUnavailable(f"the log at {self.address} cannot be reached: {error}")


def _run(client: redis.Redis, *words: Argument) -> Any:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]
