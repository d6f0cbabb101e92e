"""Tables as instances of their classes (`nb_api.models`), for coroutines.

What waits for the database or for the copy is a coroutine; what reads memory, or only collects writes, is a plain call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nb_api.cache.index import Index
from nb_api.cache.view import CacheView
from nb_api.core.changes import DbObject
from nb_api.errors import ValueMismatch
from nb_api.models.cached_table import CachedTable, TableChange
from nb_api.models.table import Table, TransactionTable
from pubsub_api.errors import UsageError
from pubsub_api.runtime.closing import AsyncCloseable
from pubsub_api.runtime.coroutines import BlockingCalls, run_in_new_thread

if TYPE_CHECKING:
    from nb_api.aio.cache import AsyncLocalCache, AsyncSubscription
    from nb_api.cache.local_cache import LocalCache

T = TypeVar("T")


def check_plain(value: object) -> None:
    """Raises UsageError for a coroutine function, which no thread can call."""
    if inspect.iscoroutinefunction(value):
        raise UsageError("the function that makes the new value is a plain one: a thread calls it")


class AsyncTable(Generic[T]):
    """`Table` for coroutines, made by `AsyncNbApi.table`.  Of cancelled writes, see `AsyncNbApi`."""

    def __init__(self, table: Table[T], calls: BlockingCalls) -> None:
        self._table = table
        self._calls = calls

    def __repr__(self) -> str:
        return f"<Async{repr(self._table)[1:]}"

    @property
    def blocking(self) -> Table[T]:
        """The table behind this face, for other threads."""
        return self._table

    @property
    def name(self) -> str:
        return self._table.name

    async def create(self, key: str, value: T, *, topic: str) -> int:
        """As `Table.create`."""
        return await self._calls.run(self._table.create, key, value, topic=topic)

    async def update(
        self, key: str, value: T | Callable[[T], T], *, topic: str | None = None, expected_version: int | None = None
    ) -> int:
        """As `Table.update`.  A function from the present instance to the new one is called in a thread, and is no
        coroutine function: it may be called again, and must not wait."""
        check_plain(value)
        return await self._calls.run(self._table.update, key, value, topic=topic, expected_version=expected_version)

    async def put(self, key: str, value: T, *, topic: str, expected_version: int | None = None) -> int:
        """As `Table.put`."""
        return await self._calls.run(self._table.put, key, value, topic=topic, expected_version=expected_version)

    async def delete(self, key: str, *, expected_version: int | None = None) -> int:
        """As `Table.delete`."""
        return await self._calls.run(self._table.delete, key, expected_version=expected_version)

    async def get(self, key: str) -> DbObject[T]:
        """As `Table.get`."""
        return await self._calls.run(self._table.get, key)

    async def get_all(self, *, topics: Sequence[str] | None = None) -> list[DbObject[T]]:
        """As `Table.get_all`."""
        return await self._calls.run(self._table.get_all, topics=topics)

    async def mismatches(self, *, topics: Sequence[str] | None = None) -> list[ValueMismatch]:
        """As `Table.mismatches`."""
        return await self._calls.run(self._table.mismatches, topics=topics)


class AsyncTransactionTable(Generic[T]):
    """`TransactionTable` for coroutines, made by `AsyncTransaction.table`.

    `create` and `delete` are plain calls.  `update` and `put` read the object first, so they are coroutines; one that
    is cancelled adds nothing to the transaction.
    """

    def __init__(self, table: TransactionTable[T], calls: BlockingCalls) -> None:
        self._table = table
        self._calls = calls
        self.create = table.create
        self.delete = table.delete

    def __repr__(self) -> str:
        return f"<Async{repr(self._table)[1:]}"

    async def update(
        self, key: str, value: T | Callable[[T], T], *, topic: str | None = None, expected_version: int | None = None
    ) -> None:
        """As `TransactionTable.update`."""
        check_plain(value)
        read = await self._calls.run(self._table.read_for_update, key, value)
        self._table.add_update(key, read, topic=topic, expected_version=expected_version)

    async def put(self, key: str, value: T, *, topic: str) -> None:
        """As `TransactionTable.put`."""
        read = await self._calls.run(self._table.read_for_put, key, value)
        self._table.add_put(key, value, read, topic=topic)


class AsyncTableSubscription(AsyncCloseable, Generic[T]):
    """`TableSubscription` for coroutines, made by `AsyncCachedTable.subscribe`.  Belongs to no event loop."""

    def __init__(self, subscription: AsyncSubscription, table: CachedTable[T]) -> None:
        self.subscription = subscription
        """The same without the class: it has the counters."""
        self._table = table

    def __repr__(self) -> str:
        return f"<AsyncTableSubscription of {self.subscription.blocking!r}>"

    async def changes(self, *, timeout_s: float | None = None) -> AsyncIterator[TableChange[T]]:
        """As `AsyncSubscription.changes`, with instances; an object that does not fit is told as `Mismatched`."""
        async for change in self.subscription.changes(timeout_s=timeout_s):
            yield self._table.typed(change)

    async def close(self) -> None:
        """As `TableSubscription.close`."""
        await self.subscription.close()


class AsyncCachedTable(CacheView[T]):
    """`CachedTable` for coroutines, made by `AsyncLocalCache.table`.  `nb_api.aio.Controller` takes it.

    Reading is a plain call, since it reads memory.  Belongs to no event loop.
    """

    def __init__(self, cache: AsyncLocalCache, table: CachedTable[T]) -> None:
        self._cache = cache
        self._table = table
        self.get = table.get
        self.get_all = table.get_all
        self.mismatches = table.mismatches
        self.adapted = table.adapted

    def __repr__(self) -> str:
        return f"<Async{repr(self._table)[1:]}"

    @property
    def blocking(self) -> CachedTable[T]:
        """The table behind this face, for other threads."""
        return self._table

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def cache(self) -> LocalCache:
        return self._table.cache

    @property
    def only_table(self) -> str:
        return self._table.only_table

    def read(self, found: DbObject) -> DbObject[T]:
        """As `CachedTable.read`."""
        return self._table.read(found)

    async def wait_version(self, key: str, version: int, *, timeout_s: float) -> DbObject[T] | None:
        """As `CachedTable.wait_version`.  Needs no thread while it waits."""
        found = await self._cache.wait_version(self.name, key, version, timeout_s=timeout_s)
        return None if found is None else self.read(found)

    async def index(
        self,
        name: str,
        function: Callable[[DbObject[T]], Any],
        *,
        unique: bool = False,
        multiple: bool = False,
        sorted: bool = False,
    ) -> Index[T]:
        """As `CachedTable.index`; looking something up in it is a plain call.  A thread indexes what is there."""
        make = functools.partial(
            self._table.index, name, function, unique=unique, multiple=multiple, sorted=sorted
        )  # fmt: skip
        return await run_in_new_thread(make, "heliograph-cache-aio")

    async def subscribe(self) -> AsyncTableSubscription[T]:
        """As `AsyncLocalCache.subscribe`, for this table, with instances."""
        return AsyncTableSubscription(await self._cache.subscribe(tables=[self.name]), self._table)
