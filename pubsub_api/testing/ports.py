"""Ports for tests that need to know a port while no process has bound it.

When a port that the system has chosen for port 0 is closed, the system may give it to another process.  So a server
that restarts at its old port sometimes finds it in use.  `free_port` returns ports that the system does not choose, and
that no other process of the tests uses.
"""

from __future__ import annotations

import pathlib
import random
import socket

_LOWEST = 10_000
_EPHEMERAL = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_LOWEST = 32_768
_random = random.SystemRandom()


def free_port() -> int:
    """A TCP port of the loopback interface, reserved for this process until it ends.  Raises OSError without one."""
    count = _lowest_ephemeral() - _LOWEST
    first = _random.randrange(count)
    for step in range(count):
        port = _LOWEST + (first + step) % count
        if _is_free(port) and _is_reserved(port):
            return port
    raise OSError(f"all ports from {_LOWEST} to {_LOWEST + count - 1} are taken")


def _lowest_ephemeral() -> int:
    """The lowest port that the system chooses for port 0."""
    try:
        lowest = int(_EPHEMERAL.read_text().split()[0])
    except OSError:
        lowest = _EPHEMERAL_LOWEST
    return lowest if lowest > _LOWEST else _EPHEMERAL_LOWEST


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_reserved(port: int) -> bool:
    """Try to reserve the port, by a socket name that one process can bind.  The kernel frees it with the process."""
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        reservation.bind(f"\0heliograph-test-port-{port}")
    except OSError:
        reservation.close()
        return False
    reservation.detach()  # never closed: the reservation ends with the process
    return True
