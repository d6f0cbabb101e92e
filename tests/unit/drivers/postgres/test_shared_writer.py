"""The writer of PostgreSQL, when a caller is interrupted: what a signal's handler raises must not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from heliograph_drivers.db.postgres.writer import SharedWriter, WriteOutcome

WAIT_S = 60.0


class Interrupted(BaseException):
    """As KeyboardInterrupt, which a test runner takes for its own."""


class SlowDatabase:
    """Carries out one transaction at a time, when it may."""

    def __init__(self) -> None:
        self.is_carrying, self.may_go = threading.Event(), threading.Event()

    def execute(self, transfers: Sequence[Any]) -> list[list[WriteOutcome]]:
        self.is_carrying.set()
        assert self.may_go.wait(WAIT_S)
        return [[] for _ in transfers]


def start(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("followers", [0, 2])
def test_a_caller_that_is_interrupted_while_it_waits_stops_nobody(
    followers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = SlowDatabase()
    writer = SharedWriter(database.execute)
    threads = [start(lambda: writer.write([]))]
    assert database.is_carrying.wait(WAIT_S)
    interrupted, wait = threading.get_ident(), threading.Event.wait

    def interrupt(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.get_ident() != interrupted:
            return wait(event, timeout)
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(threading.Event, "wait", interrupt)
        with pytest.raises(Interrupted):
            writer.write([])
    threads += [start(lambda: writer.write([])) for _ in range(followers)]
    database.may_go.set()
    threads.append(start(lambda: writer.write([])))
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_driver_that_is_interrupted_leaves_the_turn_to_the_next() -> None:
    def execute(transfers: Sequence[Any]) -> list[list[WriteOutcome]]:
        if is_first.is_set():
            return [[] for _ in transfers]
        is_first.set()
        raise Interrupted

    is_first = threading.Event()
    writer = SharedWriter(execute)
    with pytest.raises(Interrupted):
        writer.write([])
    assert writer.write([]) == []
