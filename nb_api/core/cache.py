"""The state of a local cache: which version of which object it holds, and what it does with news of any age.

Sans-IO: it is given events, changes and the rows of snapshots, and returns the differences they made.

Theory of operation
-------------------
**Newest wins.**  Whatever arrives, from whom and in which order, is compared by version with what is held.  An older
one, or the same again, changes nothing.  Live events may therefore be applied while a snapshot is read: the order of
the two does not matter, and nothing has to wait in a buffer.

**Absence has a version too.**  An object that is not held may be unknown or deleted.  What tells them apart is the
*position*: every change up to that revision is reflected, so an event that is not newer is old news.  Of deletes after
the position a tombstone is kept.  There is a limit on tombstones; beyond it the oldest are forgotten, what they would
have refused is refused as *doubtful*, and a delta resync is wanted, which moves the position.

**Topics.**  A filter that is added later is read by a snapshot of its own, so it may be ahead of the position: it has
a *base*.  An object that moves leaves one topic with a delete and enters another with a set of the same version, on
two streams; of these the set wins.  A cache that follows both topics leaves the delete to the set.

**Merging a snapshot.**  Rows are put like events.  What was held when it began, is in its scope, was not among the rows
and is not newer than the snapshot is gone at the end.  When the database has lost its history (a restored backup),
versions prove nothing: then the rows win over everything but what arrived meanwhile.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping

from nb_api.core.changes import Change, DbObject
from nb_api.core.differences import CachedObject, Created, Deleted, Difference, Updated
from nb_api.core.events import events_of, moved_to
from nb_api.core.own_tables import is_own
from pubsub_api.core.events import Event
from pubsub_api.core.topics import FilterSet

_TOPICS_KNOWN_MAX = 100_000
_NOTHING: set[str] = set()


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
    """Events without a version: nobody can say what they are newer than."""
    moves: int = 0
    """Deletes that were one half of a move between two followed topics."""
    doubtful: int = 0
    """Events refused because the tombstone that could have decided was forgotten; a resync decides."""
    tombstones_forgotten: int = 0


class CacheCore:
    """Not thread-safe: the owner serialises the calls that change it.  ``tables`` None follows all but Heliograph's
    own.

    ``position`` is the revision up to which everything is reflected, 0 before the first snapshot.  ``newest`` is the
    highest version that was ever seen, of the history that the copy belongs to.
    """

    def __init__(self, tables: Iterable[str] | None, filters: Iterable[str], *, tombstones_max: int) -> None:
        self.filters = FilterSet(filters)
        self.counters = CacheCounters()
        self.position = 0
        self.newest = 0
        self.late = self.peak = 0
        """The version that came furthest behind a higher one, and that.  The owner may set them to 0."""
        self.heard: list[int] | None = None
        """The versions of what was applied, when the owner wants them."""
        self.is_telling = True
        """False: differences are counted and not built, because nobody would look at them."""
        self.wants_resync = False
        """Tombstones were forgotten: a delta resync is needed to be sure again."""
        self._tables: dict[str, dict[str, CachedObject]] = {}
        self._wanted_tables = None if tables is None else frozenset(tables)
        self._tombstones_max = tombstones_max
        self._tombstones: dict[tuple[str, str], int] = {}
        self._doubtful_up_to = 0
        self._bases: dict[str, int] = {}
        self._newest_base = 0
        self._has_open_moves = False
        """A delete was left to a set that may still be under way."""
        self._topics: dict[str, str | None] = {}
        self._merge: SnapshotMerge | None = None

    # -- reading; safe at any time from any thread

    @property
    def tables(self) -> Mapping[str, Mapping[str, CachedObject]]:
        return self._tables

    @property
    def objects(self) -> int:
        return sum(map(len, self._tables.values()))

    @property
    def tombstones(self) -> int:
        return len(self._tombstones)

    def find(self, table: str, key: str) -> DbObject | None:
        entry = self._tables.get(table, {}).get(key)
        return None if entry is None else _object(table, key, entry)

    def find_all(self, table: str, filters: FilterSet | None = None) -> list[DbObject]:
        """The objects of a table, by key.  ``filters`` selects topics."""
        held = sorted(self._tables.get(table, {}).copy().items(), key=_key_of)
        return [_object(table, key, entry) for key, entry in held if filters is None or filters.match(entry.topic)]

    # -- news

    def apply(self, events: Iterable[Event]) -> list[Difference]:
        """Live events, from any number of publishers, in any order."""
        return self._apply(events, is_feed=False)

    def apply_changes(self, changes: Iterable[Change]) -> list[Difference]:
        """Changes from the database's own feed, in its order.  Call `advance` after the last one that it had."""
        return self._apply(itertools.chain.from_iterable(map(events_of, changes)), is_feed=True)

    def advance(self, revision: int) -> None:
        """Every change up to ``revision`` of what is followed has been applied."""
        if revision <= self.position:
            return
        self.position = revision
        self.newest = max(self.newest, revision)
        self._forget_up_to(revision)

    def _apply(self, events: Iterable[Event], *, is_feed: bool) -> list[Difference]:  # noqa: PLR0912  see below
        out: list[Difference] = []
        # This runs for every event there is.  So what a frame's events share is looked up once, and an update, which
        # most of them are, is written out here and not called.
        counters, merge, newest, is_telling = self.counters, self._merge, self.newest, self.is_telling
        position, heard = self.position, self.heard
        name: str | None = None
        topic: str | None = None
        table: str | None = None
        entries: dict[str, CachedObject] | None = None
        updated = 0
        for event in events:
            if event.topic is not name:
                name = event.topic
                topic = self._followed(name)
            if event.table != table:
                table = event.table
                entries = self._entries_of(table)
            version = event.version
            if topic is None or entries is None or not version:
                self._count_useless(version, is_wanted=topic is not None and entries is not None)
                continue
            if heard is not None:
                heard.append(version)
            if version > newest:
                newest = version
            elif version <= position:  # reflected, or of a history that the database has lost
                counters.stale += 1
                continue
            elif newest - version > self.peak - self.late:
                self.late, self.peak = version, newest
            key = event.key
            held = entries.get(key)
            if event.action == "delete":
                self._delete(entries, event, held, out)
                continue
            if not (version > held.version if held is not None else self._is_news(event, topic, is_feed=is_feed)):
                counters.stale += 1
                continue
            entry = CachedObject(version, topic, event.value)
            if held is None:
                self._put(entries, event.table, key, None, entry, out)
            else:
                entries[key] = entry
                updated += 1
                if is_telling:
                    out.append(Updated(event.table, key, entry, held))
            if merge is not None:
                merge.heard(event.table, key, entry)
        counters.updated += updated
        self.newest = newest
        if len(self._tombstones) > self._tombstones_max:
            self._limit_tombstones()
        return out

    def _entries_of(self, table: str) -> dict[str, CachedObject] | None:
        """None when the table is not followed."""
        entries = self._tables.get(table)
        return self._open_table(table) if entries is None else entries

    def _count_useless(self, version: int, *, is_wanted: bool) -> None:
        if is_wanted and not version:
            self.counters.unversioned += 1
        else:
            self.counters.unwanted += 1

    def _is_news(self, event: Event, topic: str, *, is_feed: bool) -> bool:
        """Whether an object that is not held is new, and not one that was deleted."""
        version = event.version
        if version <= self._newest_base and version <= self._base_of(topic):
            return False
        # Of the same version: the object left one topic and enters this one.
        if version < self._tombstones.get((event.table, event.key), 0):
            return False
        if version <= self._doubtful_up_to and not is_feed:
            self.counters.doubtful += 1
            return False
        return True

    def _put(
        self,
        entries: dict[str, CachedObject],
        table: str,
        key: str,
        held: CachedObject | None,
        entry: CachedObject,
        out: list[Difference],
    ) -> None:
        entries[key] = entry
        if held is None:
            self.counters.created += 1
            if self._tombstones:
                self._tombstones.pop((table, key), None)
            if self.is_telling:
                out.append(Created(table, key, entry))
        else:
            self.counters.updated += 1
            if self.is_telling:
                out.append(Updated(table, key, entry, held))

    def _delete(
        self, entries: dict[str, CachedObject], event: Event, held: CachedObject | None, out: list[Difference]
    ) -> None:
        version = event.version
        if held is not None and version <= held.version:
            self.counters.stale += 1
            return
        goal = moved_to(event)
        if goal is not None and self._followed(goal) is not None:
            self.counters.moves += 1
            self._has_open_moves = True
            return
        name = (event.table, event.key)
        if version > self._tombstones.get(name, 0):
            self._tombstones.pop(name, None)  # so that it is the youngest again
            self._tombstones[name] = version
        if held is not None:
            self._remove(entries, event.table, event.key, version, out)

    def _remove(
        self, entries: dict[str, CachedObject], table: str, key: str, version: int, out: list[Difference]
    ) -> None:
        entry = entries.pop(key)
        self.counters.deleted += 1
        if self.is_telling:
            out.append(Deleted(table, key, entry, version))

    # -- snapshots

    def merge(self, revision: int, scope: Iterable[str], *, replaces: bool = False) -> SnapshotMerge:
        """Begin to merge a snapshot that was taken at ``revision`` with the filters ``scope``.

        ``replaces``: the database has lost its history, and what the snapshot says is true whatever the versions are.
        """
        if replaces:
            self._tombstones.clear()
            self._bases.clear()
            self.position = self._doubtful_up_to = self._newest_base = 0
            self.newest = revision
        self._merge = SnapshotMerge(self, revision, tuple(scope), replaces)
        return self._merge

    def covers_all(self, scope: Iterable[str]) -> bool:
        """Whether these are all filters that are followed."""
        return set(self.filters) <= set(scope)

    def _merged(self, merge: SnapshotMerge) -> None:
        self._merge = None
        if self.covers_all(merge.scope):
            self.advance(merge.revision)
        else:
            self._bases.update(dict.fromkeys(merge.scope, merge.revision))
            self._newest_base = max(self._bases.values(), default=0)

    # -- topics

    def add_topic(self, topic_filter: str) -> bool:
        """True when it is new.  Its objects have to be merged.  Raises InvalidTopic."""
        is_new = self.filters.add(topic_filter)
        self._topics.clear()
        return is_new

    def remove_topic(self, topic_filter: str) -> list[Difference]:
        """Drop what no other filter selects."""
        out: list[Difference] = []
        if not self.filters.discard(topic_filter):
            return out
        self._topics.clear()
        self._bases.pop(topic_filter, None)
        self.wants_resync |= self._has_open_moves  # the set may have been on its way to this very topic
        for table, entries in self._tables.items():
            gone = [(key, entry) for key, entry in entries.items() if self._followed(entry.topic) is None]
            for key, entry in gone:
                self._remove(entries, table, key, entry.version, out)
        return out

    def _followed(self, topic: str) -> str | None:
        """The one copy of this topic's name that is kept, None when no filter selects it."""
        try:
            return self._topics[topic]
        except KeyError:
            if len(self._topics) >= _TOPICS_KNOWN_MAX:
                self._topics.clear()
            self._topics[topic] = found = topic if self.filters.match(topic) else None
            return found

    def _open_table(self, table: str) -> dict[str, CachedObject] | None:
        is_wanted = not is_own(table) if self._wanted_tables is None else table in self._wanted_tables
        return self._tables.setdefault(table, {}) if is_wanted else None

    def _base_of(self, topic: str) -> int:
        """Up to where everything of this topic is reflected, beyond the position."""
        return max((base for kept, base in self._bases.items() if FilterSet((kept,)).match(topic)), default=0)

    # -- tombstones

    def _limit_tombstones(self) -> None:
        excess = len(self._tombstones) - self._tombstones_max
        for name in list(self._tombstones)[: excess + self._tombstones_max // 4]:
            self._doubtful_up_to = max(self._doubtful_up_to, self._tombstones.pop(name))
            self.counters.tombstones_forgotten += 1
        self.wants_resync = True

    def _forget_up_to(self, revision: int) -> None:
        """The position has passed these tombstones: what they would refuse, it refuses."""
        self._has_open_moves = False
        if self._tombstones:
            self._tombstones = {name: version for name, version in self._tombstones.items() if version > revision}
        if self._doubtful_up_to <= revision:
            self._doubtful_up_to = 0
            self.wants_resync = False
        self._bases = {kept: base for kept, base in self._bases.items() if base > revision}
        self._newest_base = max(self._bases.values(), default=0)


class SnapshotMerge:
    """A snapshot on its way into the cache.  Events may be applied between any two calls."""

    def __init__(self, core: CacheCore, revision: int, scope: tuple[str, ...], replaces: bool) -> None:
        self.revision = revision
        self.scope = scope
        self._core = core
        self._replaces = replaces
        self._filters = None if core.covers_all(scope) else FilterSet(scope)
        self._unseen = {
            table: {key for key, entry in entries.items() if self._is_in_scope(entry)}
            for table, entries in core._tables.items()
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
        core = self._core
        tables, tombstones, followed, put = core._tables, core._tombstones, core._followed, core._put
        unseen = self._unseen
        out: list[Difference] = []
        for row in objects:
            table, key, version = row.table, row.key, row.version
            entries = tables.get(table)
            if entries is None:
                entries = core._open_table(table)
            topic = followed(row.topic)
            if entries is None or topic is None:  # the filter was removed while the snapshot was read
                continue
            held = entries.get(key)
            if held is None:
                if tombstones and version < tombstones.get((table, key), 0):
                    continue
                if unseen:  # it was held when this began, and dropped with a filter that its older self had
                    unseen.get(table, _NOTHING).discard(key)
            elif not self._is_newer(row, held):
                continue
            put(entries, table, key, held, CachedObject(version, topic, row.value), out)
        return out

    def _is_newer(self, row: DbObject | Event, held: CachedObject) -> bool:
        unseen = self._unseen.get(row.table, _NOTHING)
        if self._replaces and row.key in unseen:  # else an event was faster
            unseen.discard(row.key)
            return (row.version, row.topic, row.value) != (held.version, held.topic, held.value)
        unseen.discard(row.key)
        return row.version > held.version

    def finish(self) -> list[Difference]:
        """All rows were given: what is left over is gone."""
        out: list[Difference] = []
        for table, keys in self._unseen.items():
            entries = self._core._tables[table]
            for key in keys:
                entry = entries.get(key)
                if entry is not None and (entry.version <= self.revision or self._replaces):
                    self._core._remove(entries, table, key, self.revision, out)
        self._core._merged(self)
        return out

    def abandon(self) -> None:
        """The snapshot could not be read to its end: what was put stays, nothing is removed."""
        self._core._merge = None


def _object(table: str, key: str, entry: CachedObject) -> DbObject:
    return DbObject(table, key, entry.topic, entry.value, entry.version)


def _key_of(item: tuple[str, CachedObject]) -> str:
    return item[0]
