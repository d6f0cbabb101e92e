"""Databases whose history can be taken away while they are in use: copied, put back, emptied.

All of it is done as an operator would do it, and as fast as possible, so that writers can go on at once.
"""

from __future__ import annotations

import abc
import contextlib
import pathlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator

from tests.helpers.nb_tools import sqlite_url
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import EtcdServer, PostgresServer

_BUSY_S = 60.0


class Database(abc.ABC):
    """One that `new` makes empty.  ``url`` is of the newest."""

    url: str

    @abc.abstractmethod
    def new(self, directory: pathlib.Path) -> None: ...

    @abc.abstractmethod
    def backup(self) -> None: ...

    @abc.abstractmethod
    def restore(self) -> None:
        """Put back what `backup` has copied."""

    @abc.abstractmethod
    def lose(self) -> None:
        """Everything."""

    @abc.abstractmethod
    def crash(self) -> None:
        """The server is killed and started again, with what it has on disk."""


class SqliteFile(Database):
    """Copied and put back by SQLite itself, into the file that others have open."""

    def new(self, directory: pathlib.Path) -> None:
        self.url, self._path, self._copy = sqlite_url(directory), directory / "objects.db", directory / "copy.db"

    def backup(self) -> None:
        _copy(self._path, self._copy)

    def restore(self) -> None:
        _copy(self._copy, self._path)

    def crash(self) -> None:
        """There is no server.  Instead the file is replaced by a copy of it: nothing is lost, but it is another one."""
        new = self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)) as file:
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            file.execute("BEGIN IMMEDIATE")  # who writes is kept waiting meanwhile
            shutil.copy(self._path, new)
            for end in ("-wal", "-shm"):
                pathlib.Path(f"{self._path}{end}").unlink(missing_ok=True)
            new.replace(self._path)

    def lose(self) -> None:
        with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)) as file:
            file.executescript(
                "BEGIN IMMEDIATE; DELETE FROM objects; DELETE FROM changes; DELETE FROM published;"
                "INSERT INTO published VALUES (0, 0); UPDATE feed SET compacted = 0; COMMIT"
            )


def _copy(source: pathlib.Path, goal: pathlib.Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(source, timeout=_BUSY_S)) as read,
        contextlib.closing(sqlite3.connect(goal, timeout=_BUSY_S)) as write,
    ):
        read.backup(write)


class PostgresSchema(Database):
    """Copied and put back table by table, as a dump is."""

    _TABLES = ("state", "objects", "changes", "outbox", "counters")

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def new(self, directory: pathlib.Path) -> None:
        self.url = self._server.new_database()

    def _execute(self, *statements: str) -> None:
        with self._server.client(self.url) as client, client.transaction():
            for statement in statements:
                client.execute(statement.encode())

    def crash(self) -> None:
        self._server.restart()

    def backup(self) -> None:
        self._execute(
            "DROP SCHEMA IF EXISTS copy CASCADE",
            "CREATE SCHEMA copy",
            *(f"CREATE TABLE copy.{table} AS TABLE heliograph.{table}" for table in self._TABLES),
            "CREATE TABLE copy.revisions AS SELECT last_value FROM heliograph.revisions",
        )

    def restore(self) -> None:
        self._execute(
            f"TRUNCATE {', '.join(f'heliograph.{table}' for table in self._TABLES)}",
            *(f"INSERT INTO heliograph.{table} TABLE copy.{table}" for table in self._TABLES),
            "SELECT setval('heliograph.revisions', last_value) FROM copy.revisions",
        )

    def lose(self) -> None:
        self._execute(
            f"TRUNCATE {', '.join(f'heliograph.{table}' for table in self._TABLES if table != 'state')}",
            "UPDATE heliograph.state SET compacted = 0",
            "ALTER SEQUENCE heliograph.revisions RESTART",
        )


class EtcdDirectory(Database):
    """Its data directory, copied and put back while it is down."""

    def __init__(self, server: EtcdServer) -> None:
        self._server = server

    def new(self, directory: pathlib.Path) -> None:
        self.url, self._copy = self._server.new_prefix(), directory / "copy"

    @property
    def _data(self) -> pathlib.Path:
        return self._server.directory / "data"

    def crash(self) -> None:
        self._server.restart()

    def backup(self) -> None:
        self._server.kill()
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._data, self._copy)
        self._server.restart()

    def restore(self) -> None:
        self._server.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self._server.restart()

    def lose(self) -> None:
        self._server.kill()
        shutil.rmtree(self._data)
        self._server.restart()


class RedisDump(Database):
    """Its dump, copied while it runs and put back while it is down."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def new(self, directory: pathlib.Path) -> None:
        self.url, self._copy = self._server.new_prefix(), directory / "copy.rdb"

    def crash(self) -> None:
        self._server.restart()

    @property
    def _dump(self) -> pathlib.Path:
        return self._server.directory / "dump.rdb"

    def backup(self) -> None:
        with self._server.client() as client:
            client.save()
        shutil.copy(self._dump, self._copy)

    def restore(self) -> None:
        self._server.kill()
        shutil.copy(self._copy, self._dump)
        self._server.restart()

    def lose(self) -> None:
        with self._server.client() as client:
            client.flushall()


@contextlib.contextmanager
def _sqlite() -> Iterator[Database]:
    yield SqliteFile()


@contextlib.contextmanager
def _postgres() -> Iterator[Database]:
    with PostgresServer() as server:
        yield PostgresSchema(server)


@contextlib.contextmanager
def _etcd() -> Iterator[Database]:
    with EtcdServer("--unsafe-no-fsync") as server:
        yield EtcdDirectory(server)


@contextlib.contextmanager
def _redis() -> Iterator[Database]:
    with RedisServer() as server:
        yield RedisDump(server)


DATABASES: dict[str, Callable[[], contextlib.AbstractContextManager[Database]]] = {
    "sqlite": _sqlite, "postgres": _postgres, "etcd": _etcd, "redis": _redis,
}  # fmt: skip
"""Each starts its server."""
