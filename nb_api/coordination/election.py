"""One leader at a time per name, among all processes that share a database.

`nb_api.core.election` decides; this asks the database and calls the user.  One thread talks to the database, another
calls back, so a callback may be slow without costing the lease, and the end of a lease is told in time although the
database does not answer.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import threading
import time
from collections.abc import Callable

from nb_api.coordination.leases import REFUSED, carry_out, checked_lease, lease_clock, wait_call
from nb_api.core.checks import check_name
from nb_api.core.election import DatabaseCall, ElectionCore
from nb_api.core.own_tables import OWN_PREFIX
from nb_api.db_api import DbApi
from nb_api.errors import ObjectNotFound
from pubsub_api.errors import Closed, Forked, LimitReached, WaitTimeout
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.periodic import Failures
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

TABLE = f"{OWN_PREFIX}elections"

OnGain = Callable[[int], None]
OnLoss = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class ElectionStatistics:
    """``leader`` is the holder of the lease at the last look, None when there was none."""

    is_leader: bool
    leader: str | None
    gains: int
    losses: int
    renewals: int
    conflicts: int
    """Writes that came too late, because another candidate was faster."""
    failures: int
    """Calls that the database did not answer."""
    callback_errors: int


class Election(Closeable):
    """A candidate.  Every method may be called from any thread; it takes part from ``start`` to ``close``.

    ``holder`` is what others see as the name of the leader.  ``on_gain`` gets the fencing token, a number that is
    higher for every leader than for all before; ``on_loss`` follows each ``on_gain``, at the latest when the lease is
    over.  Both are called from one thread, one at a time.  A program that does what only the leader may do asks
    `is_leader` right before, because a process can stand still anywhere; and where that is not enough, a store that
    remembers the highest token can refuse the lower ones.

    The holder's lease ends, on its own clock, before another may take it over.  A candidate inherited by a forked
    child leads nothing there.  The database object is used from a thread of its own and stays the caller's.
    """

    def _about(self) -> str:
        return f"{self._name!r} in {self._db!r}"

    def __init__(
        self,
        db: DbApi,
        name: str,
        *,
        holder: str,
        place: str = "",
        lease_s: float | None = None,
        on_gain: OnGain | None = None,
        on_loss: OnLoss | None = None,
    ) -> None:
        """``place``: where no other candidate can be at the same time, for example a file that is locked.  The lease of
        a candidate that was there before is taken over at once."""
        check_name(name, "name of an election")
        self._db = db
        self._name = name
        self._lease_s = checked_lease(db, lease_s)
        self._on_gain = on_gain
        self._on_loss = on_loss
        self._core = ElectionCore(holder, os.urandom(16).hex(), self._lease_s, place=place)
        self._changed = threading.Condition()
        self._counters = dict.fromkeys(("gains", "losses", "renewals", "conflicts", "callback_errors"), 0)
        self._is_closed = False
        self._is_inherited = False
        self._failures = Failures(LOG, f"The election {name!r}: the database cannot say who leads")
        self._deadline: float | None = None
        self._threads = [
            threading.Thread(target=target, name=f"election-{part}-{name}", daemon=True)
            for part, target in (("store", self._run_store), ("calls", self._run_callbacks))
        ]
        forking.register(self)

    def start(self) -> Election:
        """Take part.  Does not wait for the database.  Raises LimitReached."""
        if self._is_inherited:
            raise Forked("an election belongs to the process that made it; make one in this process")
        try:
            for thread in self._threads:
                start_thread(thread)
        except LimitReached:
            self.close()
            raise
        return self

    def is_leader(self) -> bool:
        """Whether this candidate leads now.  Does not ask the database."""
        with self._changed:
            return self._core.is_leader(lease_clock())

    def token(self) -> int | None:
        """The fencing token, None while it does not lead."""
        with self._changed:
            return self._core.token(lease_clock())

    def wait_leader(self, *, timeout_s: float) -> int:
        """Block until this candidate leads; returns the token.  Raises WaitTimeout and Closed."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (token := self._core.token(lease_clock())) is None:
                if self._is_closed:
                    raise Closed("the election was closed")
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise WaitTimeout(f"{self._name!r} was not won within {timeout_s} s")
                self._changed.wait(remaining_s)
            return token

    def statistics(self) -> ElectionStatistics:
        with self._changed:
            is_leader, failures = self._core.is_leader(lease_clock()), self._failures.count
            return ElectionStatistics(is_leader, self._core.leader, failures=failures, **self._counters)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Resign, so that another can lead at once, and end the threads.  ``on_loss`` is called if it led.

        Blocks until the database has answered, for ``timeout_s`` at most; then others must wait for the end of the
        lease.  Idempotent.
        """
        with self._changed:
            if not self._is_closed:
                self._is_closed = True
                self._core.resign()
                self._deadline = lease_clock() + timeout_s
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread() and not self._is_inherited:
                thread.join(timeout_s)

    def __enter__(self) -> Election:
        return self.start()

    def after_fork_in_child(self) -> None:
        self._is_inherited = self._is_closed = True
        self._changed = threading.Condition()
        self._core = ElectionCore("", "", self._lease_s)  # which never leads

    # -- the thread that talks to the database

    def _run_store(self) -> None:
        while (call := wait_call(self._core, self._changed, self._is_late)) is not None:
            answer = self._ask(call)
            with self._changed:
                answer(lease_clock())
                self._changed.notify_all()

    def _is_late(self, now: float) -> bool:
        return self._deadline is not None and now >= self._deadline

    def _ask(self, call: DatabaseCall) -> Callable[[float], None]:
        """What the core is to be told at the time of the answer."""
        try:
            return self._look() if call.kind == "look" else self._write(call)
        except Closed:
            self._deadline = lease_clock()  # the database was closed before us; the lease ends by itself
            return self._core.failed
        except Exception as error:  # noqa: BLE001  counted and logged
            self._failures.note(error)
            return self._core.failed

    def _look(self) -> Callable[[float], None]:
        try:
            found = self._db.get(TABLE, self._name)
        except ObjectNotFound as missing:
            deleted_version = missing.deleted_version
            return lambda now: self._core.found(None, None, now, deleted_version)
        return lambda now: self._core.found(found.version, found.value, now)

    def _write(self, call: DatabaseCall) -> Callable[[float], None]:
        try:
            version = carry_out(self._db, TABLE, self._name, call)
        except REFUSED:
            self._counters["conflicts"] += 1
            return self._core.refused
        self._counters["renewals"] += call.kind == "set"
        return lambda now: self._core.written(version, now)

    # -- the thread that calls the user

    def _run_callbacks(self) -> None:
        told: int | None = None
        while True:
            with self._changed:
                while (token := self._core.token(lease_clock())) == told and not self._is_over():
                    self._changed.wait(self._patience_s())
                is_over = self._is_over()
            if told is not None and token != told:
                self._call("losses", self._on_loss)
                told = None
            elif token is not None and token != told:
                self._call("gains", functools.partial(self._on_gain, token) if self._on_gain else None)
                told = token
            elif is_over:
                return

    def _is_over(self) -> bool:
        return self._is_closed and self._core.lead_ends(lease_clock()) is None

    def _patience_s(self) -> float | None:
        """Until the lease would end by itself."""
        now = lease_clock()
        ends = self._core.lead_ends(now)
        return None if ends is None else ends - now

    def _call(self, counter: str, callback: Callable[[], None] | None) -> None:
        self._counters[counter] += 1
        LOG.info("The election %r: %s", self._name, "won" if counter == "gains" else "lost")
        if callback is None:
            return
        try:
            callback()
        except BaseException:  # the user's code may raise anything, and must not end the election
            self._counters["callback_errors"] += 1
            LOG.exception("The election %r: a callback raised", self._name)
