"""A thin asyncio face of shared subscriptions, in the manner of `pubsub_api.aio`.

One thread per iteration asks the blocking subscriber for the next event when the coroutine wants it, and not before:
so an event is acknowledged when the next one is asked for, a lease that has run out is noticed before delivery, and
nothing waits in a buffer that the group would count as handled.

    async with pubsub_api.aio.open(config_files=["etc/heliograph.conf"]) as session:
        async with await shared_subscriptions.aio.subscribe(session, ["$shared/billing/tenant-7/#"]) as subscriber:
            async for event in subscriber:
                ...
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from pubsub_api import Session
from pubsub_api.aio import AsyncSession
from pubsub_api.errors import HeliographError
from shared_subscriptions import scheme
from shared_subscriptions.consuming.statistics import GroupSubscriberStatistics
from shared_subscriptions.consuming.subscriber import GroupSubscriber
from shared_subscriptions.core.events import GroupEvent

LOG = logging.getLogger(__name__)


class AsyncGroupSubscriber:
    """`GroupSubscriber` for coroutines: iterate to get events.  Made by `subscribe`.

    Several coroutines may iterate at once; each event goes to one of them.
    """

    def __init__(self, subscriber: GroupSubscriber) -> None:
        """Takes over the subscriber, which must have no callback."""
        self._subscriber = subscriber

    @property
    def blocking(self) -> GroupSubscriber:
        """The subscriber behind this face."""
        return self._subscriber

    async def __aiter__(self) -> AsyncGenerator[GroupEvent, None]:
        """Events until the subscriber is closed.  Leave the loop by `aclose`, or close the subscriber.

        With ``auto_ack`` an event is done when the next one is asked for; one whose handling is left in the middle is
        delivered again.  Raises GroupDestroyed when all groups are gone.
        """
        events = iter(self._subscriber)
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="heliograph-group-aio")
        try:
            while (event := await loop.run_in_executor(thread, next, events, None)) is not None:
                yield event
        finally:
            # Behind a call that may still be waiting: what that brings then has not been seen, and goes back.
            thread.submit(_close, events)
            thread.shutdown(wait=False)

    def ack(self, event: GroupEvent) -> bool:
        """As `GroupSubscriber.ack`.  Does not wait, and is a plain call."""
        return self._subscriber.ack(event)

    async def nack(self, event: GroupEvent, delay_s: float | None = None) -> None:
        """As `GroupSubscriber.nack`."""
        await asyncio.to_thread(self._subscriber.nack, event, delay_s)

    async def subscribe(self, topic_filter: str) -> bool:
        """As `GroupSubscriber.subscribe`."""
        return await asyncio.to_thread(self._subscriber.subscribe, topic_filter)

    async def unsubscribe(self, topic_filter: str) -> bool:
        """As `GroupSubscriber.unsubscribe`."""
        return await asyncio.to_thread(self._subscriber.unsubscribe, topic_filter)

    async def wait_ready(self, *, timeout_s: float) -> None:
        """As `GroupSubscriber.wait_ready`."""
        await asyncio.to_thread(self._subscriber.wait_ready, timeout_s=timeout_s)

    async def wait_streams(self, count: int = 1, *, timeout_s: float) -> None:
        """As `GroupSubscriber.wait_streams`."""
        await asyncio.to_thread(self._subscriber.wait_streams, count, timeout_s=timeout_s)

    def statistics(self) -> GroupSubscriberStatistics:
        return self._subscriber.statistics()

    async def close(self) -> None:
        """Give everything back in good order and stop; iterations end.  Idempotent."""
        await asyncio.to_thread(self._subscriber.close)

    async def __aenter__(self) -> AsyncGroupSubscriber:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def subscribe(
    session: AsyncSession | Session, topics: Sequence[str], *, auto_ack: bool = True, member: str = ""
) -> AsyncGroupSubscriber:
    """As `shared_subscriptions.subscribe`, with iteration as the only way to receive; close it yourself."""
    blocking = session.blocking if isinstance(session, AsyncSession) else session
    return AsyncGroupSubscriber(
        await asyncio.to_thread(scheme.subscribe, blocking, topics, auto_ack=auto_ack, member=member)
    )


def _close(events: Iterator[GroupEvent]) -> None:
    """End an iteration; what it had not finished goes back to the group."""
    assert isinstance(events, Generator)
    try:
        events.close()
    except HeliographError as error:  # no caller waits for it, and the group delivers again what is not settled
        LOG.warning("Shared subscription: an iteration did not end in good order: %s", error)
