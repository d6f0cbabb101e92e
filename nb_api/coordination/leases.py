"""What all leases in a database have in common; `pubsub_api.core.leases` says how a lease is held and judged."""

from __future__ import annotations

import abc
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from nb_api.coordination.lease_config import read_election_lease
from nb_api.core.election import DatabaseCall
from nb_api.db_api import DbApi
from nb_api.errors import ObjectExists, ObjectNotFound, VersionConflict
from pubsub_api.core.leases import LEASE_S_MAX
from pubsub_api.errors import Closed, Forked, LimitReached, UsageError
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.periodic import Failures
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0

TOPIC = "heliograph/leases"
"""Objects need a topic; no cache follows this one."""

REFUSED = (ObjectExists, ObjectNotFound, VersionConflict)
"""What a write raises when another process has changed the object meanwhile."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Seconds that have passed, those in which the machine was suspended included: other processes ran meanwhile."""
    return time.clock_gettime(_CLOCK)


def checked_lease(db: DbApi, lease_s: float | None) -> float:
    """Seconds, ``[election] lease`` when none are given.  Raises UsageError."""
    lease_s = read_election_lease(db.conf) if lease_s is None else lease_s
    if not 0 < lease_s <= LEASE_S_MAX:
        raise UsageError(f"a lease takes time, {LEASE_S_MAX:g} s at most, not {lease_s} s")
    return lease_s


class LeaseCore(Protocol):
    """What decides which calls are made to the database, and when; one call is under way at a time."""

    @property
    def is_gone(self) -> bool:
        """Nothing will be called any more."""

    def next_call(self, now: float) -> DatabaseCall | None: ...

    def due(self, now: float) -> float:
        """When `next_call` has something to do."""

    def written(self, version: int, now: float) -> None: ...

    def refused(self, now: float) -> None: ...

    def failed(self, now: float) -> None: ...


Core = TypeVar("Core", bound=LeaseCore)
P = TypeVar("P", bound="LeaseParticipant[Any]")


class LeaseParticipant(Closeable, Generic[Core]):
    """A process that takes part, from ``start`` to ``close``, in what is decided by leases in a database.

    Its core decides; a thread makes the calls to the database that the core wants.  Every method may be called from any
    thread.  One inherited by a forked child holds nothing there.
    """

    _table: ClassVar[str]

    def __init__(
        self, db: DbApi, name: str, thread: str, make_core: Callable[[str, str], Core], *, holder: str, trouble: str
    ) -> None:
        """``thread``: the name of the thread.  ``make_core`` makes a core of a holder and of a mark that no other
        process has; one without a mark never holds anything.  ``trouble`` is what is logged when the database cannot be
        asked."""
        self._db = db
        self._name = name
        self._make_core = make_core
        self._core = make_core(holder, os.urandom(16).hex())
        self._changed = threading.Condition()
        """Guards the core, and is notified when it was told something."""
        self._is_closed = self._is_inherited = False
        self._deadline: float | None = None
        """When the thread ends although the database has not answered."""
        self._is_db_closed = False
        """It was closed before this was; the lease ends by itself."""
        self._failures = Failures(LOG, trouble)
        self._threads = [threading.Thread(target=self._run, name=thread, daemon=True)]
        forking.register(self)

    def _about(self) -> str:
        return f"{self._name!r} in {self._db!r}"

    def start(self: P) -> P:
        """Take part.  Does not wait for the database.  Raises LimitReached, Forked."""
        if self._is_inherited:
            raise Forked("it belongs to the process that made it; make one in this process")
        try:
            for thread in self._threads:
                start_thread(thread)
        except LimitReached:
            self.close()
            raise
        return self

    def __enter__(self: P) -> P:
        return self.start()

    def close(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Give up what is held, so that another process can have it at once, and end the threads.

        Blocks until that is done, for ``timeout_s`` at most; then others must wait for the end of the lease.
        Idempotent.
        """
        with self._changed:
            if not self._is_closed:
                self._is_closed = True
                self._leave()
                self._deadline = lease_clock() + timeout_s
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread() and not self._is_inherited:
                thread.join(timeout_s)

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._changed, self._threads))
        self._is_inherited = self._is_closed = True
        self._changed = threading.Condition()
        self._core = self._make_core("", "")

    # -- what they differ in

    @abc.abstractmethod
    def _leave(self) -> None:
        """Tell the core to give everything up.  Called with the lock."""

    @abc.abstractmethod
    def _key_of(self, call: DatabaseCall) -> str:
        """The key in the database of the record that a call is about."""

    @abc.abstractmethod
    def _look(self) -> Callable[[float], None]:
        """Read what the core has to know.  Returns what it is to be told at the time of the answer.  Raises DbError."""

    def _may_end(self) -> bool:
        """Whether the thread may end when the time for closing is over."""
        return True

    def _told(self) -> None:
        """The core was told an answer.  Called by the thread, without the lock."""

    # -- the thread that talks to the database

    def _run(self) -> None:
        while (call := self._await_call()) is not None:
            answer = self._ask(call)
            with self._changed:
                answer(lease_clock())
                self._changed.notify_all()
            self._told()

    def _await_call(self) -> DatabaseCall | None:
        """Block until there is something to call, None when there never will be again, or it is too late for it."""
        with self._changed:
            while True:
                now = lease_clock()
                is_late = self._deadline is not None and now >= self._deadline and self._may_end()
                if self._core.is_gone or self._is_db_closed or is_late:
                    return None
                if (call := self._core.next_call(now)) is not None:
                    return call
                self._changed.wait(max(0.0, self._core.due(now) - now))

    def _ask(self, call: DatabaseCall) -> Callable[[float], None]:
        """What the core is to be told at the time of the answer."""
        try:
            if call.kind == "look":
                return self._look()
            version = self._write(call)
        except REFUSED:
            return self._core.refused
        except Closed:
            self._is_db_closed = True
            return self._core.failed
        except Exception as error:  # noqa: BLE001  counted and logged
            self._failures.note(error)
            return self._core.failed
        return lambda now: self._core.written(version, now)

    def _write(self, call: DatabaseCall) -> int:
        """The version that the record has then.  Raises what is in `REFUSED`, and DbError."""
        key = self._key_of(call)
        if call.kind == "create":
            return self._db.create(self._table, key, call.value, topic=TOPIC)
        if call.kind == "set":
            return self._db.set(self._table, key, call.value, expected_version=call.expected_version)
        return self._db.delete(self._table, key, expected_version=call.expected_version)
