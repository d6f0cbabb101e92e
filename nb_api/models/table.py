"""Writing and reading a table of the database as instances of its class."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nb_api.core.changes import DbObject, Write
from nb_api.errors import ObjectExists, ObjectNotFound, ValueMismatch
from nb_api.models.conversion import Mismatches, TableModel

if TYPE_CHECKING:
    from nb_api.api import NbApi
    from nb_api.writing.transaction import Transaction

T = TypeVar("T")
R = TypeVar("R")


class Table(Generic[T]):
    """A table with its class, made by `NbApi.table`.  Thread-safe.

    Methods do what those of `NbApi` do, and raise the same errors; ValueMismatch is raised before anything is written.
    `update` and `put` read the object first: fields that the class does not know stay as they are.
    """

    def __init__(self, nb: NbApi, model: TableModel[T], mismatches: Mismatches) -> None:
        self._nb = nb
        self._model = model
        self._mismatches = mismatches

    def __repr__(self) -> str:
        return f"<Table {self.name!r} of {self._model.cls.__name__} in {self._nb!r}>"

    @property
    def name(self) -> str:
        return self._model.table

    # -- writing

    def create(self, key: str, value: T, *, topic: str) -> int:
        """Add an object; returns its version.  Raises ObjectExists, ValueMismatch."""
        return self._nb.create(self.name, key, self.plain(key, value), topic=topic)

    def update(
        self, key: str, value: T | Callable[[T], T], *, topic: str | None = None, expected_version: int | None = None
    ) -> int:
        """Write a new value, or what a function returns for the present one; returns the version of the object.

        The object is read, and written if it still has that version; otherwise both are repeated, as `NbApi.update`
        does with a function.  An object that does not fit can be replaced by a value; a function is not called for it.
        """
        function = functools.partial(self._updated, key, value)
        return self._nb.update(self.name, key, function, topic=topic, expected_version=expected_version)

    def put(self, key: str, value: T, *, topic: str, expected_version: int | None = None) -> int:
        """Create the object, or change its value and topic if it exists; returns its version."""
        while True:
            try:
                return self.update(key, value, topic=topic, expected_version=expected_version)
            except ObjectNotFound:
                if expected_version is not None:
                    raise
            try:
                return self.create(key, value, topic=topic)
            except ObjectExists:
                continue  # another writer has created it meanwhile

    def delete(self, key: str, *, expected_version: int | None = None) -> int:
        """Remove an object, whether it fits or not; returns the version of its tombstone."""
        return self._nb.delete(self.name, key, expected_version=expected_version)

    # -- reading

    def get(self, key: str) -> DbObject[T]:
        """Raises ObjectNotFound, and ValueMismatch, which has the object as it is stored."""
        return self._noting(self._model.read, self._nb.get(self.name, key))

    def get_all(self, *, topics: Sequence[str] | None = None) -> list[DbObject[T]]:
        """The objects of the table that fit, of one revision, ordered by key.  The others are counted and logged."""
        found = self._nb.get_all(self.name, topics=topics)
        return [read for read in read_each(self._model, found, self._mismatches) if isinstance(read, DbObject)]

    def mismatches(self, *, topics: Sequence[str] | None = None) -> list[ValueMismatch]:
        """An error for each object that does not fit, ordered by key.  Reads all objects of the table."""
        found = self._nb.get_all(self.name, topics=topics)
        return [read for read in read_each(self._model, found, self._mismatches) if isinstance(read, ValueMismatch)]

    # -- for transactions

    def plain(self, key: str, value: T) -> Any:
        """The value in the form in which it is stored.  Raises ValueMismatch."""
        return self._noting(self._model.plain, key, value)

    def updated(self, key: str, value: T | Callable[[T], T]) -> tuple[DbObject, Any]:
        """The object as it is stored now, and the value that an update would store.  Raises as `update`."""
        found = self._nb.get(self.name, key)
        return found, self._updated(key, value, found.value)

    def _updated(self, key: str, value: T | Callable[[T], T], stored: Any) -> Any:
        return self._noting(self._model.updated, key, stored, value)

    def _noting(self, function: Callable[..., R], *arguments: Any) -> R:
        try:
            return function(*arguments)
        except ValueMismatch as error:
            self._mismatches.note(error)
            raise


class TransactionTable(Generic[T]):
    """A table within a transaction, made by `Transaction.table`.  Not thread-safe.

    `update` and `put` read the object at once, because fields that the class does not know stay as they are, and expect
    that version at the commit: VersionConflict means that another writer was faster, and the block may be run again.
    """

    def __init__(self, transaction: Transaction, table: Table[T]) -> None:
        self._transaction = transaction
        self._table = table

    def __repr__(self) -> str:
        return f"<TransactionTable {self._table.name!r}>"

    def create(self, key: str, value: T, *, topic: str) -> None:
        """Raises ValueMismatch.  At the commit: ObjectExists."""
        self._transaction.create(self._table.name, key, self._table.plain(key, value), topic=topic)

    def update(
        self, key: str, value: T | Callable[[T], T], *, topic: str | None = None, expected_version: int | None = None
    ) -> None:
        """Raises ObjectNotFound, ValueMismatch.  At the commit: VersionConflict."""
        self.add_update(key, self.read_for_update(key, value), topic=topic, expected_version=expected_version)

    def put(self, key: str, value: T, *, topic: str) -> None:
        """Raises ValueMismatch.  At the commit: VersionConflict, ObjectExists."""
        self.add_put(key, value, self.read_for_put(key, value), topic=topic)

    def delete(self, key: str, *, expected_version: int | None = None) -> None:
        """At the commit: ObjectNotFound, VersionConflict."""
        self._transaction.delete(self._table.name, key, expected_version=expected_version)

    # -- the two steps of update and put: the first blocks for the database, and adds nothing to the transaction

    def read_for_update(self, key: str, value: T | Callable[[T], T]) -> tuple[DbObject, Any]:
        """For `add_update`.  Raises ObjectNotFound, ValueMismatch."""
        return self._table.updated(key, value)

    def read_for_put(self, key: str, value: T) -> tuple[DbObject, Any] | None:
        """For `add_put`.  Raises ValueMismatch."""
        try:
            return self._table.updated(key, value)
        except ObjectNotFound:
            return None

    def add_update(
        self, key: str, read: tuple[DbObject, Any], *, topic: str | None, expected_version: int | None
    ) -> None:
        found, wanted = read
        version = found.version if expected_version is None else expected_version
        self._transaction.update(self._table.name, key, wanted, topic=topic, expected_version=version)

    def add_put(self, key: str, value: T, read: tuple[DbObject, Any] | None, *, topic: str) -> None:
        if read is None:
            self.create(key, value, topic=topic)
        else:
            found, wanted = read
            self._transaction.put(self._table.name, key, wanted, topic=topic, expected_version=found.version)


class DeclaredTables:
    """The classes that an `NbApi` knows: writes to their tables are checked."""

    def __init__(self) -> None:
        self.mismatches = Mismatches()
        self._models: dict[type, TableModel[Any]] = {}
        self._by_table: dict[str, tuple[TableModel[Any], ...]] = {}

    def model(self, cls: type[T]) -> TableModel[T]:
        """Add a class, if it is new.  Raises UsageError."""
        known = self._models.get(cls)
        if known is None:
            known = self._models[cls] = TableModel(cls)
            self._by_table[known.table] = (*self._by_table.get(known.table, ()), known)
        return known

    def __bool__(self) -> bool:
        return bool(self._by_table)

    def check(self, writes: Iterable[Write]) -> None:
        """Raises ValueMismatch for the first write that does not fit a class of its table."""
        for write in writes:
            if write.action != "delete":
                for model in self._by_table.get(write.table, ()):
                    try:
                        model.check(write.key, write.value)
                    except ValueMismatch as error:
                        self.mismatches.note(error)
                        raise


def read_each(
    model: TableModel[T], objects: Iterable[DbObject], mismatches: Mismatches
) -> Iterator[DbObject[T] | ValueMismatch]:
    """Each object with an instance as its value, or the error for it."""
    for found in objects:
        try:
            yield model.read(found)
        except ValueMismatch as error:
            mismatches.note(error)
            yield error
