"""AsyncGroupMember: a member of a group of consumers for coroutines.

One thread asks the member for the next event when the coroutine wants it, and not before: so an event is acknowledged
when the next one is asked for, a lease that has run out is noticed before delivery, and nothing waits in a buffer that
the group would count as handled.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pubsub_api.core.events import GroupEvent
from pubsub_api.errors import HeliographError, UsageError
from pubsub_api.runtime.closing import AsyncCloseable
from pubsub_api.runtime.coroutines import BlockingCalls, run_in_new_thread, wait_until_done
from pubsub_api.subscribing.scheme import GroupMember, Unseen

LOG = logging.getLogger(__name__)


_THREAD = "heliograph-group-aio"


class AsyncGroupMember(AsyncCloseable):
    """`GroupMember` for coroutines: iterate, or `get`.  Made by `pubsub_api.aio.AsyncSession.group`.

    Several coroutines may iterate at once; each event goes to one of them.
    """

    def __init__(self, member: GroupMember) -> None:
        """Takes over the member, which must have no callback."""
        self._member = member
        self._calls = BlockingCalls(1, _THREAD)
        self._got: concurrent.futures.Future[GroupEvent | None] | None = None
        """What a thread gets.  Kept for the next `get` when the task is cancelled meanwhile."""
        self._is_getting = False

    async def __aiter__(self) -> AsyncGenerator[GroupEvent, None]:
        """Events until the member is closed.  Leave the loop by `aclose`, or close the member.

        With ``auto_ack`` an event is done when the next one is asked for; one whose handling is left in the middle is
        delivered again.  Raises GroupDestroyed when all groups are gone.
        """
        events = iter(self._member)
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="heliograph-group-aio")
        brought = seen = 0

        def bring() -> GroupEvent | None:
            nonlocal brought
            event = next(events, None)
            brought += 1
            return event

        try:
            while (event := await loop.run_in_executor(thread, bring)) is not None:
                seen += 1
                yield event
        finally:
            # Behind a call that may still be waiting: what that brings then has not been seen, and goes back.
            thread.submit(lambda: _close(events, is_seen=seen == brought))
            thread.shutdown(wait=False)

    async def get(self, *, timeout_s: float | None = None) -> GroupEvent | None:
        """As `GroupMember.get`, one task at a time.  What a cancelled task would have got, the next one gets.  Raises
        UsageError when another task waits in it."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            rest_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if self._is_getting:
                raise UsageError("another task waits in get: one at a time; several can iterate")
            self._is_getting = True
            try:
                if self._got is None:  # which ends in time by itself
                    self._got, rest_s = self._calls.begin(self._member.get, timeout_s=rest_s), None
                if not await wait_until_done(self._got, rest_s):
                    return None
                got, self._got = self._got, None
            finally:
                self._is_getting = False
            event = got.result()
            if event is not None or (deadline is not None and time.monotonic() >= deadline):
                return event

    def acknowledge(self, event: GroupEvent) -> bool:
        """As `GroupMember.acknowledge`.  Does not wait, and is a plain call."""
        return self._member.acknowledge(event)

    def extend(self, event: GroupEvent) -> bool:
        """As `GroupMember.extend`.  Does not wait, and is a plain call."""
        return self._member.extend(event)

    async def refuse(self, event: GroupEvent, delay_s: float | None = None) -> None:
        """As `GroupMember.refuse`.  Goes on when it is cancelled."""
        await run_in_new_thread(functools.partial(self._member.refuse, event, delay_s), _THREAD)

    async def wait_ready(self, *, timeout_s: float) -> None:
        """As `GroupMember.wait_ready`."""
        await run_in_new_thread(functools.partial(self._member.wait_ready, timeout_s=timeout_s), _THREAD)

    def statistics(self) -> Any:
        """As `GroupMember.statistics`."""
        return self._member.statistics()

    async def close(self) -> None:
        """Give everything back in good order and stop; iterations end.  Goes on when it is cancelled.  Idempotent."""
        await run_in_new_thread(self._close, _THREAD)

    def _close(self) -> None:
        self._member.close()
        self._calls.close()


def _close(events: Iterator[GroupEvent], *, is_seen: bool) -> None:
    """End an iteration; what it had not finished goes back to the group, and its last event if that was not seen."""
    assert isinstance(events, Generator)
    try:
        if not is_seen:
            with contextlib.suppress(Unseen, StopIteration):
                events.throw(Unseen())
        events.close()
    except HeliographError as error:  # no caller waits for it, and the group delivers again what is not settled
        LOG.warning("Shared subscription: an iteration did not end in good order: %s", error)
