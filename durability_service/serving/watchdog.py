"""Renews the service's lease while the service works, and stops doing so when it does not.

The lease is the modification time of a file.  A supervisor that finds it too old knows that the service is stuck or
gone.
"""

from __future__ import annotations

import logging
import os
import pathlib
import time
from collections.abc import Callable, Mapping

from pubsub_api.runtime.periodic import Failures, PeriodicThread

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
        self._timeout_s = timeout_s
        self.stuck: list[str] = []
        """Workers that make no progress."""
        self.renewals = 0
        failures = Failures(LOG, f"Durability: the lease {lease_file} cannot be renewed")
        self._thread = PeriodicThread(
            "heliograph-durability-watchdog", self._look, failures, pause_s=interval_s, at_once=True
        )  # fmt: skip
        self._thread.start()

    def _look(self) -> None:
        now = time.monotonic()
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
            self._lease.touch()
            os.utime(self._lease)

    def close(self) -> None:
        self._thread.stop()
