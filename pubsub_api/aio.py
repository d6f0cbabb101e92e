"""A thin asyncio face.  The work is done by the same threads as in the blocking interface; this only hands over.

Events cross into the event loop in whole batches, because waking a loop costs more than delivering an event.  The
buffer on the loop's side is bounded: a coroutine that does not keep up holds back the dispatcher, the queue before it
fills, and a resync follows, exactly as for a slow callback.

    async with pubsub_api.aio.open("zmq://127.0.0.1:8866") as session:
        async with session.subscriber(["tenant-7/#"]) as subscriber:
            async for item in subscriber:       # Event or Resync
                ...
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType

from oslo_config import cfg

from pubsub_api import session as blocking
from pubsub_api.core.durability import Durability, HistoryOutcome
from pubsub_api.core.events import Event
from pubsub_api.core.receiving.resync_requests import Resync
from pubsub_api.core.sending.publisher import Predecessor
from pubsub_api.core.settings import History
from pubsub_api.publishing.publisher import Publisher
from pubsub_api.publishing.statistics import PublisherStatistics
from pubsub_api.subscribing.history import HistorySource, Mismatch
from pubsub_api.subscribing.statistics import SubscriberStatistics
from pubsub_api.subscribing.subscriber import Subscriber

BATCHES_MAX = 64
"""Batches of events that wait for the loop before the dispatcher is held back."""


class AsyncPublisher:
    """`Publisher` for coroutines.  Sending does not wait and is a plain call."""

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

    async def __aenter__(self) -> AsyncPublisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSubscriber:
    """`Subscriber` for coroutines: iterate to get events and resyncs in the order in which they happened."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._batches: deque[Sequence[Event | Resync]] = deque()
        self._arrived = asyncio.Event()
        self._room = threading.Semaphore(BATCHES_MAX)
        self._is_closed = False
        self._subscriber: Subscriber | None = None

    def attach(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber

    @property
    def blocking(self) -> Subscriber:
        """The subscriber behind this face."""
        assert self._subscriber is not None
        return self._subscriber

    def on_batch(self, batch: Sequence[Event | Resync]) -> None:
        """Called by the subscriber, on whatever thread calls the user; waits while the loop has enough to do."""
        self._room.acquire()
        if not self._is_closed:
            self._batches.append(batch)
            self._loop.call_soon_threadsafe(self._arrived.set)

    def on_resync(self, resync: Resync) -> None:
        self.on_batch((resync,))

    async def __aiter__(self) -> AsyncIterator[Event | Resync]:
        while True:
            while self._batches:
                batch = self._batches.popleft()
                self._room.release()
                for item in batch:
                    yield item
            if self._is_closed:
                return
            self._arrived.clear()
            if not self._batches and not self._is_closed:
                await self._arrived.wait()

    async def wait_ready(self, *, timeout_s: float) -> None:
        """As `Subscriber.wait_ready`."""
        await asyncio.to_thread(self.blocking.wait_ready, timeout_s=timeout_s)

    async def wait_for_historical_data(self, timeout_s: float) -> HistoryOutcome:
        """As `Subscriber.wait_for_historical_data`; history counts as delivered when it waits for the loop."""
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
        """Stop receiving; an iteration that is under way ends after what has arrived."""
        self._is_closed = True
        # The dispatcher may be waiting for room; let it through, whatever it brings is dropped.
        self._room.release(BATCHES_MAX)
        await asyncio.to_thread(self.blocking.close)
        self._arrived.set()

    async def __aenter__(self) -> AsyncSubscriber:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSession:
    """`Session` for coroutines.  Made by `open`; used inside a running event loop."""

    def __init__(self, session: blocking.Session) -> None:
        self._session = session

    @property
    def blocking(self) -> blocking.Session:
        """The session behind this face."""
        return self._session

    async def publisher(self, *, name: str = "", predecessor: Predecessor | None = None) -> AsyncPublisher:
        publisher = await asyncio.to_thread(self._session.publisher, name=name, predecessor=predecessor)
        return AsyncPublisher(publisher)

    def subscriber(
        self,
        topics: Sequence[str],
        *,
        addresses: Sequence[str] | None = None,
        history: History | None = None,
        durability: Durability | None = None,
        history_source: HistorySource | None = None,
    ) -> AsyncSubscriber:
        """As `Session.subscriber`, with iteration as the only way to receive."""
        face = AsyncSubscriber(asyncio.get_running_loop())
        face.attach(
            self._session.subscriber(
                topics,
                on_events=face.on_batch,
                on_resync=face.on_resync,
                addresses=addresses,
                history=history,
                durability=durability,
                history_source=history_source,
            )
        )
        return face

    async def close(self) -> None:
        await asyncio.to_thread(self._session.close)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def open(
    url: str | None = None,
    *,
    log: str | None = None,
    config_files: Iterable[str | os.PathLike[str]] | None = None,
    conf: cfg.ConfigOpts | None = None,
) -> AsyncSession:
    """As `pubsub_api.open`."""
    return AsyncSession(blocking.open(url, log=log, config_files=config_files, conf=conf))


__all__ = ["AsyncPublisher", "AsyncSession", "AsyncSubscriber", "open"]
