"""Database change notifications: objects with versions in a database, and caches that follow them.

    from nb_api import LocalCache, NbApi

    nb = NbApi.open("sqlite:///tmp/objects.db", bus="zmq://127.0.0.1:8866")
    nb.create("port", "p1", {"up": False}, topic="tenant-7")
    with LocalCache(nb, tables=["port"], topics=["tenant-7/#"]) as cache:
        cache.wait_synced(timeout_s=10)
        for change in cache.changes():
            ...

`nb_api.aio` has the same names for coroutines.  The contract of a database driver is in `nb_api.db_api`, errors are in
`nb_api.errors`.
"""

from nb_api.api import NbApi, NbStatistics
from nb_api.cache.index import Index
from nb_api.cache.local_cache import LocalCache
from nb_api.cache.statistics import LocalCacheStatistics
from nb_api.cache.telling.subscriptions import Subscription
from nb_api.controller.controller import Controller
from nb_api.controller.core.keys import Key, RequeueAfter, RetryPauses
from nb_api.controller.request import Request
from nb_api.controller.statistics import ControllerStatistics
from nb_api.core.copy.differences import CacheChange, Created, Deleted, Resynced, Updated
from nb_api.db_api import Change, DbApi, DbObject, Write
from nb_api.verifying.verification import ObjectDifference, Verification
from nb_api.writing.transaction import Transaction

__all__ = [
    "CacheChange",
    "Change",
    "Controller",
    "ControllerStatistics",
    "Created",
    "DbApi",
    "DbObject",
    "Deleted",
    "Index",
    "Key",
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
    "Transaction",
    "Updated",
    "Verification",
    "Write",
]
