"""Merging the rows of a snapshot into what a local cache holds.  Does no I/O; `nb_api.core.copy.cache` explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nb_api.core.changes import DbObject
from nb_api.core.copy.differences import CachedObject, Difference, Ending, is_same_value, pack
from nb_api.core.copy.held_objects import HeldObjects
from nb_api.core.field_selection import is_selected
from pubsub_api.core.events import Event
from pubsub_api.core.topics import FilterSet

EVERYTHING = "#"
"""The filter that selects every topic."""
_NOTHING: set[str] = set()


class SnapshotMerge:
    """A snapshot on its way into the cache.  Events may be applied between any two calls."""

    def __init__(
        self,
        objects: HeldObjects,
        revision: int,
        scope: tuple[str, ...],
        *,
        replaces: bool,
        ended: Callable[[SnapshotMerge, bool], None],
    ) -> None:
        """``ended`` is called at the end, with whether all rows were given."""
        self.revision = revision
        self.scope = scope
        self._objects = objects
        self._ended = ended
        self._replaces = replaces
        self._filters = None if objects.covers_all(scope) else FilterSet(scope)
        self._unseen = {
            table: {key for key, entry in entries.items() if self._is_in_scope(entry)}
            for table, entries in objects.tables.items()
            if entries
        }

    def _is_in_scope(self, entry: CachedObject) -> bool:
        return self._filters is None or self._filters.match(entry.topic)

    def heard(self, table: str, key: str, entry: CachedObject) -> None:
        """An event was put.  One that is not newer than the snapshot is true only if a row will say so: the object may
        have gone since, and the event of that may have come before this one or be taken for an old one later."""
        if self._replaces:  # an event of after the database went back is true as well
            self._unseen.get(table, _NOTHING).discard(key)
        elif entry.version <= self.revision and self._is_in_scope(entry):
            self._unseen.setdefault(table, set()).add(key)

    def rows(self, objects: Iterable[DbObject | Event]) -> list[Difference]:
        """A portion of the snapshot; of events none that deletes."""
        held_objects, unseen = self._objects, self._unseen
        tombstones = held_objects.tombstones
        entries_of, followed, put = held_objects.entries_of, held_objects.followed, held_objects.put
        where_of = held_objects.where_of
        out: list[Difference] = []
        for row in objects:
            table, key, version = row.table, row.key, row.version
            entries = entries_of(table)
            topic = followed(row.topic)
            if entries is None or topic is None:  # the filter was removed while the snapshot was read
                continue
            held = entries.get(key)
            if (where := where_of(table)) and not is_selected(row.value, where):
                if held is not None and self._is_newer(row, held):
                    held_objects.remove(table, key, version, out, "unselected")
                continue
            if held is None:
                if tombstones and version < tombstones.get((table, key), 0):
                    continue
                if unseen:  # it was held when this began, and dropped with a filter that its older self had
                    unseen.get(table, _NOTHING).discard(key)
            elif not self._is_newer(row, held):
                continue
            put(entries, table, key, held, CachedObject(version, topic, pack(row.value)), out)
        return out

    def _is_newer(self, row: DbObject | Event, held: CachedObject) -> bool:
        unseen = self._unseen.get(row.table, _NOTHING)
        if self._replaces and row.key in unseen:  # else an event was faster
            unseen.discard(row.key)
            is_held = (row.version, row.topic) == (held.version, held.topic) and is_same_value(row.value, held.value)
            return not is_held
        unseen.discard(row.key)
        return row.version > held.version

    def finish(self) -> list[Difference]:
        """All rows were given: what is left over is gone."""
        out: list[Difference] = []
        # Of all topics: what is in none of them is deleted.  Else it may have moved to one that was not read.
        reason: Ending = "deleted" if EVERYTHING in self.scope else "absent"
        for table, keys in self._unseen.items():
            entries = self._objects.tables[table]
            for key in keys:
                entry = entries.get(key)
                if entry is not None and (entry.version <= self.revision or self._replaces):
                    self._objects.remove(table, key, self.revision, out, reason)
        self._ended(self, True)
        return out

    def abandon(self) -> None:
        """The snapshot could not be read to its end: what was put stays, nothing is removed."""
        self._ended(self, False)
