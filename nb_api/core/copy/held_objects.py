"""The objects that a local cache holds, and the tombstones of those that were deleted.  Does no I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from nb_api.core.copy.differences import CachedObject, Created, Deleted, Difference, Ending, Updated
from nb_api.core.copy.indexes import IndexData, TableIndexes
from nb_api.core.copy.journal import ChangeJournal
from nb_api.core.field_selection import FieldValues, field_values
from nb_api.core.own_tables import is_own
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import UsageError

_TOPICS_KNOWN_MAX = 100_000

Where = Mapping[str, Any]
"""Fields of an object's value, and what they must be."""
Tables = Iterable[str] | Mapping[str, Where | None]
"""Names of tables, or each with a selection of its own."""


@dataclasses.dataclass
class CacheCounters:
    """What happened to everything that arrived."""

    created: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    """Events that were not newer than what was known: repeated, late, or overtaken by a resync."""
    unwanted: int = 0
    """Events of tables or topics that are not followed."""
    unselected: int = 0
    """Events of objects that ``where`` does not select."""
    unversioned: int = 0
    """Events without a version: it cannot be said what they are newer than."""
    moves: int = 0
    """Deletes that were one half of a move between two followed topics."""
    doubtful: int = 0
    """Events refused because the tombstone that could have decided was forgotten; a resync decides."""
    tombstones_forgotten: int = 0


class HeldObjects:
    """Not thread-safe.  ``tables`` None follows all but Heliograph's own.  ``where`` selects objects of all tables.

    `put` and `remove` do what they are told: the caller has compared the versions.  Indexes follow in the same call.
    """

    def __init__(self, tables: Tables | None, filters: Iterable[str], where: Where | None = None) -> None:
        self.tables: dict[str, dict[str, CachedObject]] = {}
        self.tombstones: dict[tuple[str, str], int] = {}
        """Version of the delete, by table and key; the youngest is the last."""
        self.counters = CacheCounters()
        self.wants_differences = True
        """False: differences are counted and not built, because no reader would look at them."""
        self.filters = FilterSet(filters)
        self._wanted_tables = None if tables is None else frozenset(tables)
        self._topics: dict[str, str | None] = {}
        self._where = field_values(where)
        self._where_of = (
            {table: self._where + field_values(own) for table, own in tables.items()}
            if isinstance(tables, Mapping)
            else {}
        )
        self.plain: dict[str, dict[str, CachedObject]] = {}
        """Of ``tables`` those in which a newer version takes the place of an older one, and nothing else is to be done.
        Cleared when that may have changed."""
        self.indexes: dict[str, TableIndexes] = {}
        """Of the tables that have any."""
        self.totals: dict[str, int] = {}
        """The sums of the versions of what is held, by table (`nb_api.core.digests`)."""
        self.journal: ChangeJournal | None = None
        """Where changes are noted while a caller wants to know what was held before."""

    def is_followed(self, table: str) -> bool:
        return not is_own(table) if self._wanted_tables is None else table in self._wanted_tables

    def check_followed(self, tables: Iterable[str]) -> frozenset[str]:
        """The tables as a set.  Raises UsageError unless each of them is followed, or may come to be there."""
        if isinstance(tables, str) or not isinstance(tables, Iterable):
            raise UsageError(f"tables are several names, not {tables!r}")
        names = list(tables)
        for table in names:
            if not isinstance(table, str) or not self.is_followed(table):
                raise UsageError(f"table {table!r} is not followed by this cache")
        return frozenset(names)

    def where_of(self, table: str) -> FieldValues:
        """What the objects of a table must have to be selected; empty when all are."""
        return self._where_of.get(table, self._where)

    def note_plain(self, table: str) -> None:
        """If it is so."""
        if self.journal is None and self.wants_differences and table not in self.indexes and not self.where_of(table):
            self.plain[table] = self.tables[table]

    def add_index(self, index: IndexData) -> None:
        self.plain.clear()
        indexes = self.indexes.get(index.table) or TableIndexes()
        indexes.add(index, self.tables.get(index.table, {}))
        self.indexes[index.table] = indexes

    def entries_of(self, table: str) -> dict[str, CachedObject] | None:
        """What is held of a table; None when it is not followed."""
        entries = self.tables.get(table)
        if entries is None:
            return self.tables.setdefault(table, {}) if self.is_followed(table) else None
        return entries

    def parts_of(self, table: str) -> tuple[dict[str, CachedObject] | None, FieldValues, TableIndexes | None]:
        """What is held of a table, what is selected of it, and its indexes, to go through many events."""
        return (
            self.tables.get(table) or self.entries_of(table),
            self._where_of.get(table, self._where),
            self.indexes.get(table),
        )

    def followed(self, topic: str) -> str | None:
        """The one copy of this topic's name that is kept, None when no filter selects it."""
        try:
            return self._topics[topic]
        except KeyError:
            if len(self._topics) >= _TOPICS_KNOWN_MAX:
                self._topics.clear()
            self._topics[topic] = found = topic if self.filters.match(topic) else None
            return found

    def covers_all(self, scope: Iterable[str]) -> bool:
        """Whether these are all filters that are followed."""
        return set(self.filters) <= set(scope)

    def add_filter(self, topic_filter: str) -> bool:
        """True when it is new.  Raises InvalidTopic."""
        self._topics.clear()
        return self.filters.add(topic_filter)

    def discard_filter(self, topic_filter: str) -> bool:
        """True when it was there.  What it alone selected is still held."""
        self._topics.clear()
        return self.filters.discard(topic_filter)

    def put(
        self,
        entries: dict[str, CachedObject],
        table: str,
        key: str,
        held: CachedObject | None,
        entry: CachedObject,
        out: list[Difference],
    ) -> None:
        """Hold ``entry`` in the place of ``held``; what that changes is added to ``out``."""
        entries[key] = entry
        self.totals[table] = self.totals.get(table, 0) + entry.version - (0 if held is None else held.version)
        if self.journal is not None:
            self.journal.note(table, key, held, entry, entry.version)
        if (indexes := self.indexes.get(table)) is not None:
            indexes.put(key, held, entry)
        if held is None:
            self.counters.created += 1
            if self.tombstones:
                self.tombstones.pop((table, key), None)
            if self.wants_differences:
                out.append(Created(table, key, entry))
        else:
            self.counters.updated += 1
            if self.wants_differences:
                out.append(Updated(table, key, entry, held))

    def unplace(self, table: str, key: str, held: CachedObject | None) -> None:
        """Take an object out of the indexes of its table although the copy may have been damaged."""
        if (indexes := self.indexes.get(table)) is not None:
            indexes.purge(key)
            if held is not None:
                held.index_values = (None,) * len(indexes)

    def remove(
        self,
        table: str,
        key: str,
        version: int,
        out: list[Difference],
        reason: Ending = "deleted",
        moved_to: str | None = None,
    ) -> None:
        """Hold the object no longer.  ``version`` is that of its end."""
        entry = self.tables[table].pop(key)
        self.totals[table] -= entry.version
        if self.journal is not None:
            self.journal.note(table, key, entry, None, version)
        if (indexes := self.indexes.get(table)) is not None:
            indexes.remove(key, entry)
        self.counters.deleted += 1
        if self.wants_differences:
            out.append(Deleted(table, key, entry, version, reason, moved_to))
