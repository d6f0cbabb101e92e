"""Indexes of a local cache: the objects of a table by what a function makes of them.  Does no I/O.

Theory of operation
-------------------
An index function is called once for each version of an object that is held, never for one that was held before: the
values that it gave are kept with the object, and taken away by these.  So a function whose answer changes with time
leaves no traces, and most updates, which change no indexed field, cost a comparison.

A function that raises, or whose value cannot be a key of a dict or has no place in the order, does no harm to anything
but itself: the object is in the copy and in the other indexes.  It is tried again with the next version of the object.

Values are of types of the program, which may compare and hash as they like, and change.  So taking an object out may
find that the index does not fit together any more.  Then it is built again of the values that are known: the copy has
changed, and that has to be told in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any

from nb_api.core.changes import DbObject
from nb_api.core.copy.differences import CachedObject
from nb_api.core.copy.sorted_values import SortedValues

IndexFunction = Callable[[DbObject], Any]
Placed = Any
"""Where an object stands in one index: under a value, under those of a tuple when it has several, or nowhere (None)."""


class IndexData:
    """One index.  Not thread-safe: the owner serialises what changes the copy, and reading."""

    __slots__ = (
        "_on_error", "conflicts", "errors", "failed", "function", "holders", "is_multiple", "is_unique", "name",
        "order", "table",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        table: str,
        function: IndexFunction,
        *,
        is_unique: bool,
        is_multiple: bool,
        is_sorted: bool,
        on_error: Callable[[IndexData, str, BaseException], None],
    ) -> None:
        """``on_error`` is told what an object is not in the index for, with its key.  It may raise while the index is
        built, and never later."""
        self.name = name
        self.table = table
        self.function = function
        self.is_unique = is_unique
        self.is_multiple = is_multiple
        self.holders: dict[Hashable, str | set[str]] = {}
        """Value -> the key of the only object that has it, or the keys of several."""
        self.order = SortedValues() if is_sorted else None
        self.failed: set[str] = set()
        """Objects that are not in the index because the function raised, or its value has no place there."""
        self.errors = 0
        self.conflicts = 0
        """How often an object got a value of a unique index that another object had."""
        self._on_error = on_error

    def keys(self, value: Hashable) -> Iterable[str]:
        """Of the objects with this value, in no order."""
        found = self.holders.get(value, ())
        return (found,) if isinstance(found, str) else found

    def place(self, key: str, before: Placed, entry: CachedObject) -> Placed:
        """Put an object where it belongs now.  Returns where that is.  Raises nothing but what ``on_error`` raises."""
        try:
            after = self._values_of(entry.named(self.table, key))
            if before is not None:
                if before == after:
                    return before
                self.take_out(key, before)
                before = None
            return self._put_in(key, after)
        except BaseException as error:  # noqa: BLE001  of a function of the program: nothing of it may stop the copy
            self.take_out(key, before)
            self._failed(key, error)
            return None

    def _values_of(self, found: DbObject) -> Placed:
        value = self.function(found)
        if value is None:
            return None
        if self.is_multiple:
            if isinstance(value, str | bytes):
                raise TypeError("the function of an index with multiple values gives several values, not one text")
            values = tuple(dict.fromkeys(value))
            return values or None
        if isinstance(value, list | set | dict):
            raise TypeError(
                f"a {type(value).__name__} is no value of an index; with multiple=True each of its elements is"
            )
        hash(value)
        return value

    def _put_in(self, key: str, after: Placed) -> Placed:
        if self.failed:
            self.failed.discard(key)
        if after is None:
            return None
        done: list[Hashable] = []
        try:
            for value in after if self.is_multiple else (after,):
                self._hold(key, value)
                done.append(value)
        except BaseException:
            self._release(key, done)
            raise
        return after

    def _hold(self, key: str, value: Hashable) -> None:
        """Raises TypeError when a sorted index cannot compare the value."""
        holders = self.holders
        held = holders.get(value)
        if held is None:
            if self.order is not None:
                self.order.add(value)
            holders[value] = key
            return
        if isinstance(held, str):
            holders[value] = {held, key}
        else:
            held.add(key)
        if self.is_unique:
            self.conflicts += 1

    def take_out(self, key: str, before: Placed) -> None:
        """An object is not where it was.  Never raises."""
        if self.failed:
            self.failed.discard(key)
        if before is not None:
            self._release(key, before if self.is_multiple else (before,))

    def _release(self, key: str, values: Iterable[Hashable]) -> None:
        """Never raises."""
        try:
            for value in values:
                self._release_one(key, value)
        except BaseException as error:  # noqa: BLE001  of a type of the program, which has changed since
            self._build_without(key)
            self.errors += 1
            self._on_error(self, key, error)

    def _release_one(self, key: str, value: Hashable) -> None:
        """Nothing is left of a value that no object has any more."""
        held = self.holders[value]
        if isinstance(held, str):
            if held != key:
                raise LookupError(f"{value!r} has become the value of another object")
            del self.holders[value]
            if self.order is not None:
                self.order.remove(value)
        else:
            held.remove(key)
            if len(held) == 1:
                (self.holders[value],) = held

    def _build_without(self, key: str) -> None:
        """Build the index again of the values that the other objects had."""
        holders, conflicts = self.holders, self.conflicts
        self.holders = {}
        if self.order is not None:
            self.order = SortedValues()
        for value, held in holders.items():
            for other in (held,) if isinstance(held, str) else held:
                if other == key:
                    continue
                try:
                    self._hold(other, value)
                except BaseException as error:  # noqa: BLE001  as above
                    self._failed(other, error)
        self.conflicts = conflicts

    def purge(self, key: str) -> None:
        """Take an object out, wherever it stands: looks at all values."""
        self.failed.discard(key)
        self._release(key, [value for value, held in self.holders.items() if held == key or key in _several(held)])

    def _failed(self, key: str, error: BaseException) -> None:
        self.errors += 1
        self.failed.add(key)
        self._on_error(self, key, error)


def _several(held: str | set[str]) -> Collection[str]:
    return () if isinstance(held, str) else held


class TableIndexes:
    """All indexes of a table.  Not thread-safe."""

    __slots__ = ("_indexes",)

    def __init__(self) -> None:
        self._indexes: tuple[IndexData, ...] = ()

    def __iter__(self) -> Iterator[IndexData]:
        return iter(self._indexes)

    def __len__(self) -> int:
        return len(self._indexes)

    def add(self, index: IndexData, entries: dict[str, CachedObject]) -> None:
        """Build an index of what is held.  Nothing was added when its ``on_error`` raises."""
        found = [(entry, index.place(key, None, entry)) for key, entry in entries.items()]
        for entry, one in found:
            entry.index_values += (one,)
        self._indexes += (index,)

    def put(self, key: str, held: CachedObject | None, entry: CachedObject) -> None:
        """``entry`` is held instead of ``held``, or is new."""
        if held is None:
            entry.index_values = tuple([index.place(key, None, entry) for index in self._indexes])
            return
        before = held.index_values
        entry.index_values = tuple(
            [index.place(key, one, entry) for index, one in zip(self._indexes, before, strict=True)]
        )

    def remove(self, key: str, held: CachedObject) -> None:
        """An object is held no longer."""
        for index, before in zip(self._indexes, held.index_values, strict=True):
            index.take_out(key, before)

    def purge(self, key: str) -> None:
        """Take an object out of every index when it is not known where it stands: looks at all values of them."""
        for index in self._indexes:
            index.purge(key)
