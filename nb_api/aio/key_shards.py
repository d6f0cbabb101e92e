"""AsyncKeyShards: `KeyShards` for coroutines."""

from __future__ import annotations

import functools

from nb_api.aio.api import AsyncNbApi
from nb_api.coordination.key_shards import KeyShards, KeyShardsStatistics
from pubsub_api.runtime.closing import AsyncCloseable
from pubsub_api.runtime.coroutines import run_in_new_thread


class AsyncKeyShards(AsyncCloseable):
    """`KeyShards` for coroutines: it takes part from ``async with`` on, or from `start` to `close`.

    Belongs to no event loop.  One inherited by a forked child holds nothing.
    """

    def __init__(self, nb: AsyncNbApi, name: str, *, count: int, holder: str, lease_s: float | None = None) -> None:
        """As `KeyShards`."""
        self._shards = KeyShards(nb.blocking.db, name, count=count, holder=holder, lease_s=lease_s)
        self.shard_of = self._shards.shard_of
        self.token = self._shards.token
        self.tokens = self._shards.tokens

    @property
    def blocking(self) -> KeyShards:
        """The key shards behind this face."""
        return self._shards

    def start(self) -> AsyncKeyShards:
        """As `KeyShards.start`: take part; does not wait."""
        self._shards.start()
        return self

    def statistics(self) -> KeyShardsStatistics:
        return self._shards.statistics()

    async def close(self, *, timeout_s: float = 5.0) -> None:
        """As `KeyShards.close`.  Goes on when it is cancelled.  Idempotent."""
        await run_in_new_thread(functools.partial(self._shards.close, timeout_s=timeout_s), "heliograph-shards-aio")

    async def __aenter__(self) -> AsyncKeyShards:
        return self.start()
