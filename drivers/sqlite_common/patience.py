"""Calls into a SQLite file that other processes use too: tried again, for a bounded time, while they hold its lock."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from heliograph_drivers.sqlite_common.pool import SqlitePool
from heliograph_drivers.sqlite_common.writer import Operation
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.runtime.backoff import Backoff

_LOCK_PAUSE_MIN_S = 0.0005
_LOCK_PAUSE_MAX_S = 0.002

T = TypeVar("T")


def run_patiently(
    pool: SqlitePool, work: Operation[T], *, what: str, timeout_s: float, check_open: Callable[[], None]
) -> T:
    """Call ``work`` with a connection of the pool.  ``what`` names the file in errors; ``check_open`` may end it.

    Raises DbUnavailable when the lock is not to be had in time or the file cannot be used, DbError when it is damaged.
    """
    deadline = 0.0
    backoff: Backoff | None = None
    while True:
        check_open()
        try:
            return pool.run(work)
        except sqlite3.OperationalError as error:
            # "database is locked", and "locking protocol" when many open the file at the same moment.
            if "lock" not in str(error):
                raise DbUnavailable(f"{what} cannot be used: {error}") from error
            deadline = deadline or time.monotonic() + timeout_s
            if time.monotonic() > deadline:
                raise DbUnavailable(f"{what} was locked for {timeout_s} s") from error
        except sqlite3.Error as error:
            raise DbError(f"{what} is damaged or refuses: {error}") from error
        # By chance, so that processes do not stay in step.
        backoff = backoff or Backoff(_LOCK_PAUSE_MIN_S, _LOCK_PAUSE_MAX_S, jitter=random.random)
        time.sleep(backoff.next_s())
