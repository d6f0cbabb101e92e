"""A writer, its database and the copies of controllers, for tests of local caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from nb_api import CacheChange, Created, Deleted, LocalCache, NbApi, Resynced, Updated
from tests.helpers.nb_tools import open_nb
from tests.helpers.waiting import wait_until

WAIT_S = 60.0


@dataclasses.dataclass
class World:
    """A writer and its database; makes caches and closes them."""

    bus: str | None
    url: str
    nb: NbApi
    db: dict[str, Any] = dataclasses.field(default_factory=dict)
    caches: list[LocalCache] = dataclasses.field(default_factory=list)
    others: list[NbApi] = dataclasses.field(default_factory=list)

    def open(self, **settings: Any) -> NbApi:
        self.others.append(open_nb(self.url, self.bus, db=self.db, **settings))
        return self.others[-1]

    def cache(self, *, is_awaited: bool = True, options: dict[str, Any] | None = None, **arguments: Any) -> LocalCache:
        """A cache of a controller of its own."""
        cache = LocalCache(self.open(cache=options), **arguments)
        self.caches.append(cache)
        if is_awaited:
            cache.wait_synced(timeout_s=WAIT_S)
        return cache

    def close(self) -> None:
        for closable in (*self.caches, *self.others, self.nb):
            closable.close()

    def wait_equal(self, cache: LocalCache, *tables: str, topics: Sequence[str] | None = None) -> None:
        for table in tables or ("port",):
            wait_until(
                lambda table=table: cache.get_all(table) == self.nb.get_all(table, topics=topics),  # type: ignore[misc]
                WAIT_S, f"the cache to equal the database in {table}",
            )  # fmt: skip


class Told:
    """What a cache told, through its callback."""

    def __init__(self) -> None:
        self.changes: list[CacheChange] = []

    def __call__(self, changes: Sequence[CacheChange]) -> None:
        self.changes += changes

    def kinds(self, kind: type | tuple[type, ...] = (Created, Updated, Deleted)) -> list[str]:
        return [f"{type(c).__name__} {c.object.key}" for c in list(self.changes) if isinstance(c, kind)]  # type: ignore[union-attr]

    def resyncs(self) -> list[Resynced]:
        return [change for change in list(self.changes) if isinstance(change, Resynced)]
