"""A database that takes no writes, because its disk is full for instance, and can be read: reading goes on.

New copies are made of it, by programs that were running and by new ones, although a place among those that read a
snapshot is an object in the database (`nb_api.coordination.snapshot_limit`).
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest

from nb_api import LocalCache, NbApi
from nb_api.cache.reading import sync
from nb_api.errors import DbUnavailable
from pubsub_api.errors import HeliographError, LimitReached
from tests.helpers.db_faults import opened
from tests.helpers.nb_tools import nb_conf, open_nb, sqlite_url
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import EtcdServer, PostgresServer, PostgresStandby
from tests.helpers.waiting import wait_until

WAIT_S = 60.0
COUNT = 1500
"""Objects: more than one portion of a snapshot."""


class Refusing(NamedTuple):
    """A database, and how it comes to refuse writes."""

    url: str
    refusing: Callable[[], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "SLOT_LEASE_S", 0.5)


# -- how each comes to it


@contextlib.contextmanager
def full_sqlite(tmp_path: pathlib.Path) -> Iterator[Refusing]:
    """A disk of its own, on which another program leaves no room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], check=True)

    @contextlib.contextmanager
    def refusing() -> Iterator[None]:
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with open_nb(sqlite_url(disk)) as nb, contextlib.suppress(DbUnavailable):
            while True:  # what room there is in the log that SQLite writes ahead
                nb.put("noise", "k", os.urandom(4096), topic="t")
        yield
        filler.unlink()

    try:
        yield Refusing(sqlite_url(disk), refusing)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextlib.contextmanager
def locked_sqlite(tmp_path: pathlib.Path) -> Iterator[Refusing]:
    """Another program has begun a transaction and does not end it."""

    @contextlib.contextmanager
    def refusing() -> Iterator[None]:
        path = tmp_path / "objects.db"
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=WAIT_S)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield

    yield Refusing(sqlite_url(tmp_path), refusing)


@contextlib.contextmanager
def read_only_postgres(_: pathlib.Path) -> Iterator[Refusing]:
    with PostgresServer() as server:

        def order(value: str) -> None:
            with server.client() as client:
                client.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
                client.execute("SELECT pg_reload_conf()")
                asked = "SELECT setting FROM pg_settings WHERE name = 'default_transaction_read_only'"
                wait_until(lambda: client.execute(asked).fetchone() == (value,), WAIT_S, "the server to obey")

        @contextlib.contextmanager
        def refusing() -> Iterator[None]:
            order("on")
            yield
            order("off")

        yield Refusing(server.new_database(), refusing)


@contextlib.contextmanager
def standby_postgres(_: pathlib.Path) -> Iterator[Refusing]:
    """What was the primary server is a standby, until it is promoted again."""
    with PostgresServer() as server:

        @contextlib.contextmanager
        def refusing() -> Iterator[None]:
            server.kill()
            signal = server.directory / "data" / "standby.signal"
            signal.touch()
            server.restart()
            yield
            server.kill()
            signal.unlink()
            server.restart()

        yield Refusing(server.new_database(), refusing)


def ask(server: EtcdServer, path: str, **request: Any) -> Any:
    url = f"http://127.0.0.1:{server.port}/v3/{path}"
    with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=WAIT_S) as answer:
        return json.load(answer)


@contextlib.contextmanager
def full_etcd(_: pathlib.Path) -> Iterator[Refusing]:
    with EtcdServer("--quota-backend-bytes=4000000") as server:
        url = server.new_prefix()

        @contextlib.contextmanager
        def refusing() -> Iterator[None]:
            with opened(url) as db, contextlib.suppress(LimitReached):
                while True:
                    db.put("noise", "k", os.urandom(100_000), topic="t")
            yield
            newest = ask(server, "kv/range", key="AA==")["header"]["revision"]
            ask(server, "kv/compaction", revision=newest, physical=True)
            ask(server, "maintenance/defragment")
            for alarm in ask(server, "maintenance/alarm", action="GET")["alarms"]:
                ask(server, "maintenance/alarm", action="DEACTIVATE", **alarm)

        yield Refusing(url, refusing)


@contextlib.contextmanager
def redis_without_memory(_: pathlib.Path) -> Iterator[Refusing]:
    with RedisServer() as server, server.client() as client:

        @contextlib.contextmanager
        def refusing() -> Iterator[None]:
            client.config_set("maxmemory", "1")
            yield
            client.config_set("maxmemory", "0")

        yield Refusing(server.new_prefix(), refusing)


@contextlib.contextmanager
def redis_without_disk(_: pathlib.Path) -> Iterator[Refusing]:
    """Its dump cannot be written, so it takes no writes (MISCONF)."""
    with RedisServer() as server, server.client() as client:

        def saved() -> bool:
            return bool(client.info("persistence")["rdb_last_bgsave_status"] == "ok")

        @contextlib.contextmanager
        def refusing() -> Iterator[None]:
            obstacle = server.directory / "obstacle"
            obstacle.mkdir()
            client.config_set("dbfilename", obstacle.name)
            client.config_set("save", "3600 1")
            client.bgsave()
            wait_until(lambda: not saved(), WAIT_S, "the dump to fail")
            yield
            shutil.rmtree(obstacle)
            client.bgsave()
            wait_until(saved, WAIT_S, "the dump to be written")

        yield Refusing(server.new_prefix(), refusing)


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@pytest.fixture(
    params=[
        pytest.param(full_sqlite, marks=NEEDS_ROOT),
        locked_sqlite,
        read_only_postgres,
        standby_postgres,
        full_etcd,
        redis_without_memory,
        redis_without_disk,
    ]
)
def refusing(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Refusing]:
    with request.param(tmp_path) as database:
        yield database


# -- what is read


def open_hastily(url: str) -> NbApi:
    return NbApi.open(conf=nb_conf(db={"operation_timeout": 1.0}), url=url)


def expect_copy(nb: NbApi, count: int) -> None:
    with LocalCache(nb, tables=["port"]) as cache:
        cache.wait_synced(timeout_s=WAIT_S)
        assert len(cache.get_all("port")) == count
        slots = cache.statistics().syncs.slots
        assert (slots.held, slots.without) == (0, 1)


def test_new_copies_are_made(refusing: Refusing, caplog: pytest.LogCaptureFixture) -> None:
    with open_hastily(refusing.url) as nb:
        for start in range(0, COUNT, 40):
            with nb.transaction() as txn:
                for number in range(start, min(start + 40, COUNT)):
                    txn.create("port", f"p{number}", number, topic="t")
        with LocalCache(nb, tables=["port"]) as old:
            old.wait_synced(timeout_s=WAIT_S)
            with refusing.refusing():
                with pytest.raises(HeliographError):
                    nb.put("port", "p0", "refused", topic="t")
                expect_copy(nb, COUNT)
                with open_hastily(refusing.url) as new:
                    expect_copy(new, COUNT)
                old.need_snapshot("asked for")
                wait_until(lambda: old.statistics().syncs.snapshots == 2, WAIT_S, "a copy that runs to read again")
            wait_until(lambda: writes(nb), WAIT_S, "writes to be taken again")
            wait_until(lambda: old.get("port", "p0").value == "taken", WAIT_S, "what is written to be told")
    assert "the database takes no writes" in caplog.text


def writes(nb: NbApi) -> bool:
    try:
        nb.put("port", "p0", "taken", topic="t")
    except HeliographError:
        return False
    return True


def test_the_feed_of_a_standby_is_followed() -> None:
    """It notifies nobody."""
    with PostgresServer() as primary:
        url = primary.new_database()
        with open_hastily(url) as nb:
            nb.put("port", "p0", 0, topic="t")
        with (
            PostgresStandby(primary) as standby,
            open_hastily(url) as writer,
            open_hastily(standby.url(url.rpartition("/")[2])) as reader,
            LocalCache(reader, tables=["port"]) as cache,
        ):
            cache.wait_synced(timeout_s=WAIT_S)
            writer.put("port", "p0", "changed", topic="t")
            wait_until(lambda: cache.get("port", "p0").value == "changed", WAIT_S, "the change")
            assert cache.statistics().is_synced
