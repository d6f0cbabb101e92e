"""The connection to the server: scripts and commands, and what errors become.  The only file that knows the library."""

from __future__ import annotations

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
from heliograph_drivers.log.redis.config import CONNECT_TIMEOUT_S, CONNECTIONS_MAX
from heliograph_drivers.log.redis.scripts import LEASE_LOST, REPLACED, WRONG_END
from heliograph_drivers.redis_common import limits as redis_limits
from heliograph_drivers.redis_common import parse_server
from pubsub_api.errors import Closed

T = TypeVar("T")

Argument = bytes | str | int


class RedisLogServer:
    """One Redis server, for any thread.  A forked child gets connections of its own: the library sees to that."""

    def __init__(self, url: SplitResult, options: cfg.ConfigOpts.GroupAttr, limits: cfg.ConfigOpts.GroupAttr) -> None:
        server = parse_server(url.geturl())
        self.address = server.address
        self.identity = ""
        """Of the log that was opened; for errors."""
        self._is_closed = False
        self._digests: dict[str, str] = {}
        security = {"ssl": True, "ssl_ca_certs": options.tls_ca_file} if server.has_tls else {}
        self._client = redis.Redis(
            **server.arguments, **security, max_connections=CONNECTIONS_MAX, protocol=2,
            **redis_limits(connect_timeout_s=CONNECT_TIMEOUT_S, timeout_s=limits.operation_timeout),
        )  # fmt: skip
        self._client.response_callbacks.clear()  # answers as the server gives them: lists of bytes and numbers

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back."""
        self._is_closed = True
        self._client.connection_pool.disconnect(inuse_connections=False)

    def check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the log at {self.address} is closed")

    def script(self, source: str, *arguments: Argument) -> Any:
        """Run a script.  Raises LogUnavailable, LogError, Closed."""
        digest = self._digests.get(source)
        if digest is None:
            digest = self._digests[source] = hashlib.sha1(source.encode()).hexdigest()

        def call(client: redis.Redis) -> Any:
            try:
                return client.evalsha(digest, 0, *arguments)
            except redis.exceptions.NoScriptError:
                return client.eval(source, 0, *arguments)

        return self._call(call)

    def command(self, *arguments: Argument) -> Any:
        """Run one command; the answer as the server gives it.  Raises LogUnavailable, LogError, Closed."""
        return self._call(lambda client: client.execute_command(*arguments))  # type: ignore[no-untyped-call]

    def transaction(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run commands so that all see the same moment."""

        def call(client: redis.Redis) -> list[Any]:
            with client.pipeline(transaction=True) as pipeline:
                for arguments in commands:
                    pipeline.execute_command(*arguments)  # type: ignore[no-untyped-call]
                return pipeline.execute()

        return self._call(call)

    def _call(self, call: Callable[[redis.Redis], T]) -> T:
        self.check_open()
        try:
            return call(self._client)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            self.check_open()
            raise LogUnavailable(f"the log at {self.address} cannot be reached: {error}") from error
        except redis.exceptions.RedisError as error:
            word, _, found = str(error).partition(" ")
            if word == REPLACED:
                raise replaced(self.address, self.identity, found) from error
            if word == LEASE_LOST:
                raise lease_lost() from error
            if word == WRONG_END:
                raise wrong_end(int(found)) from error
            raise LogError(f"the log at {self.address} refuses: {error}") from error
        finally:
            if self._is_closed:
                self._client.connection_pool.disconnect(inuse_connections=False)
