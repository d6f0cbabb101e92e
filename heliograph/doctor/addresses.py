"""Finds out which process uses an address, without disturbing it.  It binds without listening, so that no subscriber
connects."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import socket

_HOST_PORT = re.compile(r"^[a-z-]+[:/]/{0,2}(?:[^@/]*@)?(?P<host>\[[0-9a-fA-F:.%]+\]|[^/:\s]+):(?P<port>\d+)")
WILDCARDS = frozenset({"*", "0.0.0.0", "::"})


def host_port(address: str) -> tuple[str, int] | None:
    """Host and port in an address such as ``tcp://host:port``, ``redis://host:port/0``, ``tcp/host:port``."""
    match = _HOST_PORT.match(address)
    return (match["host"].strip("[]"), int(match["port"])) if match else None


def with_host(address: str, host: str) -> str:
    """The address with another host, written as its driver does."""
    match = _HOST_PORT.match(address)
    assert match is not None
    shown = f"[{host}]" if ":" in host else host
    return f"{address[: match.start('host')]}{shown}{address[match.end('host') :]}"


def try_bind(host: str, port: int) -> OSError | None:
    """Bind for a moment, without listening.  Returns None, or the error."""
    host = "0.0.0.0" if host == "*" else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def answers(host: str, port: int, timeout_s: float) -> bool:
    """Whether a process accepts connections at the address.  Blocks for ``timeout_s`` at most."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def listening_processes(port: int) -> str:
    """The names of the processes that listen on a TCP port of this host, as far as this user may see them."""
    inodes = _listening_inodes(port)
    names = [f"process {pid} ({_name_of(pid)})" for pid in _pids() if inodes & _socket_inodes(pid)]
    return ", ".join(names) or "a process of another user"


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: LISTEN
                    inodes.add(fields[9])
    return inodes


def _pids() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return []


def _socket_inodes(pid: int) -> set[str]:
    """Empty for a process that has ended meanwhile, or whose files this user may not see."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(descriptor.path)))
    return found


def _name_of(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "ended meanwhile"
