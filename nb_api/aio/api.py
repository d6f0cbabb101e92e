"""AsyncNbApi: an `NbApi` for coroutines.  A few threads make the calls that wait for the database."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from oslo_config import cfg

from nb_api.aio.tables import AsyncTable, AsyncTransactionTable, check_plain
from nb_api.api import NbApi, NbStatistics
from nb_api.db_api import DbObject
from nb_api.writing.transaction import Transaction
from pubsub_api.core.headers import NO_HEADERS
from pubsub_api.runtime.closing import AsyncCloseable
from pubsub_api.runtime.coroutines import BlockingCalls, run_in_new_thread

T = TypeVar("T")
CALLS_MAX = 8
"""Calls that wait for the database at a time, each in a thread; further ones wait for their turn.  A database shares
one commit among the writers of a moment, so a few are as good as many."""


class AsyncNbApi(AsyncCloseable):
    """`NbApi` for coroutines, with its methods and errors; made by `AsyncNbApi.open`, or around one that is there.

    It belongs to no event loop: coroutines of any loop may use it, one after another or at once.  In a forked child it
    works as an `NbApi` does, on a new loop.

    **Cancelled writes.**  A task that is cancelled while it waits for a write stops waiting at once.  A write that has
    not begun is not made; one that has begun goes on, is made or refused as a whole, and when it is made, it is
    published.  Which of these happened the task does not learn: read the object, as after DbUnavailable.  A program
    that has to know shields the write: ``await asyncio.shield(task)``.
    """

    def __init__(self, nb: NbApi) -> None:
        """Takes it over and closes it."""
        self._nb = nb
        self._calls = BlockingCalls(CALLS_MAX, "heliograph-nb-aio")

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        bus: str | None = None,
        config_files: Iterable[str | os.PathLike[str]] | None = None,
        conf: cfg.ConfigOpts | None = None,
    ) -> Opening:
        """As `NbApi.open`: ``async with NbApi.open(...) as nb``, or ``nb = await NbApi.open(...)`` and close it."""
        return Opening(functools.partial(NbApi.open, url, bus=bus, config_files=config_files, conf=conf))

    @property
    def blocking(self) -> NbApi:
        """The `NbApi` behind this face, for other threads."""
        return self._nb

    # -- writing

    async def create(self, table: str, key: str, value: Any, *, topic: str) -> int:
        """As `NbApi.create`.  Of cancelling, see the class."""
        return await self._calls.run(self._nb.create, table, key, value, topic=topic)

    async def update(
        self,
        table: str,
        key: str,
        value: Any | Callable[[Any], Any],
        *,
        topic: str | None = None,
        expected_version: int | None = None,
    ) -> int:
        """As `NbApi.update`.  A function from the present value to the new one is called in a thread, and is no
        coroutine function: it may be called again, and must not wait.  Of cancelling, see the class."""
        check_plain(value)
        return await self._calls.run(
            self._nb.update, table, key, value, topic=topic, expected_version=expected_version
        )  # fmt: skip

    async def delete(self, table: str, key: str, *, expected_version: int | None = None) -> int:
        """As `NbApi.delete`.  Of cancelling, see the class."""
        return await self._calls.run(self._nb.delete, table, key, expected_version=expected_version)

    async def put(self, table: str, key: str, value: Any, *, topic: str, expected_version: int | None = None) -> int:
        """As `NbApi.put`.  Of cancelling, see the class."""
        return await self._calls.run(self._nb.put, table, key, value, topic=topic, expected_version=expected_version)

    def transaction(self, *, headers: Mapping[str, str] = NO_HEADERS) -> AsyncTransaction:
        """``async with nb.transaction() as txn:`` collects writes by plain calls, and commits them at its end."""
        return AsyncTransaction(self._nb.transaction(headers=headers), self._calls)

    async def allocate(self, name: str) -> int:
        """As `NbApi.allocate`.  A cancelled call may use up a number."""
        return await self._calls.run(self._nb.allocate, name)

    # -- reading

    async def get(self, table: str, key: str) -> DbObject:
        """As `NbApi.get`."""
        return await self._calls.run(self._nb.get, table, key)

    async def get_all(self, table: str, *, topics: Sequence[str] | None = None) -> list[DbObject]:
        """As `NbApi.get_all`."""
        return await self._calls.run(self._nb.get_all, table, topics=topics)

    def table(self, cls: type[T]) -> AsyncTable[T]:
        """As `NbApi.table`: the table that a class is declared for, with instances as values.  Raises UsageError."""
        return AsyncTable(self._nb.table(cls), self._calls)

    # -- the rest

    @property
    def conf(self) -> cfg.ConfigOpts:
        return self._nb.conf

    def statistics(self) -> NbStatistics:
        return self._nb.statistics()

    async def flush(self, *, timeout_s: float) -> None:
        """As `NbApi.flush`.  Waits in a thread of its own, so that no other call waits behind it."""
        await run_in_new_thread(functools.partial(self._nb.flush, timeout_s=timeout_s), "heliograph-aio-flush")

    async def close(self) -> None:
        """As `NbApi.close`.  Calls that have not begun raise Closed.  Goes on when it is cancelled.  Idempotent."""
        await run_in_new_thread(self._close, "heliograph-aio-close")

    def _close(self) -> None:
        self._nb.close()
        self._calls.close()


class AsyncTransaction:
    """`Transaction` for coroutines: its writes are plain calls, since nothing happens before the end of the block.

    A block that is cancelled commits nothing.  When the commit itself is cancelled, it happens as a whole or not at
    all, see `AsyncNbApi`.
    """

    def __init__(self, transaction: Transaction, calls: BlockingCalls) -> None:
        self._transaction = transaction
        self._calls = calls
        self.create = transaction.create
        self.update = transaction.update
        self.put = transaction.put
        self.delete = transaction.delete

    def table(self, cls: type[T]) -> AsyncTransactionTable[T]:
        """As `Transaction.table`.  Its `update` and `put` read the object, and are coroutines.  Raises UsageError."""
        return AsyncTransactionTable(self._transaction.table(cls), self._calls)

    @property
    def versions(self) -> list[int]:
        """As `Transaction.versions`."""
        return self._transaction.versions

    async def __aenter__(self) -> AsyncTransaction:
        self._transaction.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._calls.run(self._transaction.__exit__, None, None, None)
        else:
            self._transaction.__exit__(kind, error, trace)


class Opening:
    """What `AsyncNbApi.open` returns: await it, or enter it by ``async with``, once."""

    def __init__(self, make: Callable[[], NbApi]) -> None:
        self._make = make
        self._made: AsyncNbApi | None = None

    async def _open(self) -> AsyncNbApi:
        return AsyncNbApi(await run_in_new_thread(self._make, "heliograph-aio-open", undo=NbApi.close))

    def __await__(self) -> Generator[Any, None, AsyncNbApi]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncNbApi:
        self._made = await self._open()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.close()
