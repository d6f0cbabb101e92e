"""Looks up the host names of addresses that cannot be reached, to tell a mistyped name from a dead server."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterable

from heliograph.doctor.addresses import WILDCARDS, host_port

_LOOKUP_S = 2.0
"""The command does not wait longer for a resolver that does not answer."""


def resolution_hint(addresses: Iterable[str]) -> str:
    """A clause for an error message about host names that do not resolve; empty when all do.

    Blocks for `_LOOKUP_S` at most.
    """
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
    with contextlib.suppress(RuntimeError):  # the system gives no more threads: there is no hint then
        thread.start()
        thread.join(_LOOKUP_S)
    return f"; the host name {', '.join(map(repr, wrong))} does not resolve" if wrong else ""


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host in WILDCARDS
    return True
