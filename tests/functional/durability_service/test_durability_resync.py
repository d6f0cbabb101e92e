"""Controllers that resync from durability services: equal to the database in the end, and there when it is not."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import pubsub_api
from durability_service import config as durability_config
from durability_service.client import DurabilityClient
from durability_service.clients.resync_source import DurabilitySource
from durability_service.errors import NoService
from durability_service.storage.checkpoint import CheckpointReport, write_checkpoint
from nb_api import LocalCache, NbApi, Resynced
from nb_api.cache.snapshot_source import SourceSnapshot
from nb_api.errors import DbUnavailable
from pubsub_api import Event
from pubsub_api.errors import InvalidConfig
from tests.helpers.durability_domain import ServiceProcess, durability_conf
from tests.helpers.nb_nodes import TABLES, WriterNode, rows_of
from tests.helpers.nb_tools import nb_conf, open_nb, sqlite_url
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.waiting import wait_until

WAIT_S = 60.0


class Site:
    """A database, a writer, a durability service in a process of its own, and controllers, on one bus."""

    def __init__(self, driver: str, redis: RedisServer, db_url: str, directory: pathlib.Path) -> None:
        self.is_bind_based = driver == "zmq"
        self.db_url = db_url
        self._directory = directory
        self._redis = redis
        self._prefix = redis.new_prefix().rpartition("=")[2]
        self.stack = contextlib.ExitStack()
        bus = self._url()
        self.writer_bus = bus
        self.nb = self.stack.enter_context(open_nb(db_url, bus, pub_sub_use_multiproc=False))
        self.seeder = self.stack.enter_context(pubsub_api.open(conf=durability_conf(self._url()))).publisher()
        self.service = self.start_service()

    def _url(self) -> str:
        if self.is_bind_based:
            return f"zmq://127.0.0.1:{free_port()}"
        return f"{self._redis.address}?channel_prefix={self._prefix}:"

    def start_service(self) -> ServiceProcess:
        publishers = [self.writer.address, self.seeder.address] if self.is_bind_based else None
        service = ServiceProcess(
            self._url(), "keeper", self._directory / "keeper.db", publishers=publishers,
            peers=[] if self.is_bind_based else None, hot_bytes_max=64 * 1024 * 1024,  # a flood of writers is behind
        )  # fmt: skip
        self.stack.enter_context(service)
        wait_until(lambda: all(one.is_complete for one in service.status().name_spaces), WAIT_S, "the service")
        return service

    @property
    def writer(self) -> pubsub_api.Publisher:
        publisher: pubsub_api.Publisher = self.nb.publisher.publisher  # type: ignore[union-attr]
        return publisher

    @property
    def services(self) -> list[str] | None:
        return [self.service.address] if self.is_bind_based else None

    def fill(self, count: int = 20, *, value: Any = None) -> None:
        for number in range(count):
            self.nb.create("port", f"p{number}", [number, value], topic=f"tenant-{number % 2}/port")
        self.settle()

    def change(self, name: str) -> None:
        """One change of each sort."""
        self.nb.update("port", "p1", name)
        self.nb.update("port", "p2", name, topic="tenant-1/port")
        self.nb.delete("port", "p3")
        self.nb.create("port", name, 1, topic="tenant-0/port")
        self.nb.create("port", "p3", "again", topic="tenant-1/port")
        self.settle()

    def settle(self) -> None:
        """Everything written is with the service, on disk."""
        self.nb.flush(timeout_s=WAIT_S)
        self.writer.confirm(caches=1, timeout_s=WAIT_S, addresses=self.services)

    def checkpoint(self, **options: Any) -> CheckpointReport:
        with (
            pubsub_api.open(conf=durability_conf(self.writer_bus, **options)) as session,
            DurabilityClient(session, addresses=self.services) as client,
        ):
            return write_checkpoint(self.seeder, client, self.nb.db, services=self.services, timeout_s=WAIT_S)

    def conf(self, **options: Any) -> Any:
        conf = nb_conf(self.writer_bus, cache={"resync_source": "durability", **options})
        durability_config.register(conf)
        conf.set_override("fellows", self.services or [], group=durability_config.GROUP)
        conf.set_override("no_service_time", WAIT_S, group=durability_config.GROUP)
        return conf

    def open(self, url: str | None = None, **options: Any) -> NbApi:
        return self.stack.enter_context(NbApi.open(conf=self.conf(**options), url=url or self.db_url))

    def cache(self, nb: NbApi | None = None, *, is_awaited: bool = True, **arguments: Any) -> LocalCache:
        addresses = [self.writer.address] if self.is_bind_based else None
        cache = self.stack.enter_context(LocalCache(nb or self.open(), addresses=addresses, **arguments))
        if is_awaited:
            cache.wait_synced(timeout_s=WAIT_S)
        return cache

    def wait_equal(self, cache: LocalCache, topics: Sequence[str] | None = None) -> None:
        wait_until(
            lambda: cache.get_all("port") == self.nb.get_all("port", topics=topics), WAIT_S, "the copy to be equal"
        )


@pytest.fixture(scope="module")
def bus_server() -> Iterator[RedisServer]:
    """For the bus: it stays when a database is killed."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def db_server(tmp_path: pathlib.Path) -> Iterator[RedisServer]:
    """A database that can be killed and comes back with all it had; also reached at `socket_of`."""
    config = {"appendonly": "yes", "appendfsync": "always", "unixsocket": str(tmp_path / "db.sock")}
    with RedisServer(config=config) as server:
        yield server


@pytest.fixture(autouse=True)
def patient_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durability_service.clients.resync_source.SOURCE_TIMEOUT_S", WAIT_S)


@pytest.fixture(params=["zmq", "redis"])
def site(request: pytest.FixtureRequest, bus_server: RedisServer, tmp_path: pathlib.Path) -> Iterator[Site]:
    made = Site(request.param, bus_server, sqlite_url(tmp_path), tmp_path)
    with made.stack:
        yield made


@pytest.fixture
def small_site(bus_server: RedisServer, tmp_path: pathlib.Path) -> Iterator[Site]:
    made = Site("redis", bus_server, sqlite_url(tmp_path), tmp_path)
    with made.stack:
        yield made


@pytest.fixture(params=["zmq", "redis"])
def redis_site(
    request: pytest.FixtureRequest, bus_server: RedisServer, db_server: RedisServer, tmp_path: pathlib.Path
) -> Iterator[Site]:
    made = Site(request.param, bus_server, db_server.new_prefix(), tmp_path)
    with made.stack:
        yield made


# -- while the database is there


def test_a_cache_loads_from_services_and_reads_only_the_changes_after_the_checkpoint(site: Site) -> None:
    site.fill()
    report = site.checkpoint()
    assert (report.objects, report.published, report.deleted) == (20, 0, 0)
    site.change("late")
    told: list[Any] = []
    cache = site.cache(on_changes=told.extend)
    site.wait_equal(cache)
    syncs = cache.statistics().syncs
    assert (syncs.snapshots, syncs.from_source, syncs.source_failures, syncs.source_repairs) == (0, 1, 0, 0)
    assert next(one for one in told if isinstance(one, Resynced)).revision == report.revision
    some = site.cache(topics=["tenant-1/#"])
    site.wait_equal(some, ["tenant-1/#"])
    assert some.statistics().syncs.from_source == 1
    site.change("later")
    site.wait_equal(cache)
    site.wait_equal(some, ["tenant-1/#"])


def test_objects_older_than_the_service_are_given_to_it(small_site: Site) -> None:
    """And what it has too much is taken away: both were written where nobody heard of it."""
    site = small_site
    site.fill(10)
    with open_nb(site.db_url) as silent:
        for number in range(10):
            silent.create("port", f"silent-{number}", number, topic="tenant-1/port")
        silent.delete("port", "p5")
        silent.update("port", "p6", "silent")
        silent.update("port", "p7", "silent", topic="tenant-0/port")
    report = site.checkpoint()
    assert (report.published, report.deleted) == (12, 2)
    again = site.checkpoint()
    assert (again.published, again.deleted) == (0, 0)
    cache = site.cache()
    site.wait_equal(cache)
    assert cache.statistics().syncs.from_source == 1
    assert cache.statistics().syncs.source_repairs == 0


def test_an_older_version_that_was_published_later_is_not_believed(small_site: Site) -> None:
    """As when somebody sweeps up after a writer that died: a service takes it for the newest."""
    site = small_site
    site.fill()
    old = site.nb.get("port", "p1").version
    site.nb.update("port", "p1", "new")
    site.settle()
    site.checkpoint()
    site.writer.send_event(Event(topic="tenant-1/port", table="port", key="p1", action="set", value="old", version=old))
    site.settle()
    told: list[Any] = []
    cache = site.cache(on_changes=told.extend)
    assert cache.get("port", "p1").value == "new"
    assert "old" not in [one.object.value for one in told if not isinstance(one, Resynced)]
    assert cache.statistics().syncs.source_repairs == 1
    assert cache.statistics().syncs.snapshots == 0


def test_history_that_was_deleted_is_missed(small_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nb_api.cache.reading.sync.SOURCE_REPAIRS_MAX", 5)
    site = small_site
    site.fill()
    site.checkpoint()
    with pubsub_api.open(conf=durability_conf(site.writer_bus)) as session, DurabilityClient(session) as client:
        client.delete_historical_data(["tenant-1/#"], timeout_s=WAIT_S)
    cache = site.cache(site.open())
    site.wait_equal(cache)
    syncs = cache.statistics().syncs
    assert (syncs.snapshots, syncs.from_source, syncs.source_failures) == (1, 0, 1)
    other = site.cache(site.open(), topics=["tenant-0/#"])
    site.wait_equal(other, ["tenant-0/#"])
    assert other.statistics().syncs.from_source == 1


def test_without_a_checkpoint_the_database_is_read(small_site: Site) -> None:
    small_site.fill()
    cache = small_site.cache()
    small_site.wait_equal(cache)
    assert cache.statistics().syncs.source_failures == 1
    assert cache.statistics().syncs.snapshots == 1


def test_a_checkpoint_so_old_that_the_changes_after_it_are_gone_is_not_used(small_site: Site) -> None:
    site = small_site
    site.fill()
    site.checkpoint()
    site.change("late")
    wait_until(lambda: not site.nb.db.unpublished(), WAIT_S, "an empty outbox")
    site.nb.db.compact(keep_changes=1, keep_tombstones_s=0.0)
    cache = site.cache()
    site.wait_equal(cache)
    assert cache.statistics().syncs.source_failures == 1
    assert cache.statistics().syncs.snapshots == 1


def test_a_service_killed_in_the_middle_of_a_load_costs_time_and_nothing_else(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.fill(60, value="x" * 30_000)
    site.checkpoint()

    class Killing(DurabilitySource):
        portions = 0

        def open(self, tables: Sequence[str] | None, topics: Sequence[str]) -> SourceSnapshot:
            snapshot = super().open(tables, topics)
            read = snapshot.read

            def read_and_kill(take: Callable[[Sequence[Event]], None]) -> Any:
                def take_and_kill(events: Sequence[Event]) -> None:
                    Killing.portions += 1
                    take(events)
                    if Killing.portions == 1:
                        site.service.kill()

                return read(take_and_kill)

            snapshot.read = read_and_kill  # type: ignore[method-assign]
            return snapshot

    monkeypatch.setattr("durability_service.clients.resync_source.SOURCE_TIMEOUT_S", 8.0)
    nb = site.open()
    cache = site.cache(nb, resync_source=Killing(nb.conf, nb.session))
    site.wait_equal(cache)
    syncs = cache.statistics().syncs
    assert (syncs.snapshots, syncs.from_source, syncs.source_failures) == (1, 0, 1)
    assert Killing.portions == 1
    with pytest.raises(NoService):
        site.checkpoint(no_service_time=0.5)


def test_checkpoints_amid_writes_and_a_writer_that_is_killed_lead_to_the_same_copy(small_site: Site) -> None:
    """What the writer had committed and not published is swept up after it, late."""
    site = small_site
    site.fill(2)  # who has written sweeps
    caches = []
    for seed in range(3):
        with WriterNode(site.db_url, site.writer_bus, seed=seed) as writer:
            goal = site.nb.db.revision() + 60
            writer.start_flood()
            wait_until(lambda goal=goal: site.nb.db.revision() >= goal, WAIT_S, "some writes")  # type: ignore[misc]
            site.checkpoint()
            caches.append(site.cache(tables=TABLES))
            writer.kill()
    wait_until(lambda: not site.nb.db.unpublished(), WAIT_S, "the outbox to be swept")
    for cache in caches:
        wait_until(lambda cache=cache: rows_of(cache) == rows_of(site.nb), WAIT_S, "an equal copy")  # type: ignore[misc]
    assert sum(cache.statistics().syncs.from_source for cache in caches) >= 1


# -- while the database is away


def test_a_controller_that_starts_while_the_database_is_down_syncs_and_follows(
    redis_site: Site, db_server: RedisServer
) -> None:
    site = redis_site
    site.fill()
    site.checkpoint()
    site.change("late")
    expected = site.nb.get_all("port")
    site.nb.flush(timeout_s=WAIT_S)
    db_server.kill()
    told: list[Any] = []
    cache = site.cache(on_changes=told.extend)
    assert cache.get_all("port") == expected
    wait_until(lambda: cache.statistics().is_provisional, WAIT_S, "the service to stand in")
    assert cache.statistics().syncs.stand_ins >= 1
    assert {one.kind for one in told if isinstance(one, Resynced)} == {"provisional"}
    # Committed before the end and published after it.
    newest = max(found.version for found in expected) + 1
    site.writer.send_event(
        Event(topic="tenant-0/port", table="port", key="p0", action="set", value="live", version=newest)
    )
    wait_until(lambda: cache.get("port", "p0").value == "live", WAIT_S, "a live event")
    db_server.restart()  # which does not know of it
    wait_until(lambda: not cache.statistics().is_provisional and cache.statistics().is_synced, WAIT_S, "the database")
    site.wait_equal(cache)
    assert cache.get_all("port") == expected


def test_a_controller_that_cannot_reach_the_database_follows_who_can(redis_site: Site, tmp_path: pathlib.Path) -> None:
    site = redis_site
    site.fill()
    site.checkpoint()
    site.change("before")
    socket = tmp_path / "db.sock"
    os.rename(socket, tmp_path / "away.sock")
    nb = site.open(f"unix://{socket}?{site.db_url.partition('?')[2]}")
    with pytest.raises(DbUnavailable):
        nb.get("port", "p0")
    cache = site.cache(nb)
    wait_until(lambda: cache.statistics().is_provisional, WAIT_S, "the service to stand in")
    site.wait_equal(cache)
    site.change("while")
    site.wait_equal(cache)
    site.nb.delete("port", "p4")
    site.wait_equal(cache)
    wait_until(lambda: cache.statistics().is_provisional, WAIT_S, "the service to stand in still")
    os.rename(tmp_path / "away.sock", socket)
    wait_until(lambda: not cache.statistics().is_provisional and cache.statistics().is_synced, WAIT_S, "the database")
    assert cache.statistics().syncs.from_source == 1
    site.wait_equal(cache)
    site.change("after")
    site.wait_equal(cache)


def test_services_do_not_stand_in_without_a_checkpoint(
    bus_server: RedisServer, db_server: RedisServer, tmp_path: pathlib.Path
) -> None:
    """Nobody knows what they lack: so the copy is not complete until the database is back."""
    site = Site("redis", bus_server, db_server.new_prefix(), tmp_path)
    with site.stack:
        site.fill()
        db_server.kill()
        cache = site.cache(is_awaited=False)
        wait_until(lambda: cache.statistics().syncs.source_failures, WAIT_S, "an attempt")
        assert not cache.statistics().is_synced
        assert cache.get_all("port") == []
        db_server.restart()
        cache.wait_synced(timeout_s=WAIT_S)
        site.wait_equal(cache)


# -- what can never work


def test_a_source_on_the_bus_needs_a_bus(tmp_path: pathlib.Path) -> None:
    with open_nb(sqlite_url(tmp_path)) as nb, pytest.raises(InvalidConfig, match="needs a bus"):
        LocalCache(nb, resync_source="durability")
