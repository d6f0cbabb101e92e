"""Which server has the log: the one that the URL names, the master that sentinels name, or a node of a cluster.

A log is on one server at a time: an append to several shards happens as a whole.  In a cluster all keys of a log have
one hash tag, so that they are in one slot.
"""

from __future__ import annotations

import abc
import re
import threading
from typing import Any
from urllib.parse import SplitResult

import redis
import redis.cluster
import redis.sentinel

from heliograph_drivers.redis_common import RedisAddress, parse_server
from pubsub_api.errors import InvalidConfig

_SENTINEL, _CLUSTER = "sentinel", "cluster"
_SENTINEL_PORT = 26379
_FORMS = {
    _SENTINEL: "redis+sentinel://[user:password@]host:port,host:port/name/db, where name is what the sentinels call it",
    _CLUSTER: "redis+cluster://[user:password@]host:port,host:port",
}


class LogMaster(abc.ABC):
    """For any thread.  A forked child gets connections of its own: the library sees to that."""

    address: str
    """What is reported, without credentials."""
    is_replicated = True
    """Another server may take its place."""

    @abc.abstractmethod
    def client(self) -> redis.Redis:
        """Connected to the master, as far as is known.  Raises redis.RedisError and OSError."""

    @abc.abstractmethod
    def look_again(self) -> None:
        """Another server may be the master.  Raises redis.RedisError and OSError."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """Close idle connections."""

    def key_prefix(self, configured: str) -> str:
        return configured


def find_master(url: SplitResult, key: str, arguments: dict[str, Any], security: dict[str, Any]) -> LogMaster:
    """``key`` is one of the log's, before `LogMaster.key_prefix`; ``arguments`` and ``security`` are for redis-py.
    Raises InvalidConfig."""
    base, _, kind = url.scheme.partition("+")
    if not kind:
        server = parse_server(url.geturl())
        return _NamedServer(server, {**arguments, **(security if server.has_tls else {})})
    login, at, places = url.netloc.rpartition("@")
    path = url.path.strip("/").split("/")
    service, db = (path[0], *path[1:2]) if kind == _SENTINEL and len(path) == 2 else (path[0], "0")
    is_path_wrong = len(path) > (2 if kind == _SENTINEL else 1) or bool(service) != (kind == _SENTINEL)
    if is_path_wrong or url.query or "@" in login or ("," in places and "" in places.split(",")):
        raise InvalidConfig(
            f"the address of a log on such servers is {_FORMS[kind]}, with user and password once, @ as %40"
        )
    default = f":{_SENTINEL_PORT}" if kind == _SENTINEL else ""
    servers = [
        parse_server(f"{base}://{login}{at}{place.removesuffix(':')}{'' if _has_port(place) else default}/{db}")
        for place in places.split(",")
    ]
    settings = {**arguments, **(security if servers[0].has_tls else {})}
    return _Sentinels(servers, service, settings) if kind == _SENTINEL else _Cluster(servers, key, settings)


def _has_port(place: str) -> bool:
    return place.rpartition("]")[2].removesuffix(":").count(":") == 1


def _places(servers: list[RedisAddress]) -> str:
    return ",".join(server.address.partition("://")[2].partition("/")[0] for server in servers)


def _scheme(server: RedisAddress, kind: str) -> str:
    return f"{'rediss' if server.has_tls else 'redis'}+{kind}"


class _NamedServer(LogMaster):
    is_replicated = False

    def __init__(self, server: RedisAddress, settings: dict[str, Any]) -> None:
        self.address = server.address
        self._client = _plain(redis.Redis(**server.arguments, **settings))

    def client(self) -> redis.Redis:
        return self._client

    def look_again(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        self._client.connection_pool.disconnect(inuse_connections=False)


class _Sentinels(_NamedServer):
    """Every new connection asks the sentinels for the master."""

    is_replicated = True

    def __init__(self, servers: list[RedisAddress], service: str, settings: dict[str, Any]) -> None:
        first = servers[0]
        self.address = f"{_scheme(first, _SENTINEL)}://{_places(servers)}/{service}/{first.db}"
        login = {name: value for name, value in first.arguments.items() if name not in ("host", "port")}
        # The user and the password are those of the servers: sentinels have others, or none.
        asking = {name: value for name, value in settings.items() if name != "max_connections"}
        sentinel = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
            [(server.host, server.port) for server in servers], sentinel_kwargs=asking, **settings, **login
        )
        self._client = _plain(sentinel.master_for(service))  # type: ignore[no-untyped-call]


class _Cluster(LogMaster):
    def __init__(self, servers: list[RedisAddress], key: str, settings: dict[str, Any]) -> None:
        self.address = f"{_scheme(servers[0], _CLUSTER)}://{_places(servers)}"
        self._nodes = [
            redis.cluster.ClusterNode(server.host, server.port)  # type: ignore[no-untyped-call]
            for server in servers
        ]
        login = {name: value for name, value in servers[0].arguments.items() if name in ("username", "password")}
        self._settings = {**settings, **login}
        self._key = self.key_prefix(key)
        self._lock = threading.Lock()
        self._cluster: redis.cluster.RedisCluster | None = None

    def key_prefix(self, configured: str) -> str:
        """With a hash tag, unless it has one.  Raises InvalidConfig when a brace makes none."""
        if re.search("[{}]", configured) is None:
            return f"{{{configured}}}"
        if re.match("[^{]*{[^}]+}", configured) is None:
            raise InvalidConfig(
                f"[log_redis] key_prefix = {configured}: in a cluster its braces must be a hash tag, as in {{log}}"
            )
        return configured

    def client(self) -> redis.Redis:
        with self._lock:
            try:
                if self._cluster is None:  # making it asks the nodes
                    self._cluster = redis.cluster.RedisCluster(startup_nodes=self._nodes, **self._settings)
                node = self._cluster.get_node_from_key(self._key)  # type: ignore[no-untyped-call]
            except redis.exceptions.RedisClusterException as error:  # the library does not count it among its errors
                raise redis.exceptions.ConnectionError(str(error)) from error
            return _plain(self._cluster.get_redis_connection(node))

    def look_again(self) -> None:
        with self._lock:
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def disconnect(self) -> None:
        self.look_again()


def _plain(client: redis.Redis) -> redis.Redis:
    """Answers as the server gives them: lists of bytes and numbers."""
    client.response_callbacks.clear()
    return client
