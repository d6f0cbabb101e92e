"""The objects that a local cache holds, and the tombstones of those that were deleted.  Does no I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from nb_api.core.differences import CachedObject, Created, Deleted, Difference, Updated
from nb_api.core.own_tables import is_own
from pubsub_api.core.topics import FilterSet

_TOPICS_KNOWN_MAX = 100_000


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
    unversioned: int = 0
    """Events without a version: it cannot be said what they are newer than."""
    moves: int = 0
    """Deletes that were one half of a move between two followed topics."""
    doubtful: int = 0
    """Events refused because the tombstone that could have decided was forgotten; a resync decides."""
    tombstones_forgotten: int = 0


class HeldObjects:
    """Not thread-safe.  ``tables`` None follows all but Heliograph's own.

    `put` and `remove` do what they are told: the caller has compared the versions.
    """

    def __init__(self, tables: Iterable[str] | None, filters: Iterable[str]) -> None:
        self.tables: dict[str, dict[str, CachedObject]] = {}
        self.tombstones: dict[tuple[str, str], int] = {}
        """Version of the delete, by table and key; the youngest is the last."""
        self.counters = CacheCounters()
        self.wants_differences = True
        """False: differences are counted and not built, because no reader would look at them."""
        self.filters = FilterSet(filters)
        self._wanted_tables = None if tables is None else frozenset(tables)
        self._topics: dict[str, str | None] = {}

    def entries_of(self, table: str) -> dict[str, CachedObject] | None:
        """What is held of a table; None when it is not followed."""
        entries = self.tables.get(table)
        if entries is None:
            is_wanted = not is_own(table) if self._wanted_tables is None else table in self._wanted_tables
            return self.tables.setdefault(table, {}) if is_wanted else None
        return entries

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

    def remove(
        self, entries: dict[str, CachedObject], table: str, key: str, version: int, out: list[Difference]
    ) -> None:
        """Hold the object no longer.  ``version`` is that of its end."""
        entry = entries.pop(key)
        self.counters.deleted += 1
        if self.wants_differences:
            out.append(Deleted(table, key, entry, version))
