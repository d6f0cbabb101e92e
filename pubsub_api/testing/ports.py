"""Ports for tests that need to know one before it is bound, or while it is not.

A port that the system hands out for port 0 is free again once it is closed, and the system may hand it to the next who
asks: a server that comes back at its old port, or starts at one that was looked up, finds it taken now and then.
`free_port` gives ports that the system does not hand out and that no other process of the tests was given.
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
    """A TCP port of the loopback interface that stays this process's own for as long as the process lives.

    Raises OSError when there is none.
    """
    candidates = range(_LOWEST, _lowest_ephemeral())
    for port in _random.sample(candidates, len(candidates)):
        if _is_free(port) and _is_reserved(port):
            return port
    raise OSError(f"all ports from {_LOWEST} to {candidates[-1]} are taken")


def _lowest_ephemeral() -> int:
    """Where the ports begin that the system hands out."""
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
    """Claim the port among the processes of the tests: by a name that only one may have, and that dies with it."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0heliograph-test-port-{port}")
    except OSError:
        claim.close()
        return False
    claim.detach()  # never closed: the claim ends with the process
    return True
