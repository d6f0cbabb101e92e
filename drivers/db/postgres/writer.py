"""Changes of several threads in one transaction.

Changes commit one at a time and a commit waits for the disk, so threads that come while one commits would queue up for
the lock.  Instead the first of them carries the changes of all to the server when the way is free.  No thread
waits for others: one that comes alone goes at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nb_api.core.writes import CheckedWrite
from nb_api.db_api import Action
from nb_api.errors import DbUnavailable
from pubsub_api.errors import HeliographError
from pubsub_api.runtime import forking

_TOGETHER_MAX = 64
_TOGETHER_BYTES_MAX = 4 * 1024 * 1024


class WriteOutcome(NamedTuple):
    """What the functions of the database return for each write."""

    name: str
    version: int | None
    action: Action | None
    topic: str
    left_topic: str | None


def outcome_of(
    name: bytes | None, version: bytes | None, action: bytes | None, topic: bytes | None, left_topic: bytes | None
) -> WriteOutcome:
    """From what they return as text."""
    kind: Action | None = None if action is None else action.decode()  # type: ignore[assignment]  # only ours says it
    return WriteOutcome(
        (name or b"").decode(),
        None if version is None else int(version),
        kind,
        (topic or b"").decode(),
        None if left_topic is None else left_topic.decode(),
    )


Transfer = Sequence[CheckedWrite]
"""Writes of one caller, all or nothing."""


class _Passenger:
    """A thread's changes on their way."""

    __slots__ = ("error", "is_driver", "outcomes", "transfer", "woken")

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.outcomes: list[WriteOutcome] | None = None
        self.error: HeliographError | None = None
        self.is_driver = False
        self.woken: threading.Event | None = None
        """Set when it is this one's turn, or all is done; a thread that drives at once needs none."""

    def wake(self) -> None:
        if self.woken is not None:
            self.woken.set()


class SharedWriter:
    """``execute`` carries out transfers, in order, in one transaction; it returns in bounded time or raises."""

    def __init__(self, execute: Callable[[Sequence[Transfer]], list[list[WriteOutcome]]]) -> None:
        self._execute = execute
        self._lock = threading.Lock()
        self._queue: list[_Passenger] = []
        self._is_busy = False
        forking.register(self)

    def write(self, transfer: Transfer) -> list[WriteOutcome]:
        """Raises what ``execute`` raises."""
        passenger = _Passenger(transfer)
        try:
            with self._lock:
                self._queue.append(passenger)
                passenger.is_driver = not self._is_busy
                if self._is_busy:
                    passenger.woken = threading.Event()
                self._is_busy = True
            if passenger.woken is not None:
                passenger.woken.wait()
            if passenger.is_driver:
                self._drive(passenger)
        except BaseException:  # an interrupt
            self._leave(passenger)
            raise
        if passenger.error is not None:
            raise passenger.error
        assert passenger.outcomes is not None
        return passenger.outcomes

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._queue, self._is_busy = [], False

    def _drive(self, driver: _Passenger) -> None:
        """Carry the changes of all callers that wait, the own first, then leave the turn to the next."""
        aboard: list[_Passenger] = []
        try:
            self._board(aboard)
            self._carry(aboard)
        finally:
            self._pass_turn(driver)
            for passenger in aboard:
                if passenger.outcomes is None and passenger.error is None:  # an interrupt went through here
                    passenger.error = DbUnavailable("the thread that carried the change was interrupted")
                passenger.wake()

    def _pass_turn(self, driver: _Passenger) -> None:
        with self._lock:
            if not driver.is_driver:
                return
            driver.is_driver = False
            successor = self._queue[0] if self._queue else None
            self._is_busy = successor is not None
            if successor is not None:
                successor.is_driver = True
        if successor is not None:
            successor.wake()

    def _leave(self, passenger: _Passenger) -> None:
        """The caller does not wait any more: what is not under way is not carried, and another one drives."""
        with self._lock:
            if passenger in self._queue:
                self._queue.remove(passenger)
        self._pass_turn(passenger)

    def _board(self, aboard: list[_Passenger]) -> None:
        """Let in the threads that are next."""
        with self._lock:
            count, size = 0, 0
            for passenger in self._queue[:_TOGETHER_MAX]:
                size += sum(len(write.value or b"") for write in passenger.transfer)
                if count and size > _TOGETHER_BYTES_MAX:
                    break
                count += 1
            aboard += self._queue[:count]
            del self._queue[:count]

    def _carry(self, aboard: Sequence[_Passenger]) -> None:
        try:
            outcomes = self._execute([passenger.transfer for passenger in aboard])
        except DbUnavailable as error:
            for passenger in aboard:
                passenger.error = DbUnavailable(str(error))
                passenger.error.__cause__ = error
        except HeliographError as error:
            self._carry_alone(aboard, error)
        else:
            for passenger, outcome in zip(aboard, outcomes, strict=True):
                passenger.outcomes = outcome

    def _carry_alone(self, aboard: Sequence[_Passenger], error: HeliographError) -> None:
        """The server refused them all and did nothing: find out whose fault it was."""
        if len(aboard) == 1:
            aboard[0].error = error
            return
        for passenger in aboard:
            self._carry([passenger])
