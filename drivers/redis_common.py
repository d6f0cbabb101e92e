"""What all drivers on Redis share: the URL of a server, and the arguments for a connection of redis-py."""

from __future__ import annotations

import dataclasses
import urllib.parse
from typing import Any

import redis.backoff
import redis.retry

from pubsub_api.errors import InvalidConfig

SCHEMES = {"redis": False, "rediss": True}
"""Scheme -> whether the connection is encrypted."""
_DEFAULT_HOST = "127.0.0.1"
_DEFAULT_PORT = 6379


@dataclasses.dataclass(frozen=True)
class RedisAddress:
    """The parts of the URL of a server."""

    host: str
    port: int
    db: int
    has_tls: bool
    username: str | None = dataclasses.field(default=None, repr=False)
    password: str | None = dataclasses.field(default=None, repr=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments for a connection of redis-py: address and login."""
        names = ("host", "port", "db", "username", "password")
        return {name: getattr(self, name) for name in names}

    @property
    def address(self) -> str:
        """The URL without credentials, for reports, logs and comparisons."""
        scheme = "rediss" if self.has_tls else "redis"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{self.db}"


def parse_server(url: str) -> RedisAddress:
    """Parse the URL of a server.  Raises InvalidConfig, whose message never has a password."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or _DEFAULT_HOST, _DEFAULT_PORT if parts.port is None else parts.port
    except ValueError as error:
        raise InvalidConfig(f"the address of a redis server cannot be understood: {error}") from error
    if parts.scheme not in SCHEMES or parts.query or parts.fragment:
        raise InvalidConfig(
            "the address of a redis server is redis://host:port/db, or rediss:// for TLS, and nothing else"
        )
    if port == 0:
        raise InvalidConfig(f"redis server {host}: 0 is not a port to connect to")
    db = parts.path.strip("/") or "0"
    if not (db.isascii() and db.isdigit()):
        raise InvalidConfig(f"the database of redis server {host}:{port} must be a number, not {db!r}")
    return RedisAddress(
        host=host,
        port=port,
        db=int(db),
        has_tls=SCHEMES[parts.scheme],
        username=urllib.parse.unquote(parts.username) if parts.username else None,
        password=urllib.parse.unquote(parts.password) if parts.password is not None else None,
    )


def limits(*, connect_timeout_s: float, timeout_s: float) -> dict[str, Any]:
    """Arguments for a connection of redis-py: its time-outs, and no retries, because the callers retry."""
    return {
        "socket_connect_timeout": connect_timeout_s,
        "socket_timeout": timeout_s,
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    }
