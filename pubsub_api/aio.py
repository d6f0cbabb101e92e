"""A thin asyncio interface.  The threads of the blocking interface do the work; this passes it to and from coroutines.

Events are passed to the event loop in whole batches, because waking a loop costs more than delivering an event.  The
number of batches is bounded: a coroutine that is too slow blocks the dispatcher, the queue before the dispatcher fills,
and a resync follows, exactly as for a slow callback.

    async with pubsub_api.aio.open("zmq://127.0.0.1:8866") as session:
        async with session.subscriber(["tenant-7/#"]) as subscriber:
            async for item in subscriber:       # Event or Resync
                ...
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from oslo_config import cfg

from pubsub_api import session as blocking
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.core.events import Event
from pubsub_api.core.receiving.resync_requests import Resync
from pubsub_api.core.sending.publisher import Predecessor
from pubsub_api.errors import Closed
from pubsub_api.publishing.publisher import Publisher
from pubsub_api.publishing.statistics import PublisherStatistics
from pubsub_api.runtime.closing import AsyncCloseable
from pubsub_api.runtime.coroutines import AwaitableCondition, run_in_new_thread
from pubsub_api.subscribing.group_aio import AsyncGroupMember
from pubsub_api.subscribing.history import Mismatch
from pubsub_api.subscribing.past import Past
from pubsub_api.subscribing.scheme import GroupMember
from pubsub_api.subscribing.statistics import SubscriberStatistics
from pubsub_api.subscribing.subscriber import Subscriber

BATCHES_MAX = 64
"""Batches of events that may wait for the event loop before the dispatcher blocks."""


class AsyncPublisher(AsyncCloseable):
    """`Publisher` for coroutines.  Sending does not wait, so it is an ordinary call."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.send_event = publisher.send_event
        self.send_events = publisher.send_events

    @property
    def address(self) -> str:
        return self._publisher.address

    def statistics(self) -> PublisherStatistics:
        return self._publisher.statistics()

    async def confirm(
        self,
        *,
        caches: int = 1,
        services: int | None = None,
        timeout_s: float,
        addresses: Sequence[str] | None = None,
    ) -> None:
        """As `Publisher.confirm`."""
        await asyncio.to_thread(
            self._publisher.confirm, caches=caches, services=services, timeout_s=timeout_s, addresses=addresses
        )

    async def flush(self, *, timeout_s: float | None = None) -> None:
        """As `Publisher.flush`."""
        await asyncio.to_thread(self._publisher.flush, timeout_s=timeout_s)

    async def close(self) -> None:
        await asyncio.to_thread(self._publisher.close)


class AsyncSubscriber(AsyncCloseable):
    """`Subscriber` for coroutines: iterate over it, or call `get`, for events and resyncs in their order.

    One task at a time may read, on any loop.  When a task is cancelled, or stops iterating, nothing is lost: the next
    task that reads gets the items that follow.
    """

    def __init__(self) -> None:
        self._changed = AwaitableCondition()
        self._batches: deque[Sequence[Event | Resync]] = deque()
        self._current_batch: Iterator[Event | Resync] = iter(())
        """The items of the current batch that were not read yet."""
        self._is_closed = False
        self._subscriber: Subscriber | None = None

    def attach(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber

    @property
    def blocking(self) -> Subscriber:
        """The blocking subscriber that does the work."""
        assert self._subscriber is not None
        return self._subscriber

    def on_batch(self, batch: Sequence[Event | Resync]) -> None:
        """Called by the subscriber instead of a callback of the program.  Blocks while `BATCHES_MAX` batches wait."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < BATCHES_MAX or self._is_closed)
            if not self._is_closed:
                self._batches.append(batch)
                self._changed.notify_all()

    def on_resync(self, resync: Resync) -> None:
        self.on_batch((resync,))

    async def __aiter__(self) -> AsyncIterator[Event | Resync]:
        """Ends when it is closed, after all items that arrived before."""
        while True:
            for item in self._current_batch:
                yield item
            if not await self._next_batch(None):
                return

    async def get(self, *, timeout_s: float | None = None) -> Event | Resync | None:
        """The next event or resync; None when none came within the time.  Raises Closed.

        Without ``timeout_s`` it waits without limit.
        """
        while (item := next(self._current_batch, None)) is None:
            if not await self._next_batch(timeout_s):
                if self._is_closed:
                    raise Closed("the subscriber was closed")
                return None
        return item

    async def _next_batch(self, timeout_s: float | None) -> bool:
        """Begin to read the next batch; False when the time is over, or it was closed and all batches were read."""
        await self._changed.wait_for_in_loop(lambda: bool(self._batches) or self._is_closed, timeout_s)
        with self._changed:
            if not self._batches:
                return False
            self._current_batch = iter(self._batches.popleft())
            self._changed.notify_all()
            return True

    async def wait_ready(self, *, timeout_s: float) -> None:
        """As `Subscriber.wait_ready`."""
        await asyncio.to_thread(self.blocking.wait_ready, timeout_s=timeout_s)

    async def wait_for_historical_data(self, timeout_s: float) -> HistoryOutcome:
        """As `Subscriber.wait_for_historical_data`; history counts as delivered as soon as it waits for the loop."""
        return await asyncio.to_thread(self.blocking.wait_for_historical_data, timeout_s)

    def durability_mismatches(self) -> Sequence[Mismatch]:
        return self.blocking.durability_mismatches()

    async def subscribe(self, topic_filter: str) -> bool:
        return await asyncio.to_thread(self.blocking.subscribe, topic_filter)

    async def unsubscribe(self, topic_filter: str) -> bool:
        return await asyncio.to_thread(self.blocking.unsubscribe, topic_filter)

    def statistics(self) -> SubscriberStatistics:
        return self.blocking.statistics()

    async def close(self) -> None:
        """Stop receiving.  A running iteration ends after the items that arrived before.

        When the task is cancelled, closing goes on in its thread.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()  # the dispatcher may wait in `on_batch`; its batch is dropped
        await run_in_new_thread(self.blocking.close, "heliograph-aio-close")


class AsyncSession(AsyncCloseable):
    """`Session` for coroutines.  Made by `open`; used inside a running event loop."""

    def __init__(self, session: blocking.Session) -> None:
        self._session = session

    @property
    def blocking(self) -> blocking.Session:
        """The blocking session that does the work."""
        return self._session

    async def publisher(self, *, name: str = "", predecessor: Predecessor | None = None) -> AsyncPublisher:
        publisher = await asyncio.to_thread(self._session.publisher, name=name, predecessor=predecessor)
        return AsyncPublisher(publisher)

    def subscriber(
        self, topics: Sequence[str], *, addresses: Sequence[str] | None = None, past: Past | None = None
    ) -> AsyncSubscriber:
        """As `Session.subscriber`, without callbacks."""
        subscriber = AsyncSubscriber()
        subscriber.attach(
            self._session.subscriber(
                topics, on_events=subscriber.on_batch, on_resync=subscriber.on_resync, addresses=addresses, past=past
            )
        )
        return subscriber

    async def group(
        self, name: str, topic_filter: str, *, ordered: bool = True, auto_ack: bool = True, member: str = ""
    ) -> AsyncGroupMember:
        """As `Session.group`, without callbacks: ``async with await session.group("billing", "orders/#") as one``."""
        join = functools.partial(
            self._session.group, name, topic_filter, ordered=ordered, auto_ack=auto_ack, member=member
        )
        return AsyncGroupMember(await run_in_new_thread(join, "heliograph-group-aio", undo=GroupMember.close))

    async def close(self) -> None:
        await asyncio.to_thread(self._session.close)


def open(
    url: str | None = None,
    *,
    log: str | None = None,
    config_files: Iterable[str | os.PathLike[str]] | None = None,
    conf: cfg.ConfigOpts | None = None,
) -> AsyncSession:
    """As `pubsub_api.open`."""
    return AsyncSession(blocking.open(url, log=log, config_files=config_files, conf=conf))


__all__ = ["AsyncGroupMember", "AsyncPublisher", "AsyncSession", "AsyncSubscriber", "open"]
