"""Renews the service's lease while the service works, and stops doing so when it does not.

The lease is the modification time of a file.  A supervisor that finds it too old knows that the service is stuck or
gone, whatever the reason.
"""

from __future__ import annotations

import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping

LOG = logging.getLogger(__name__)


class Watchdog:
    """``progress``: name of a worker -> a function that returns when it last did something, None when it is idle."""

    def __init__(
        self,
        progress: Mapping[str, Callable[[], float | None]],
        *,
        lease_file: str,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._progress = progress
        self._lease = pathlib.Path(lease_file) if lease_file else None
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._stop = threading.Event()
        self.stuck: list[str] = []
        """Workers that make no progress."""
        self.renewals = 0
        self._thread = threading.Thread(target=self._run, name="heliograph-durability-watchdog", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._look(time.monotonic())
            if self._stop.wait(self._interval_s):
                return

    def _look(self, now: float) -> None:
        last = {name: moved() for name, moved in self._progress.items()}
        stuck = [name for name, when in last.items() if when is not None and now - when > self._timeout_s]
        for name in stuck:
            if name not in self.stuck:
                LOG.error("Durability: %s makes no progress; the lease is not renewed.", name)
        self.stuck = stuck
        if stuck:
            return
        self.renewals += 1
        if self._lease is not None:
            try:
                self._lease.touch()
                os.utime(self._lease)
            except OSError as error:
                LOG.error("Durability: the lease %s cannot be renewed: %s", self._lease, error)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
