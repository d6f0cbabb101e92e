"""Logging of events that other hosts can cause as often as they like: one line at first, then one per interval.

A host that sends garbage must not fill the disk with log lines.  Each event is counted elsewhere; the log only has to
show that it happens, with an example.  Drivers may use it, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pubsub_api.runtime import forking

INTERVAL_S = 60.0
"""Often enough for a reader of the log to see it, and a few hundred kilobytes a day at most."""


class RateLimitedLog:
    """Writes one kind of message at most once per ``interval_s``, and how many it left out since.  Thread-safe."""

    def __init__(
        self,
        logger: logging.Logger,
        *,
        level: int = logging.WARNING,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._level = level
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._next_at = float("-inf")
        self._left_out = 0
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it

    def __call__(self, message: str, *arguments: object, exc_info: BaseException | None = None) -> None:
        """As ``logger.log``; only counts when the last line was written less than ``interval_s`` ago."""
        with self._lock:
            now = self._clock()
            if now < self._next_at:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
            self._next_at = now + self._interval_s
        if left_out:
            message, arguments = f"{message} (and %d more like it since the last such line)", (*arguments, left_out)
        self._logger.log(self._level, message, *arguments, exc_info=exc_info)
