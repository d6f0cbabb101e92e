"""Reading a table of a local cache as instances of its class."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from nb_api.cache.view import CacheView
from nb_api.core.changes import DbObject, V_co
from nb_api.core.copy.differences import CacheChange, Created, Deleted, Resynced, Updated
from nb_api.errors import ValueMismatch
from nb_api.models.conversion import Mismatches, TableModel
from nb_api.models.table import read_each
from pubsub_api.errors import UsageError
from pubsub_api.runtime.closing import Closeable

if TYPE_CHECKING:
    from nb_api.cache.index import Index
    from nb_api.cache.local_cache import LocalCache
    from nb_api.cache.telling.subscriptions import Subscription

T = TypeVar("T")
R = TypeVar("R")


class Mismatched(msgspec.Struct, frozen=True):
    """An object is new, or has a newer version, and does not fit the class of its table.  ``error.object`` is the
    object as it is stored."""

    table: str
    key: str
    version: int
    error: ValueMismatch


class _TypedCreated(Created[V_co], frozen=True, gc=True):
    _read: DbObject[V_co]

    @property
    def object(self) -> DbObject[V_co]:
        return self._read


class _TypedUpdated(Updated[V_co], frozen=True, gc=True):
    _read: DbObject[V_co]
    _reader: Callable[[DbObject], DbObject[V_co]]

    @property
    def object(self) -> DbObject[V_co]:
        return self._read

    @property
    def before(self) -> DbObject[V_co]:
        """Raises ValueMismatch when the former version did not fit."""
        return self._reader(self._entry_before.named(self.table, self.key))


class _TypedDeleted(Deleted[V_co], frozen=True, gc=True, kw_only=True):
    _reader: Callable[[DbObject], DbObject[V_co]]

    @property
    def object(self) -> DbObject[V_co]:
        """The last version.  Raises ValueMismatch when it did not fit."""
        return self._reader(self._entry.named(self.table, self.key))


TableChange = Created[T] | Updated[T] | Deleted[T] | Resynced | Mismatched


class TableSubscription(Closeable, Generic[T]):
    """One consumer of a `CachedTable`.  Thread-safe."""

    def __init__(self, subscription: Subscription, typed: Callable[[CacheChange], TableChange[T]]) -> None:
        self.subscription = subscription
        """The subscription to the cache, which has the counters."""
        self._typed = typed
        self._is_closed = False

    def _about(self) -> str:
        return f"of {self.subscription!r}"

    def changes(self, *, timeout_s: float | None = None) -> Iterator[TableChange[T]]:
        """As `Subscription.changes`, with instances; for an object that does not fit it yields `Mismatched`."""
        return map(self._typed, self.subscription.changes(timeout_s=timeout_s))

    def close(self) -> None:
        """As `Subscription.close`.  Idempotent."""
        self._is_closed = True
        self.subscription.close()


class CachedTable(CacheView[T]):
    """A table of a `LocalCache` with its class, made by `LocalCache.table`.  Thread-safe.

    Methods do what those of the cache do, and raise the same errors.  An object that does not fit is in the copy as it
    is stored.  It is counted in ``mismatches`` of the statistics, each version once, and logged at most once a minute.
    """

    def __init__(self, cache: LocalCache, model: TableModel[T], mismatches: Mismatches) -> None:
        self._cache = cache
        self._model = model
        self._mismatches = mismatches

    def __repr__(self) -> str:
        return f"<CachedTable {self.name!r} of {self._model.cls.__name__} in {self._cache!r}>"

    @property
    def name(self) -> str:
        return self._model.table

    @property
    def cache(self) -> LocalCache:
        return self._cache

    @property
    def only_table(self) -> str:
        return self._model.table

    def read(self, found: DbObject) -> DbObject[T]:
        """The same object of the table with an instance as its value.  Raises ValueMismatch."""
        try:
            return self._model.read(found)
        except ValueMismatch as error:
            self._mismatches.note(error)
            raise

    def get(self, key: str) -> DbObject[T]:
        """Raises ObjectNotFound, and ValueMismatch, which has the object as it is stored."""
        return self.read(self._cache.get(self.name, key))

    def get_all(self, *, topics: Sequence[str] | None = None) -> list[DbObject[T]]:
        """The objects that fit, ordered by key."""
        found = self._cache.get_all(self.name, topics=topics)
        return [read for read in read_each(self._model, found, self._mismatches) if isinstance(read, DbObject)]

    def mismatches(self) -> list[ValueMismatch]:
        """An error for each object that does not fit now, ordered by key.  Looks at all objects of the table."""
        found = self._cache.get_all(self.name)
        return [read for read in read_each(self._model, found, self._mismatches) if isinstance(read, ValueMismatch)]

    def wait_version(self, key: str, version: int, *, timeout_s: float) -> DbObject[T] | None:
        """As `LocalCache.wait_version`."""
        found = self._cache.wait_version(self.name, key, version, timeout_s=timeout_s)
        return None if found is None else self.read(found)

    def adapted(self, function: Callable[[DbObject[T]], R]) -> Callable[[DbObject], R]:
        """The function for objects as they are stored, such as ``owners`` of a controller need.  It raises
        ValueMismatch for an object that does not fit."""
        return lambda found: function(self.read(found))

    def index(
        self,
        name: str,
        function: Callable[[DbObject[T]], Any],
        *,
        unique: bool = False,
        multiple: bool = False,
        sorted: bool = False,
    ) -> Index[T]:
        """As `LocalCache.index`.  Objects that do not fit are not in it; `Index.failed` names them."""
        plain = self._cache.index(
            name, self.adapted(function), table=self.name, unique=unique, multiple=multiple, sorted=sorted
        )
        return plain.read_by(self.read)

    def subscribe(self, on_changes: Callable[[Sequence[TableChange[T]]], None] | None = None) -> TableSubscription[T]:
        """As `LocalCache.subscribe`, for this table, with instances.  Each consumer gets an instance of its own."""
        callback = None if on_changes is None else functools.partial(self._call, on_changes)
        return TableSubscription(self._cache.subscribe(callback, tables=[self.name]), self.typed)

    def _call(self, on_changes: Callable[[Sequence[TableChange[T]]], None], changes: Sequence[CacheChange]) -> None:
        on_changes(list(map(self.typed, changes)))

    def typed(self, change: CacheChange) -> TableChange[T]:
        """A change of this table with instances."""
        if isinstance(change, Resynced):
            return change
        if isinstance(change, Deleted):
            return _TypedDeleted(
                change.table, change.key, change._entry, change.version, change.reason, change.moved_to,
                _reader=self.read,
            )  # fmt: skip
        try:
            read = self.read(change.object)
        except ValueMismatch as error:
            return Mismatched(change.table, change.key, change.version, error)
        if isinstance(change, Created):
            return _TypedCreated(change.table, change.key, change._entry, read)
        return _TypedUpdated(change.table, change.key, change._entry, change._entry_before, read, self.read)


class WholeCache(CacheView[Any]):
    """Base of `LocalCache`: the methods of a `CacheView` of all tables, and those that need the classes of tables."""

    @property
    def cache(self) -> LocalCache:
        return cast("LocalCache", self)

    @property
    def only_table(self) -> None:
        return None

    def read(self, found: DbObject) -> DbObject:
        return found

    def _about(self) -> str:
        return f"of {', '.join(self.cache.tables) or 'no objects yet'}"

    def table(self, cls: type[T]) -> CachedTable[T]:
        """The table of this copy to which the class is bound.  Its values are read as instances of the class.

        Raises UsageError for a class that is bound to no table, and for a table that the cache does not follow.
        """
        model = TableModel(cls)
        if not self.cache.is_followed(model.table):
            raise UsageError(f"table {model.table!r} of {cls.__name__} is not followed by this cache")
        return CachedTable(self.cache, model, self._mismatches)

    @functools.cached_property
    def _mismatches(self) -> Mismatches:
        return Mismatches()
