"""The turn of SQLite's writers, when a caller is interrupted as it gets it."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from heliograph_drivers.sqlite_common.writer import GroupCommit


class Interrupted(BaseException):
    """As KeyboardInterrupt, which a test runner takes for its own."""


class InterruptedLock:
    """A signal arrives during the first `acquire`, and is handled when that has returned."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_due = True

    def acquire(self, *, timeout: float) -> bool:
        is_ours = self._lock.acquire(timeout=timeout)
        if self._is_due:
            self._is_due = False
            raise Interrupted
        return is_ours

    def release(self) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]


def test_an_interrupt_does_not_keep_the_turn() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    writer = GroupCommit(lambda operation: operation(connection), lambda _: None, 60.0)
    writer._turn = InterruptedLock()  # type: ignore[assignment]
    with pytest.raises(Interrupted):
        writer.write(lambda _: 1)
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(writer.write(lambda _: 2)))
    thread.start()
    thread.join()
    connection.close()
    assert results == [2]
