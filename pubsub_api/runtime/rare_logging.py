"""Logging of what others can make happen as often as they like: one line at first, then a summary now and then.

A stranger that sends garbage must not fill the disk with log lines.  What happened is counted elsewhere, every time;
the log only has to say that it happens, and an example of it.  For drivers to use, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pubsub_api.runtime import forking

INTERVAL_S = 60.0
"""Often enough to be seen by a reader of the log, seldom enough to be a few kilobytes a day."""


class SeldomLog:
    """Writes one kind of message at most once in ``interval_s``, with how many were left out before.  Thread-safe."""

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
        """As ``logger.log``, or nothing when the last line was written lately."""
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
