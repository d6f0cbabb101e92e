"""AsyncElection: an `Election` for coroutines, which wait for its gain and its loss instead of being called."""

from __future__ import annotations

import functools

from nb_api.aio.api import AsyncNbApi
from nb_api.coordination.election import Election, ElectionStatistics
from pubsub_api.errors import Closed, WaitTimeout
from pubsub_api.runtime.closing import AsyncCloseable
from pubsub_api.runtime.coroutines import AwaitableCondition, run_in_new_thread

_THREAD = "heliograph-election-aio"


class AsyncElection(AsyncCloseable):
    """`Election` for coroutines: a candidate from ``async with`` on, or from `start` to `close`.

    As there: ask `is_leader` right before what only the leader may do, and have stores refuse lower tokens, because a
    loop can stand still anywhere.  Belongs to no event loop.  A candidate inherited by a forked child leads nothing.
    """

    def __init__(
        self, nb: AsyncNbApi, name: str, *, holder: str, place: str = "", lease_s: float | None = None
    ) -> None:
        """As `Election`."""
        self._told = AwaitableCondition()
        self._election = Election(
            nb.blocking.db, name, holder=holder, place=place, lease_s=lease_s,
            on_gain=lambda _: self._tell(), on_loss=self._tell,
        )  # fmt: skip
        self.is_leader = self._election.is_leader
        self.token = self._election.token

    @property
    def blocking(self) -> Election:
        """The candidate behind this face."""
        return self._election

    def start(self) -> AsyncElection:
        """As `Election.start`: take part; does not wait."""
        self._election.start()
        return self

    async def wait_leader(self, *, timeout_s: float | None = None) -> int:
        """Wait until this candidate leads; returns the token.  Raises WaitTimeout, Closed."""
        election = self._election
        if not election.is_closed:  # nor inherited by a forked child, in which a lock may be held for ever
            await self._told.wait_for_in_loop(lambda: election.is_closed or election.token() is not None, timeout_s)
        if (token := election.token()) is None:
            raise Closed("the election was closed") if election.is_closed else WaitTimeout(f"not won in {timeout_s} s")
        return token

    async def wait_lost(self, token: int, *, timeout_s: float | None = None) -> None:
        """Wait until this candidate leads no longer under that token, at the latest until its lease is over, or it was
        closed.  Raises WaitTimeout."""
        election = self._election
        if election.is_closed:
            return
        if not await self._told.wait_for_in_loop(lambda: election.is_closed or election.token() != token, timeout_s):
            raise WaitTimeout(f"still the leader after {timeout_s} s")

    def statistics(self) -> ElectionStatistics:
        return self._election.statistics()

    async def close(self, *, timeout_s: float = 5.0) -> None:
        """As `Election.close`: resign.  Goes on when it is cancelled.  Idempotent."""
        await run_in_new_thread(functools.partial(self._close, timeout_s), _THREAD)

    def _close(self, timeout_s: float) -> None:
        if not self._election.is_closed:
            self._election.close(timeout_s=timeout_s)
            self._tell()

    def _tell(self) -> None:
        with self._told:
            self._told.notify_all()

    async def __aenter__(self) -> AsyncElection:
        return self.start()
