"""Names of hosts that mean nothing: looked up when something cannot be reached, to say why."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterable

from heliograph.doctor.addresses import WILDCARDS, host_port

_LOOKUP_S = 2.0
"""A resolver that does not answer says nothing, and the command must not wait for it."""


def unresolved(addresses: Iterable[str]) -> list[str]:
    """The hosts in these addresses whose name cannot be resolved.  Blocks for `_LOOKUP_S` at most."""
    hosts = sorted({found[0] for found in map(host_port, addresses) if found and not _is_number(found[0])})
    wrong: list[str] = []

    def look() -> None:
        for host in hosts:
            try:
                socket.getaddrinfo(host, None)
            except socket.gaierror:
                wrong.append(host)
            except (OSError, UnicodeError):
                continue

    thread = threading.Thread(target=look, name="heliograph-resolver", daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread to be had: then nothing is said
        thread.start()
        thread.join(_LOOKUP_S)
    return list(wrong)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host in WILDCARDS
    return True


def explained(addresses: Iterable[str]) -> str:
    """A sentence part about hosts that cannot be resolved, empty when there are none."""
    wrong = unresolved(addresses)
    return f"; the host name {', '.join(map(repr, wrong))} does not resolve" if wrong else ""
