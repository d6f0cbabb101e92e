"""Looking objects of a local cache up by other things than their keys."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from nb_api.cache.telling.turn import Turn
from nb_api.core.changes import DbObject, V_co
from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import CachedObject, Difference
from nb_api.core.copy.indexes import IndexData, IndexFunction
from pubsub_api import Event
from pubsub_api.errors import UsageError
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class IndexStatistics:
    """All indexes together."""

    errors: int
    """How often the function of an index failed; the object is then not in that index."""
    conflicts: int
    """How often an object got a value of a unique index that another one had."""


class Index(Generic[V_co]):
    """The objects of a table by what a function makes of them; made by `LocalCache.index`.

    Every method may be called from any thread, and from callbacks.  An index changes together with the copy: it never
    names an object that the copy does not hold, and what it gives is of one moment.  A look-up waits only while a batch
    of changes is being applied, never for a callback or the database.  Raises Closed with a closed cache, and Forked
    in a forked child, as the cache does.
    """

    def __init__(
        self,
        data: IndexData,
        core: CacheCore,
        moment: Turn,
        check: Callable[[], None],
        read: Callable[[DbObject], DbObject[V_co]] | None = None,
    ) -> None:
        """``check`` raises when the cache cannot be read any more.  ``read`` makes of an object what is given out."""
        self._data = data
        self._core = core
        self._moment = moment
        self._check = check
        self._read = read

    def read_by(self, read: Callable[[DbObject], DbObject[T]]) -> Index[T]:
        """This index, with what a function makes of the objects that are found."""
        return Index(self._data, self._core, self._moment, self._check, read)

    def __repr__(self) -> str:
        return f"<Index {self.name!r} of {self.table!r}: {len(self._data.holders)} values>"

    def __len__(self) -> int:
        """How many different values there are."""
        self._check()
        return len(self._data.holders)

    @property
    def name(self) -> str:
        return self._data.name

    @property
    def table(self) -> str:
        return self._data.table

    @property
    def failed(self) -> list[str]:
        """Keys of the objects that are not in the index because the function raised, or gave what cannot be a key, or
        has no place in the order.

        Each is tried again with the next version of the object.
        """
        self._check()
        with self._moment:
            return sorted(self._data.failed)

    def get(self, value: Hashable) -> list[DbObject[V_co]]:
        """The objects with this value, by key."""
        self._check()
        with self._moment:
            found = self._core.entries(self.table, sorted(self._data.keys(value)))
        return self._named(found)

    def one(self, value: Hashable) -> DbObject[V_co] | None:
        """The object of a unique index with this value, None when there is none.

        While several have it, because changes of different writers overtake each other, it is the newest of them.
        Raises UsageError when the index is not unique.
        """
        data = self._data
        if not data.is_unique:
            raise UsageError(f"index {self.name!r} is not unique: use get, or make it with unique=True")
        self._check()
        with self._moment:
            held = data.holders.get(value)
            if held is None:
                return None
            found = self._core.entries(data.table, (held,) if isinstance(held, str) else held)
        key, entry = found[0] if len(found) == 1 else max(found, key=_version_of)
        named: DbObject[V_co] = entry.named(data.table, key)
        return named if self._read is None else self._read(named)

    def keys(self, value: Hashable) -> list[str]:
        """Keys of the objects with this value, sorted."""
        self._check()
        with self._moment:
            return sorted(self._data.keys(value))

    def values(self) -> list[Any]:
        """All values that objects have; sorted when the index is."""
        self._check()
        with self._moment:
            return list(self._data.holders if self._data.order is None else self._data.order.between(None, None))

    def range(self, low: Any = None, high: Any = None) -> list[DbObject[V_co]]:
        """The objects with a value from ``low`` on and below ``high``, by value and key; None: without that bound.

        Raises UsageError when the index is not sorted, TypeError when a bound cannot be compared with its values.
        """
        data = self._data
        self._check()
        with self._moment:
            if data.order is None:
                raise UsageError(f"index {self.name!r} is not sorted: make it with sorted=True")
            keys = [key for value in data.order.between(low, high) for key in sorted(data.keys(value))]
            found = self._core.entries(self.table, keys)
        return self._named(found)

    def _named(self, found: list[tuple[str, CachedObject]]) -> list[DbObject[V_co]]:
        """Outside of the moment: copies take the longest."""
        objects: list[DbObject[V_co]] = [entry.named(self.table, key) for key, entry in found]
        return objects if self._read is None else [self._read(one) for one in objects]


class CacheIndexes:
    """The indexes of a cache, by name."""

    def __init__(self, core: CacheCore, tables: Sequence[str] | None, check: Callable[[], None]) -> None:
        """``check`` raises when the cache cannot be used any more."""
        self.moment = Turn(check)
        """Held while the copy changes, indexes included, and while an index is read.  Short, and no callback runs
        meanwhile but index functions, which may read the cache."""
        self._core = core
        self._tables = tables
        self._check = check
        self._indexes: dict[str, Index] = {}
        self._data: list[IndexData] = []
        self._log = RateLimitedLog(LOG, level=logging.ERROR)

    def get(self, name: str) -> Index:
        """Raises UsageError."""
        try:
            return self._indexes[name]
        except KeyError:
            raise UsageError(f"there is no index {name!r}; there are {sorted(self._indexes)}") from None

    def add(
        self, name: str, table: str | None, function: IndexFunction, *, unique: bool, multiple: bool, is_sorted: bool
    ) -> Index:
        """Called in turn.  ``table`` may be None when there is one.  Raises UsageError."""
        self.check_not_indexing()
        if table is None:
            if self._tables is None or len(self._tables) != 1:
                raise UsageError(f"say which table index {name!r} is of: the cache has not exactly one")
            (table,) = self._tables
        self._core.check_followed([table])
        if not callable(function):
            raise UsageError(f"index {name!r} is made of a function, not of {function!r}")
        with self.moment:
            if name in self._indexes:
                raise UsageError(f"there is an index {name!r} already, of table {self._indexes[name].table!r}")
            data = IndexData(
                name, table, function, is_unique=unique, is_multiple=multiple, is_sorted=is_sorted,
                on_error=self._on_error,
            )  # fmt: skip
            self._core.add_index(data)
            self._data.append(data)
            self._indexes[name] = Index(data, self._core, self.moment, self._check)
            return self._indexes[name]

    def apply(self, events: Sequence[Event]) -> list[Difference]:
        """Have the copy take in live events, and its indexes if there are any.  Called in turn, as `add` is."""
        if not self._data:
            return self._core.apply(events)
        with self.moment:
            return self._core.apply(events)

    def _on_error(self, index: IndexData, key: str, error: BaseException) -> None:
        self._log("LocalCache: the function of index %r failed for %s %r, which is not in the index: %r",
                  index.name, index.table, key, error)  # fmt: skip
        if isinstance(error, Exception) or index.name in self._indexes:
            return  # once it is built: the copy has changed, and that is told before anything else happens
        if threading.current_thread() is threading.main_thread():
            raise error  # the user's own thread, in which such an exception means more than that it was raised

    def check_not_indexing(self) -> None:
        """Raises UsageError in an index function: the copy is being changed, and nothing else may change with it."""
        if self.moment.is_mine:
            raise UsageError("an index function reads the cache and does not change it")

    def statistics(self) -> IndexStatistics:
        return IndexStatistics(
            errors=sum(data.errors for data in self._data), conflicts=sum(data.conflicts for data in self._data)
        )


def _version_of(found: tuple[str, CachedObject]) -> int:
    return found[1].version
