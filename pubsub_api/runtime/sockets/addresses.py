"""Which hosts can reach an address.  For drivers and commands."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this host can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
