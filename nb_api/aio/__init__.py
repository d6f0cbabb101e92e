"""`nb_api` for coroutines: the same names, the same errors, the same work in the same threads.

    from nb_api.aio import LocalCache, NbApi

    async with NbApi.open("sqlite:///tmp/objects.db", bus="zmq://127.0.0.1:8866") as nb:
        await nb.create("port", "p1", {"up": False}, topic="tenant-7")
        async with LocalCache(nb, tables=["port"], topics=["tenant-7/#"]) as cache:
            await cache.wait_synced(timeout_s=10)
            async for change in cache.changes():
                ...

What waits for the database is a coroutine, and a few threads make the calls.  What reads memory is a plain call.
"""

from nb_api import (
    CacheChange,
    Change,
    ControllerStatistics,
    Created,
    DbObject,
    Deleted,
    Index,
    Key,
    LocalCacheStatistics,
    NbStatistics,
    ObjectDifference,
    RequeueAfter,
    Resynced,
    RetryPauses,
    Updated,
    Verification,
)
from nb_api.aio.api import AsyncNbApi as NbApi
from nb_api.aio.api import AsyncTransaction as Transaction
from nb_api.aio.cache import AsyncLocalCache as LocalCache
from nb_api.aio.cache import AsyncSubscription as Subscription
from nb_api.aio.controller import AsyncController as Controller
from nb_api.aio.controller import AsyncRequest as Request
from nb_api.aio.election import AsyncElection as Election
from nb_api.aio.key_shards import AsyncKeyShards as KeyShards
from nb_api.aio.tables import AsyncCachedTable as CachedTable
from nb_api.aio.tables import AsyncTable as Table
from nb_api.aio.tables import AsyncTableSubscription as TableSubscription
from nb_api.aio.tables import AsyncTransactionTable as TransactionTable

__all__ = [
    "CacheChange",
    "CachedTable",
    "Change",
    "Controller",
    "ControllerStatistics",
    "Created",
    "DbObject",
    "Deleted",
    "Election",
    "Index",
    "Key",
    "KeyShards",
    "LocalCache",
    "LocalCacheStatistics",
    "NbApi",
    "NbStatistics",
    "ObjectDifference",
    "Request",
    "RequeueAfter",
    "Resynced",
    "RetryPauses",
    "Subscription",
    "Table",
    "TableSubscription",
    "Transaction",
    "TransactionTable",
    "Updated",
    "Verification",
]
