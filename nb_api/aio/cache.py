"""AsyncLocalCache: a `LocalCache` for coroutines.

Reading it is a plain call, since it reads memory.  Changes wait where they wait for a thread that iterates: in a
bounded queue beside the copy, out of which a coroutine takes them one by one.  The loop is woken once for all that came
while nothing was there, and nothing is kept on its side: a task that is cancelled has taken what it was given, and all
else is there for the next one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from nb_api.aio.api import AsyncNbApi
from nb_api.aio.tables import AsyncCachedTable
from nb_api.cache.index import Index
from nb_api.cache.local_cache import LocalCache
from nb_api.cache.snapshot_source import SnapshotSource
from nb_api.cache.statistics import LocalCacheStatistics
from nb_api.cache.telling.change_queue import ChangeQueue
from nb_api.cache.telling.subscriptions import Subscription
from nb_api.core.copy.differences import CacheChange
from nb_api.core.copy.held_objects import Where
from nb_api.core.copy.indexes import IndexFunction
from nb_api.core.digests import TableDigest
from nb_api.db_api import DbObject
from nb_api.verifying.verification import Verification
from pubsub_api.errors import UsageError
from pubsub_api.runtime.closing import AsyncCloseable
from pubsub_api.runtime.coroutines import call_in_new_thread, result_of, run_in_new_thread

T = TypeVar("T")
_THREAD = "heliograph-cache-aio"
_PORTION = 100
"""Changes that a coroutine gets in a row; then other tasks of the loop have a turn."""


class AsyncSubscription(AsyncCloseable):
    """`Subscription` for coroutines; made by `AsyncLocalCache.subscribe`.  Belongs to no event loop."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        queue = subscription.queue
        if not isinstance(queue, ChangeQueue):
            raise UsageError("this calls back; make it without on_changes to iterate")
        self._queue = queue
        self._overrun: Future[CacheChange | None] | None = None
        """An overrun that is being taken, by a thread.  Kept for the next one when the task is cancelled meanwhile."""

    @property
    def blocking(self) -> Subscription:
        """The subscription behind this face."""
        return self._subscription

    @property
    def is_synced(self) -> bool:
        """As `Subscription.is_synced`."""
        return self._subscription.is_synced

    @property
    def untold(self) -> int:
        """As `Subscription.untold`."""
        return self._subscription.untold

    @property
    def overruns(self) -> int:
        """As `Subscription.overruns`."""
        return self._subscription.overruns

    async def changes(self, *, timeout_s: float | None = None) -> AsyncIterator[CacheChange]:
        """As `Subscription.changes`, one iterating task at a time.  After a task was cancelled, iterate again: no
        change is left out, and none comes twice."""
        taken = 0
        while (change := await self._next(timeout_s)) is not None:
            yield change
            taken += 1
            if taken % _PORTION == 0:
                await asyncio.sleep(0)

    async def _next(self, timeout_s: float | None) -> CacheChange | None:
        """None when nothing came in time, or it was closed."""
        queue = self._queue
        while True:
            if self._overrun is None and not queue.is_overrun:
                if (change := queue.get(0.0)) is not None:
                    return change
                if not await queue.wait_in_loop(timeout_s):
                    return None
            if self._overrun is not None or queue.is_overrun:
                # Taken while the copy does not change, which the loop must not wait for.
                self._overrun = self._overrun or call_in_new_thread(functools.partial(queue.get, 0.0), _THREAD)
                change = await result_of(self._overrun)
                self._overrun = None
                if change is not None or queue.is_closed:
                    return change

    async def close(self) -> None:
        """As `Subscription.close`."""
        await run_in_new_thread(self._subscription.close, _THREAD)


class AsyncLocalCache(AsyncCloseable):
    """`LocalCache` for coroutines, with its methods and errors; changes come by iteration only.

    Reading does not wait and is a plain call.  What waits is a coroutine, and needs no thread while it waits.  Belongs
    to no event loop: coroutines of several may use it, and close it.  Does not live on in a forked child.
    """

    def __init__(
        self,
        nb: AsyncNbApi,
        *,
        tables: Sequence[str] | Mapping[str, Where | None] | None = None,
        topics: Sequence[str] | None = None,
        where: Where | None = None,
        addresses: Sequence[str] | None = None,
        resync_source: str | SnapshotSource | None = None,
        verify_interval_s: float | None = None,
    ) -> None:
        """As `LocalCache`: begins at once and returns at once."""
        self._take_over(
            LocalCache(
                nb.blocking, tables=tables, topics=topics, where=where, addresses=addresses,
                resync_source=resync_source, verify_interval_s=verify_interval_s,
            )
        )  # fmt: skip

    @classmethod
    def over(cls, cache: LocalCache) -> AsyncLocalCache:
        """The face of a cache that is there, without ``on_changes``.  Closing either closes it."""
        face = cls.__new__(cls)
        face._take_over(cache)
        return face

    def _take_over(self, cache: LocalCache) -> None:
        self._cache = cache
        self.get = cache.get
        self.get_all = cache.get_all

    @property
    def blocking(self) -> LocalCache:
        """The cache behind this face, for other threads."""
        return self._cache

    @property
    def is_closed(self) -> bool:
        return self._cache.is_closed

    @property
    def tables(self) -> list[str]:
        """As `LocalCache.tables`."""
        return self._cache.tables

    def is_followed(self, table: str) -> bool:
        """As `LocalCache.is_followed`."""
        return self._cache.is_followed(table)

    def statistics(self) -> LocalCacheStatistics:
        return self._cache.statistics()

    @property
    def topics(self) -> list[str]:
        """As `LocalCache.topics`."""
        return self._cache.topics

    def table(self, cls: type[T]) -> AsyncCachedTable[T]:
        """As `LocalCache.table`.  Reading it is a plain call, and `nb_api.aio.Controller` takes it."""
        return AsyncCachedTable(self, self._cache.table(cls))

    # -- changes

    @functools.cached_property
    def _first(self) -> AsyncSubscription:
        return AsyncSubscription(self._cache.first)

    async def changes(self, *, timeout_s: float | None = None) -> AsyncIterator[CacheChange]:
        """As `LocalCache.changes`: what changed since the cache was made.  One iterating task at a time; after one was
        cancelled, iterate again: no change is left out, and none comes twice."""
        self._cache.waits.check()
        async for change in self._first.changes(timeout_s=timeout_s):
            yield change

    async def subscribe(self, *, tables: Iterable[str] | None = None) -> AsyncSubscription:
        """As `LocalCache.subscribe`: a further consumer.  Takes a thread while the objects that are there are
        listed.  When it is cancelled meanwhile, there is none."""
        subscribe = functools.partial(self._cache.subscribe, tables=tables)
        return AsyncSubscription(await run_in_new_thread(subscribe, _THREAD, undo=Subscription.close))

    # -- indexes and topics

    async def index(
        self,
        name: str,
        function: IndexFunction | None = None,
        *,
        table: str | None = None,
        unique: bool = False,
        multiple: bool = False,
        sorted: bool = False,
    ) -> Index:
        """As `LocalCache.index`; looking something up in it is a plain call.  A thread indexes what is there."""
        if function is None:
            return self._cache.index(name)
        make = functools.partial(
            self._cache.index, name, function, table=table, unique=unique, multiple=multiple, sorted=sorted
        )
        return await run_in_new_thread(make, _THREAD)

    async def add_topic(self, topic_filter: str) -> bool:
        """As `LocalCache.add_topic`.  Goes on when it is cancelled."""
        return await run_in_new_thread(functools.partial(self._cache.add_topic, topic_filter), _THREAD)

    async def remove_topic(self, topic_filter: str) -> bool:
        """As `LocalCache.remove_topic`.  Goes on when it is cancelled."""
        return await run_in_new_thread(functools.partial(self._cache.remove_topic, topic_filter), _THREAD)

    # -- waiting

    async def wait_synced(self, *, timeout_s: float) -> None:
        """As `LocalCache.wait_synced`."""
        waits = self._cache.waits
        await waits.changed.wait_for_steps_in_loop(waits.synced(timeout_s))

    async def wait_version(self, table: str, key: str, version: int, *, timeout_s: float) -> DbObject | None:
        """As `LocalCache.wait_version`."""
        waits = self._cache.waits
        return await waits.changed.wait_for_steps_in_loop(waits.version(table, key, version, timeout_s))

    async def wait_revision(self, revision: int, *, timeout_s: float) -> None:
        """As `LocalCache.wait_revision`."""
        waits = self._cache.waits
        await waits.changed.wait_for_steps_in_loop(waits.revision(revision, timeout_s))

    # -- proof

    async def verify(self, *, timeout_s: float = 60.0, is_thorough: bool = False) -> Verification:
        """As `LocalCache.verify`, in a thread of its own, which goes on to its end when the task is cancelled."""
        work = functools.partial(self._cache.verify, timeout_s=timeout_s, is_thorough=is_thorough)
        return await run_in_new_thread(work, _THREAD)

    async def digests(self) -> dict[str, TableDigest]:
        """As `LocalCache.digests`, which waits while a batch of changes is applied."""
        return await run_in_new_thread(self._cache.digests, _THREAD)

    # -- the end

    async def close(self) -> None:
        """As `LocalCache.close`; iterations end, and what waits raises Closed.  Goes on when it is cancelled."""
        await run_in_new_thread(self._cache.close, _THREAD)
