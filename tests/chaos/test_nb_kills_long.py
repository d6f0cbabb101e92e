"""kill -9 of everybody, many times, for every pair of database and way to follow it: in the end all copies are equal.

`tests/functional/nb_api/test_nb_kills.py` has the short samples.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nb_api import LocalCache, NbApi
from nb_api.errors import DbError
from tests.helpers.nb_nodes import TABLES, ControllerNode, MortalWriters, Row, ServiceNode, WriterNode, rows_of
from tests.helpers.nb_tools import open_nb, sqlite_url
from tests.helpers.server_process import ServerProcess
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.servers_db import EtcdServer, PostgresServer
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

MOMENTS = int(os.environ.get("HELIOGRAPH_KILLS", "20"))
WAIT_S = 180.0
TIMES = {"operation_timeout": 2.0}
PAIRS = [
    *((database, way) for database in ("sqlite", "redis", "postgres", "etcd") for way in ("feed", "redis", "zmq")),
    ("sqlite", "zenoh"), ("postgres", "longpoll"),
]  # fmt: skip
"""A database, and how it is followed: by its own feed, over redis, or through a publisher service that binds."""


MORTALS = 10 * MOMENTS
"""Writers that are killed between a commit and its publication."""


class World:
    """Two writers that never stop, two controllers, a service where one is needed, and a reader that survives."""

    def __init__(self, url: str, bus: str | None, settings: dict[str, Any], server: ServerProcess | None) -> None:
        self.url, self.bus, self.settings, self.server = url, bus, settings, server
        self.chance = random.Random(f"{url.partition(':')[0]} {bus}")
        self.has_service = "publisher_multiproc_socket" in settings
        self.nb: NbApi = open_nb(url, bus, **settings)
        self.nodes: dict[str, WriterNode | ControllerNode | ServiceNode] = {}
        names = [*(["service"] if self.has_service else []), "writer 1", "writer 2", "controller 1", "controller 2"]
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        if name == "service":
            assert self.bus is not None
            self.nodes[name] = ServiceNode(self.url, self.bus, **self.settings)
        elif name.startswith("writer"):
            writer = WriterNode(self.url, self.bus, seed=self.chance.getrandbits(32), **self.settings)
            writer.start_flood()
            self.nodes[name] = writer
        else:
            topics = ["tenant-1/#"] if name.endswith("1") else None
            self.nodes[name] = ControllerNode(self.url, self.bus, topics, **self.settings)

    def kill(self, name: str) -> None:
        if name == "database":
            assert self.server is not None
            self.server.restart()
        else:
            self.nodes.pop(name).kill()
            self.start(name)

    def let_write(self) -> None:
        """Until a random number of changes more are committed."""
        goal = self.asked(self.nb.db.revision) + self.chance.randrange(1, 200)
        wait_until(lambda: self.asked(self.nb.db.revision) >= goal, WAIT_S, "some writes")

    def asked(self, question: Callable[[], Any]) -> Any:
        """The answer of a database that may just be restarting."""

        def ask() -> list[Any]:
            try:
                return [question()]
            except DbError:
                return []

        return wait_until(ask, WAIT_S, "the database to answer")[0]

    def check(self) -> None:
        """Silence the writers; then every copy must become equal to the database, and the outbox empty."""
        for name in ("writer 1", "writer 2"):
            self.nodes.pop(name).kill()
        self.asked(lambda: self.nb.put("port", "the survivor sweeps", None, topic="tenant-2"))
        wait_until(lambda: self.asked(self.nb.db.unpublished) == [], WAIT_S, "the outbox to be swept")
        for name in ("controller 1", "controller 2"):
            wait_until(lambda name=name: self.held_by(name) == self.expected(name), WAIT_S, f"{name} to be equal")  # type: ignore[misc]
        for name in ("writer 1", "writer 2"):
            self.start(name)

    def held_by(self, name: str) -> list[Row]:
        controller = self.nodes[name]
        assert isinstance(controller, ControllerNode)
        return controller.rows()

    def expected(self, name: str) -> list[Row]:
        rows: list[Row] = self.asked(lambda: rows_of(self.nb))
        return [row for row in rows if row[2].startswith("tenant-1/")] if name.endswith("1") else rows

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.nb.close()


@contextlib.contextmanager
def _database(name: str, directory: pathlib.Path) -> Iterator[tuple[str, ServerProcess | None]]:
    if name == "sqlite":
        yield sqlite_url(directory), None
        return
    durable = {"appendonly": "yes", "appendfsync": "always"}
    make = {"redis": lambda: RedisServer(config=durable), "postgres": PostgresServer, "etcd": EtcdServer}[name]
    with make() as server:
        url = server.new_database() if isinstance(server, PostgresServer) else server.new_prefix()  # type: ignore[union-attr]
        yield url, server


@pytest.fixture(params=PAIRS, ids="-".join)
def world(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[World]:
    database, way = request.param
    settings: dict[str, Any] = {"db": TIMES}
    with contextlib.ExitStack() as stack:
        url, server = stack.enter_context(_database(database, tmp_path))
        bus = None
        if way == "redis":
            bus = stack.enter_context(RedisServer()).address
        elif way != "feed":
            bus = f"{way}://127.0.0.1:{free_port()}"
            settings["publisher_multiproc_socket"] = str(tmp_path / "workers")
        world = World(url, bus, settings, server)
        stack.callback(world.close)
        yield world


def test_everybody_is_killed_at_random_moments(world: World) -> None:
    victims = [name for name in ("service",) if world.has_service] + ["writer 1", "controller 1"]
    victims += ["database"] if world.server is not None else []
    for victim in victims:
        for _ in range(MOMENTS):
            world.let_write()
            world.kill(victim)
        world.check()


@pytest.mark.parametrize("database", ["sqlite", "redis", "postgres", "etcd"])
def test_writers_are_killed_between_commit_and_direct_publication(database: str, tmp_path: pathlib.Path) -> None:
    with _database(database, tmp_path) as (url, _), RedisServer() as redis, open_nb(url, redis.address) as nb:
        nb.put("port", "the survivor sweeps", None, topic="tenant-2")
        with LocalCache(nb, tables=TABLES) as cache, MortalWriters(url, redis.address, seed=1) as writers:
            cache.wait_synced(timeout_s=WAIT_S)
            for _ in range(MORTALS):
                writers.die()
            wait_until(lambda: nb.db.unpublished() == [], WAIT_S, "the outbox to be swept")
            wait_until(lambda: rows_of(cache) == rows_of(nb), WAIT_S, "the cache to equal the database")
        assert nb.statistics().sweeper.swept >= MORTALS
