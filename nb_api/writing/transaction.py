"""Several writes, one commit, one batch of notifications."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from nb_api.db_api import Write
from nb_api.models.table import Table, TransactionTable
from pubsub_api.errors import UsageError

T = TypeVar("T")


class Transaction:
    """Collects writes and commits them when its ``with`` block ends without an exception; made by `NbApi.transaction`.

    Nothing is read and nothing is written before that, so a conflict shows at the end of the block: the error names the
    write by its ``position``, and nothing was changed.  A write is done as it is given, also when it changes nothing,
    except for a `put`.  An object may be written once.  Not for several threads.
    """

    def __init__(
        self, commit: Callable[[Sequence[Write]], list[int]], table_of: Callable[[type[Any]], Table[Any]]
    ) -> None:
        """``table_of`` gives the table of the database for a class."""
        self._commit = commit
        self._table_of = table_of
        self._writes: list[Write] = []
        self._versions: list[int] | None = None
        self._is_over = False

    def create(self, table: str, key: str, value: Any, *, topic: str) -> None:
        """Add an object.  At the end: ObjectExists."""
        self._add(Write("create", table, key, value, topic))

    def update(
        self, table: str, key: str, value: Any, *, topic: str | None = None, expected_version: int | None = None
    ) -> None:
        """Replace a value; ``topic`` None keeps the topic.  At the end: ObjectNotFound, VersionConflict."""
        self._add(Write("set", table, key, value, topic, expected_version))

    def put(self, table: str, key: str, value: Any, *, topic: str, expected_version: int | None = None) -> None:
        """Create or replace an object; one that is so already keeps its version, and is not published.  At the end:
        ObjectNotFound and VersionConflict, when a version is expected."""
        self._add(Write("put", table, key, value, topic, expected_version))

    def delete(self, table: str, key: str, *, expected_version: int | None = None) -> None:
        """Remove an object.  At the end: ObjectNotFound, VersionConflict."""
        self._add(Write("delete", table, key, expected_version=expected_version))

    def table(self, cls: type[T]) -> TransactionTable[T]:
        """The table that a class is declared for, within this transaction.  Raises UsageError."""
        return TransactionTable(self, self._table_of(cls))

    @property
    def versions(self) -> list[int]:
        """The versions of the writes, in their order, once they are committed.  Raises UsageError before."""
        if self._versions is None:
            raise UsageError("the versions are known when the transaction is committed: after its with block")
        return list(self._versions)

    def _add(self, write: Write) -> None:
        if self._is_over:
            raise UsageError("the transaction is over: begin another one")
        self._writes.append(write)

    def __repr__(self) -> str:
        state = "committed" if self._versions is not None else "given up" if self._is_over else "open"
        return f"<Transaction of {len(self._writes)} writes, {state}>"

    def __enter__(self) -> Transaction:
        """Raises UsageError for one that is over: what was given up before would be committed with the rest."""
        if self._is_over:
            raise UsageError("the transaction is over: begin another one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        self._is_over = True
        if kind is None:
            self._versions = self._commit(self._writes)
