"""Several redis-servers that replicate: a master with two replicas, watched by sentinels or as a part of a cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket
from collections.abc import Callable, Iterator, Sequence

import redis
from redis.crc import key_slot

from pubsub_api.testing.ports import free_port
from tests.helpers.server_process import START_TIMEOUT_S
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import wait_until

LOOPBACK = "127.0.0.1"
FAILURE_MS = 1500
REPLICAS = 2
WATCHERS = 3
SLOTS = 16384
BUS_OFFSET = 10_000
"""A node of a cluster talks to others at its port and this."""
DURABLE = {"appendonly": "yes", "appendfsync": "everysec", "min-replicas-to-write": "1"}


@dataclasses.dataclass
class RedisSite:
    url: str
    """Of a log of two shards."""
    servers: list[RedisServer]
    """The master and its replicas, in no order."""

    def master(self) -> RedisServer:
        """The one that says so.  One that was killed says nothing."""
        for server in self.servers:
            with contextlib.suppress(redis.ConnectionError), server.client() as client:
                if client.info("replication")["role"] == "master":
                    return server
        raise AssertionError("no server says that it is the master")


class _Sentinel(RedisServer):
    def __init__(self, master_port: int) -> None:
        super().__init__()
        self._master_port = master_port

    def _command(self) -> Sequence[str]:
        return [*super()._command(), "--sentinel"]

    def _is_ready(self) -> bool:
        return "+monitor master" in self._log.read_text()

    def _write_config(self) -> str:
        path = self.directory / "redis.conf"
        path.write_text(
            f"bind {LOOPBACK}\nport {self.port}\ndir {self.directory}\n"
            f"sentinel monitor truth {LOOPBACK} {self._master_port} 2\n"
            f"sentinel down-after-milliseconds truth {FAILURE_MS}\nsentinel failover-timeout truth 6000\n"
        )
        return str(path)


class _ClusterNode(RedisServer):
    def __init__(self) -> None:
        super().__init__(config={**DURABLE, "cluster-enabled": "yes", "cluster-node-timeout": str(FAILURE_MS)})

    def _choose_ports(self) -> None:
        self.port = _free_pair()


def _free_pair() -> int:
    """A port that is free together with the one for the cluster's own messages, which ephemeral ports leave no room
    for."""
    while True:
        port = random.randrange(12_000, 22_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for one in (port, port + BUS_OFFSET):
                stack.enter_context(socket.create_server((LOOPBACK, one)))
            return port


@contextlib.contextmanager
def watched_by_sentinels() -> Iterator[RedisSite]:
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(RedisServer(config=DURABLE))
        following = {**DURABLE, "replicaof": f"{LOOPBACK} {master.port}"}
        replicas = [stack.enter_context(RedisServer(config=following)) for _ in range(REPLICAS)]
        _wait(lambda: _replicas(master) == REPLICAS, "replicas")
        sentinels = [stack.enter_context(_Sentinel(master.port)) for _ in range(WATCHERS)]
        for sentinel in sentinels:
            with sentinel.client() as client:
                _wait(lambda: _knows_all(client.sentinel_master("truth")), "sentinels that know each other")
        absent = f"{LOOPBACK}:{free_port()}"  # the first that is asked is not always there
        places = ",".join([absent, *(f"{LOOPBACK}:{one.port}" for one in sentinels)])
        yield RedisSite(f"redis+sentinel://{places}/truth/0?shards=2", [master, *replicas])


def _knows_all(found: dict[str, object]) -> bool:
    return (found["num-slaves"], found["num-other-sentinels"]) == (REPLICAS, WATCHERS - 1)


@contextlib.contextmanager
def in_a_cluster(key_tag: str) -> Iterator[RedisSite]:
    """Three masters, of which the one that has the slot of the tag has two replicas."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(_ClusterNode()) for _ in range(3 + REPLICAS)]
        masters, replicas = nodes[:3], nodes[3:]
        clients = [stack.enter_context(node.client()) for node in nodes]
        for client in clients[1:]:
            clients[0].execute_command("CLUSTER", "MEET", LOOPBACK, nodes[clients.index(client)].port)
        parts = [range(part * SLOTS // 3, (part + 1) * SLOTS // 3) for part in range(3)]
        for client, part in zip(clients, parts, strict=False):
            client.execute_command("CLUSTER", "ADDSLOTS", *part)
        owner = next(index for index, part in enumerate(parts) if key_slot(key_tag.encode()) in part)
        identity = clients[owner].execute_command("CLUSTER", "MYID")
        for client in clients[3:]:
            _wait(lambda: _follow(client, identity), "the node to be known")  # noqa: B023
        _wait(lambda: _replicas(masters[owner]) == REPLICAS, "replicas")
        for client in clients:
            _wait(lambda: client.cluster("INFO")["cluster_state"] == "ok", "a cluster that is complete")  # noqa: B023
        places = ",".join(f"{LOOPBACK}:{node.port}" for node in masters)
        yield RedisSite(f"redis+cluster://{places}?shards=2", [masters[owner], *replicas])


def _follow(client: redis.Redis, identity: object) -> bool:
    try:
        client.execute_command("CLUSTER", "REPLICATE", identity)  # type: ignore[no-untyped-call]
    except redis.ResponseError:
        return False
    return True


def _replicas(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("replication")["connected_slaves"])


def _wait(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, START_TIMEOUT_S, what)


class SlotMove:
    """The slot of a log is handed over to another master, which gets a replica of the former one."""

    def __init__(self, site: RedisSite, key_tag: str) -> None:
        self._slot = key_slot(key_tag.encode())
        self._former = site.master().client()
        self._former_id = self._former.execute_command("CLUSTER", "MYID")
        nodes = self._former.cluster("NODES")
        self._place, self._target_id = next(
            (address.partition("@")[0].split(":"), node["node_id"])
            for address, node in nodes.items()
            if "master" in node["flags"] and "myself" not in node["flags"]
        )
        self._target = redis.Redis(self._place[0], int(self._place[1]))
        following = next(server for server in site.servers if server is not site.master())
        with following.client() as client:
            client.execute_command("CLUSTER", "REPLICATE", self._target_id)
        _wait(lambda: self._target.info("replication")["min_slaves_good_slaves"] == 1, "a replica")

    def begin(self) -> None:
        self._target.execute_command("CLUSTER", "SETSLOT", self._slot, "IMPORTING", self._former_id)
        self._former.execute_command("CLUSTER", "SETSLOT", self._slot, "MIGRATING", self._target_id)

    def finish(self) -> None:
        keys = self._former.execute_command("CLUSTER", "GETKEYSINSLOT", self._slot, 1000)
        self._former.execute_command("MIGRATE", *self._place, "", 0, 60_000, "KEYS", *keys)
        for client in (self._target, self._former):
            client.execute_command("CLUSTER", "SETSLOT", self._slot, "NODE", self._target_id)
            client.close()
