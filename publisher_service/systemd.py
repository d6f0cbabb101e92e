"""Telling systemd how the service is, in its own few words and without a library.

A service of ``Type=notify`` gets the address of a datagram socket in ``NOTIFY_SOCKET``.  Without it nothing is told.
"""

from __future__ import annotations

import logging
import os
import socket

LOG = logging.getLogger(__name__)


class Notifier:
    """Reads the environment once.  `tell` never raises: a supervisor that does not listen must not stop the service."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # an abstract socket
            self._address = "\0" + self._address[1:]
        self.watchdog_s = _watchdog_s()
        """How often systemd wants a sign of life; None when it does not."""

    def tell(self, **states: str | int) -> None:
        """For example ``tell(READY=1, STATUS="taking events")``."""
        if not self._address:
            return
        message = "\n".join(f"{name}={value}" for name, value in states.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.connect(self._address)
                sock.send(message.encode())
        except OSError as error:
            LOG.warning("systemd cannot be told %s: %s", " ".join(states), error)


def _watchdog_s() -> float | None:
    """Half of the time after which systemd would end us, as it recommends."""
    try:
        if int(os.environ.get("WATCHDOG_PID", os.getpid())) != os.getpid():
            return None
        return int(os.environ["WATCHDOG_USEC"]) / 2e6
    except (KeyError, ValueError):
        return None
