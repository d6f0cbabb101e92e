"""One leader at a time per name, among all processes that share a database.

`nb_api.core.election` decides; this asks the database and calls the user.  One thread talks to the database, another
calls back, so a callback may be slow without costing the lease, and the end of a lease is told in time although the
database does not answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable

from nb_api.coordination.leases import LeaseParticipant, checked_lease, lease_clock
from nb_api.core.checks import check_name
from nb_api.core.election import DatabaseCall, ElectionCore
from nb_api.core.own_tables import OWN_PREFIX
from nb_api.db_api import DbApi
from nb_api.errors import ObjectNotFound
from pubsub_api.errors import Closed, WaitTimeout

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


class Election(LeaseParticipant[ElectionCore]):
    """A candidate.  Every method may be called from any thread; it takes part from ``start`` to ``close``.

    ``holder`` is what others see as the name of the leader.  ``on_gain`` gets the fencing token, a number that is
    higher for every leader than for all before; ``on_loss`` follows each ``on_gain``, at the latest when the lease is
    over.  Both are called from one thread, one at a time.  A program that does what only the leader may do asks
    `is_leader` right before, because a process can stand still anywhere; and where that is not enough, a store that
    remembers the highest token can refuse the lower ones.

    The holder's lease ends, on its own clock, before another may take it over.  A candidate inherited by a forked
    child leads nothing there.  The database object is used from a thread of its own and stays the caller's.
    """

    _table = TABLE

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
        lease_s = checked_lease(db, lease_s)
        super().__init__(
            db, name, f"election-store-{name}", lambda holder, mark: ElectionCore(holder, mark, lease_s, place=place),
            holder=holder, trouble=f"The election {name!r}: the database cannot say which candidate leads",
        )  # fmt: skip
        self._on_gain = on_gain
        self._on_loss = on_loss
        self._gains = self._losses = self._callback_errors = 0
        self._threads.append(
            threading.Thread(target=self._run_callbacks, name=f"election-calls-{name}", daemon=True)
        )  # fmt: skip

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
            core = self._core
            return ElectionStatistics(
                core.is_leader(lease_clock()), core.leader, self._gains, self._losses, core.renewals, core.conflicts,
                self._failures.count, self._callback_errors,
            )  # fmt: skip

    # -- the lease

    def _leave(self) -> None:
        self._core.resign()

    def _key_of(self, call: DatabaseCall) -> str:  # noqa: ARG002  there is one
        return self._name

    def _look(self) -> Callable[[float], None]:
        with contextlib.suppress(ObjectNotFound):
            found = self._db.get(TABLE, self._name)
            return lambda now: self._core.found(found.version, found.value, now)
        return lambda now: self._core.found(None, None, now)

    # -- the thread that calls the user

    def _run_callbacks(self) -> None:
        told: int | None = None
        while True:
            with self._changed:
                while (token := self._core.token(lease_clock())) == told and not self._is_over():
                    self._changed.wait(self._patience_s())
                is_over = self._is_over()
            if told is not None and token != told:
                self._losses += 1
                self._call("lost", self._on_loss)
                told = None
            elif token is not None and token != told:
                self._gains += 1
                self._call("won", functools.partial(self._on_gain, token) if self._on_gain else None)
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

    def _call(self, outcome: str, callback: Callable[[], None] | None) -> None:
        LOG.info("The election %r: %s", self._name, outcome)
        if callback is None:
            return
        try:
            callback()
        except BaseException:  # the user's code may raise anything, and must not end the election
            self._callback_errors += 1
            LOG.exception("The election %r: a callback raised", self._name)
