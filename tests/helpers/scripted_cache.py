"""A local cache that does what a test says, when it says so: complete or not, overrun, closed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nb_api import CacheChange, Created, DbObject, Deleted, Resynced, Updated
from nb_api.core.copy.differences import CachedObject, pack
from nb_api.errors import ObjectNotFound
from nb_api.models.cached_table import WholeCache
from pubsub_api.errors import Closed


class ScriptedCache(WholeCache):
    """As much of `LocalCache` as a controller uses."""

    def __init__(self, *, is_synced: bool = True, followed: Sequence[str] | None = None) -> None:
        self.followed = followed
        self.is_closed = False
        self.is_synced = is_synced
        self.objects: dict[tuple[str, str], CachedObject] = {}
        self._changes: queue.SimpleQueue[CacheChange] = queue.SimpleQueue()
        self._told = threading.Condition()
        self._version = 0

    def put(self, table: str, key: str, value: Any = None, *, is_told: bool = True) -> None:
        self._version += 1
        entry = CachedObject(self._version, "topic", pack(value))
        before = self.objects.get((table, key))
        self.objects[table, key] = entry
        if is_told:
            self.tell(Created(table, key, entry) if before is None else Updated(table, key, entry, before))

    def delete(self, table: str, key: str, *, is_told: bool = True) -> None:
        self._version += 1
        entry = self.objects.pop((table, key))
        if is_told:
            self.tell(Deleted(table, key, entry, self._version))

    def tell(self, change: CacheChange) -> None:
        with self._told:
            self._changes.put(change)
            self._told.notify_all()

    def overrun(self) -> None:
        self.tell(Resynced("overrun", "a test", self._version))

    # -- what a controller calls

    @property
    def tables(self) -> list[str]:
        return sorted({table for table, _ in self.objects})

    topics: Sequence[str] = ("#",)

    def is_followed(self, table: str) -> bool:
        return self.followed is None or table in self.followed

    def check_usable(self) -> None:
        """A controller may begin, and finds out by itself that the cache is closed."""

    def get(self, table: str, key: str) -> DbObject:
        if self.is_closed:
            raise Closed("closed")
        try:
            return self.objects[table, key].named(table, key)
        except KeyError:
            raise ObjectNotFound(key) from None

    def get_all(self, table: str) -> list[DbObject]:
        return [entry.named(table, key) for (found, key), entry in sorted(self.objects.items()) if found == table]

    def subscribe(self, *, tables: Iterable[str] | None) -> ScriptedCache:
        """Itself, for one consumer: what was put before was told, too."""
        return self

    def changes(self, *, timeout_s: float) -> Iterator[CacheChange]:
        while not self.is_closed:
            try:
                yield self._changes.get(timeout=timeout_s) if timeout_s else self._changes.get_nowait()
            except queue.Empty:
                return

    def wait(self, *, timeout_s: float) -> bool:
        with self._told:
            self._told.wait_for(lambda: self.untold or self.is_closed, timeout_s)
            return self.untold > 0

    @property
    def untold(self) -> int:
        return self._changes.qsize()

    def wait_told(self, *, timeout_s: float) -> None:
        """Everything is told at once."""

    def close(self) -> None:
        """Of the subscription, which is the cache itself."""
