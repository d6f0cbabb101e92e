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

**Selection.**  An object whose value is not what ``where`` asks for is treated as one that was deleted with that
version: the tombstone keeps out what is older.

**Topics.**  A filter that is added later is read by a snapshot of its own, so it may be ahead of the position: it has
a *base*.  An object that moves leaves one topic with a delete and enters another with a set of the same version, on
two streams; of these the set wins.  A cache that follows both topics leaves the delete to the set.

**Merging a snapshot.**  Rows are put like events.  What was held when it began, is in its scope, was not among the rows
and is not newer than the snapshot is gone at the end.  When the database has lost its history (a restored backup),
versions prove nothing: then the rows win over everything but what arrived meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from nb_api.core.changes import Change, DbObject
from nb_api.core.copy.differences import CachedObject, Difference, Ending, Updated, pack
from nb_api.core.copy.held_objects import CacheCounters, HeldObjects, Tables, Where
from nb_api.core.copy.indexes import IndexData
from nb_api.core.copy.journal import ChangeJournal
from nb_api.core.copy.snapshot_merge import SnapshotMerge
from nb_api.core.digests import TableDigest
from nb_api.core.events import events_of, moved_to
from nb_api.core.field_selection import FieldValues, is_selected
from pubsub_api.core.events import Event
from pubsub_api.core.topics import FilterSet


class CacheCore:
    """Not thread-safe: the owner serialises the calls that change it.  ``tables`` None follows all but Heliograph's
    own.

    ``position`` is the revision up to which everything is reflected, 0 before the first snapshot.  ``newest`` is the
    highest version that was ever seen, of the history that the copy belongs to.
    """

    def __init__(
        self, tables: Tables | None, filters: Iterable[str], *, tombstones_max: int, where: Where | None = None
    ) -> None:
        self.position = 0
        self.newest = 0
        self.late = self.peak = 0
        """The version that came furthest behind a higher one, and that.  The owner may set them to 0."""
        self.heard: list[int] | None = None
        """The versions of what was applied, when the owner wants them."""
        self.wants_resync = False
        """Tombstones were forgotten: a delta resync is needed to be sure again."""
        self._objects = HeldObjects(tables, filters, where)
        self._tombstones_max = tombstones_max
        self._doubtful_up_to = 0
        self._bases: dict[str, int] = {}
        self._newest_base = 0
        self._has_open_moves = False
        """A delete was left to a set that may still be under way."""
        self._merge: SnapshotMerge | None = None

    def want_differences(self, is_wanted: bool) -> None:
        """Whether differences are built and returned; they are counted in any case."""
        self._objects.plain.clear()
        self._objects.wants_differences = is_wanted

    # -- reading; safe at any time from any thread

    @property
    def tables(self) -> Mapping[str, dict[str, CachedObject]]:
        return self._objects.tables

    @property
    def filters(self) -> FilterSet:
        return self._objects.filters

    @property
    def counters(self) -> CacheCounters:
        return self._objects.counters

    @property
    def objects(self) -> int:
        return sum(map(len, self._objects.tables.values()))

    @property
    def tombstones(self) -> int:
        return len(self._objects.tombstones)

    def is_followed(self, table: str) -> bool:
        return self._objects.is_followed(table)

    def check_followed(self, tables: Iterable[str]) -> frozenset[str]:
        """The tables as a set.  Raises UsageError unless each of them is followed."""
        return self._objects.check_followed(tables)

    def reflects(self, table: str, key: str, version: int) -> bool:
        """Whether what is known of this very object, held or gone, is at least as new as ``version``."""
        entry = self._objects.tables.get(table, {}).get(key)
        known = entry.version if entry is not None else self._objects.tombstones.get((table, key), 0)
        return known >= version

    def find(self, table: str, key: str) -> DbObject | None:
        entry = self._objects.tables.get(table, {}).get(key)
        return None if entry is None else entry.named(table, key)

    def find_all(self, table: str, filters: FilterSet | None = None) -> list[DbObject]:
        """The objects of a table, by key.  ``filters`` selects topics."""
        held = sorted(self._objects.tables.get(table, {}).copy().items(), key=_key_of)
        return [entry.named(table, key) for key, entry in held if filters is None or filters.match(entry.topic)]

    # -- news

    def update(self, event: Event) -> Updated | None:
        """The ordinary case of `apply`: an object that is held has a version that is higher than all others.

        None: this is not so, or more is to be done than to hold it, and nothing was done.
        """
        objects, table, key, version = self._objects, event.table, event.key, event.version
        entries = objects.plain.get(table)
        if entries is None or version <= self.newest:
            return None
        held = entries.get(key)
        if held is None or version <= held.version or event.topic != held.topic or event.action == "delete":
            return None
        self.newest = version
        entries[key] = entry = CachedObject(version, held.topic, pack(event.value))
        objects.totals[table] += version - held.version
        objects.counters.updated += 1
        return Updated(table, key, entry, held)

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

    def _apply(self, events: Iterable[Event], *, is_feed: bool) -> list[Difference]:  # noqa: PLR0912, PLR0915  see below
        out: list[Difference] = []
        # This runs for every event there is.  So what a frame's events share is looked up once, and an update, which
        # most of them are, is written out here and not called.
        objects, merge = self._objects, self._merge
        counters, wants_differences = objects.counters, objects.wants_differences
        totals, journal = objects.totals, objects.journal
        newest, position, heard = self.newest, self.position, self.heard
        name: str | None = None
        topic: str | None = None
        table: str | None = None
        entries: dict[str, CachedObject] | None = None
        where: FieldValues = ()
        indexes = None
        updated = 0
        for event in events:
            if event.topic is not name:
                name = event.topic
                topic = objects.followed(name)
            if event.table != table:
                table = event.table
                entries, where, indexes = objects.parts_of(table)
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
                self._delete(event, held, out)
                continue
            if where and not is_selected(event.value, where):
                self._unselect(event, held, out)
                continue
            if not (version > held.version if held is not None else self._is_news(event, topic, is_feed=is_feed)):
                counters.stale += 1
                continue
            entry = CachedObject(version, topic, pack(event.value))
            if held is None:
                objects.put(entries, event.table, key, None, entry, out)
            else:
                entries[key] = entry
                totals[table] += version - held.version
                if journal is not None:
                    journal.note(table, key, held, entry, version)
                if indexes is not None:
                    indexes.put(key, held, entry)
                updated += 1
                if wants_differences:
                    out.append(Updated(event.table, key, entry, held))
            if merge is not None:
                merge.heard(event.table, key, entry)
        counters.updated += updated
        self.newest = newest
        if entries is not None and merge is None:
            objects.note_plain(event.table)
        if len(objects.tombstones) > self._tombstones_max:
            self._limit_tombstones()
        return out

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
        if version < self._objects.tombstones.get((event.table, event.key), 0):
            return False
        if version <= self._doubtful_up_to and not is_feed:
            self.counters.doubtful += 1
            return False
        return True

    def _delete(self, event: Event, held: CachedObject | None, out: list[Difference]) -> None:
        if held is not None and event.version <= held.version:
            self.counters.stale += 1
            return
        goal = moved_to(event)
        if goal is not None and self._objects.followed(goal) is not None:
            self.counters.moves += 1
            self._has_open_moves = True
            return
        self._end(event, held, out, "deleted" if goal is None else "moved", goal)

    def _unselect(self, event: Event, held: CachedObject | None, out: list[Difference]) -> None:
        if held is not None and event.version <= held.version:
            self.counters.stale += 1
            return
        self.counters.unselected += 1
        self._end(event, held, out, "unselected", None)
        if len(self._objects.tombstones) > self._tombstones_max // 2:
            self.wants_resync = True  # before any is forgotten: a delta then has not too much to read

    def _end(
        self, event: Event, held: CachedObject | None, out: list[Difference], reason: Ending, goal: str | None
    ) -> None:
        """An object is not to be held, as of this event."""
        name, tombstones, version = (event.table, event.key), self._objects.tombstones, event.version
        if version > tombstones.get(name, 0):
            tombstones.pop(name, None)  # so that it is the youngest again
            tombstones[name] = version
        if held is not None:
            self._objects.remove(event.table, event.key, version, out, reason, goal)
        elif self._objects.journal is not None:
            self._objects.journal.note(event.table, event.key, None, None, version)

    # -- indexes

    def add_index(self, index: IndexData) -> None:
        """Build an index of what is held; it follows every change from then on."""
        self._objects.add_index(index)

    def entries(self, table: str, keys: Iterable[str]) -> list[tuple[str, CachedObject]]:
        """What is held of these objects; all of them are."""
        held = self._objects.tables.get(table, {})
        return [(key, held[key]) for key in keys]

    # -- proving

    def digests(self) -> dict[str, TableDigest]:
        """Of what is held, by table."""
        totals = self._objects.totals
        return {
            table: TableDigest(len(entries), totals.get(table, 0)) for table, entries in self._objects.tables.items()
        }

    def begin_journal(self) -> ChangeJournal:
        """Note every change from now on, until `end_journal`."""
        self._objects.plain.clear()
        journal = self._objects.journal = ChangeJournal(self.digests())
        return journal

    def end_journal(self) -> None:
        self._objects.journal = None

    def _break_journal(self, why: str) -> None:
        if self._objects.journal is not None:
            self._objects.journal.broken = why

    def where_of(self, table: str) -> FieldValues:
        """What the objects of a table must have to be selected; empty when all are."""
        return self._objects.where_of(table)

    def selects(self, row: DbObject) -> bool:
        """Whether an object of the database is one that this copy should have."""
        if not self.is_followed(row.table) or not self.filters.match(row.topic):
            return False
        where = self.where_of(row.table)
        return not where or is_selected(row.value, where)

    def repair(
        self, table: str, key: str, judged: CachedObject | None, right: DbObject | None, out: list[Difference]
    ) -> bool:
        """Hold what the database has, or nothing, whatever the versions are.  False when what is held is not what was
        judged any more."""
        entries = self._objects.entries_of(table)
        if entries is None or entries.get(key) is not judged:
            return False
        self._objects.unplace(table, key, judged)
        if right is None:
            if judged is not None:
                self._objects.remove(table, key, judged.version, out, "absent")
            return True
        topic = self._objects.followed(right.topic)
        if topic is None:
            return False
        self._objects.put(entries, table, key, judged, CachedObject(right.version, topic, pack(right.value)), out)
        return True

    # -- snapshots

    def merge(self, revision: int, scope: Iterable[str], *, replaces: bool = False) -> SnapshotMerge:
        """Begin to merge a snapshot that was taken at ``revision`` with the filters ``scope``.

        ``replaces``: the database has lost its history, and what the snapshot says is true whatever the versions are.
        """
        if replaces:
            self._objects.tombstones.clear()
            self._bases.clear()
            self.position = self._doubtful_up_to = self._newest_base = 0
            self.newest = revision
        self._break_journal("objects are being read")
        self._objects.plain.clear()
        self._merge = SnapshotMerge(self._objects, revision, tuple(scope), replaces=replaces, ended=self._merged)
        return self._merge

    def covers_all(self, scope: Iterable[str]) -> bool:
        """Whether these are all filters that are followed."""
        return self._objects.covers_all(scope)

    def _merged(self, merge: SnapshotMerge, is_complete: bool) -> None:
        self._merge = None
        if not is_complete:
            return
        if self.covers_all(merge.scope):
            self.advance(merge.revision)
        else:
            self._bases.update(dict.fromkeys(merge.scope, merge.revision))
            self._newest_base = max(self._bases.values(), default=0)

    # -- topics

    def add_topic(self, topic_filter: str) -> bool:
        """True when it is new.  Its objects have to be merged.  Raises InvalidTopic."""
        self._break_journal("a topic was added")
        return self._objects.add_filter(topic_filter)

    def remove_topic(self, topic_filter: str) -> list[Difference]:
        """Drop what no other filter selects."""
        out: list[Difference] = []
        if not self._objects.discard_filter(topic_filter):
            return out
        self._break_journal("a topic was dropped")
        self._bases.pop(topic_filter, None)
        self.wants_resync |= self._has_open_moves  # the set may have been on its way to this very topic
        followed = self._objects.followed
        for table, entries in self._objects.tables.items():
            gone = [(key, entry) for key, entry in entries.items() if followed(entry.topic) is None]
            for key, entry in gone:
                self._objects.remove(table, key, entry.version, out, "unfollowed")
        return out

    def _base_of(self, topic: str) -> int:
        """Up to where everything of this topic is reflected, beyond the position."""
        return max((base for kept, base in self._bases.items() if FilterSet((kept,)).match(topic)), default=0)

    # -- tombstones

    def _limit_tombstones(self) -> None:
        tombstones = self._objects.tombstones
        excess = len(tombstones) - self._tombstones_max
        for name in list(tombstones)[: excess + self._tombstones_max // 4]:
            self._doubtful_up_to = max(self._doubtful_up_to, tombstones.pop(name))
            self.counters.tombstones_forgotten += 1
        self.wants_resync = True

    def _forget_up_to(self, revision: int) -> None:
        """The position has passed these tombstones: what they would refuse, it refuses."""
        self._has_open_moves = False
        if tombstones := self._objects.tombstones:
            self._objects.tombstones = {name: version for name, version in tombstones.items() if version > revision}
        if self._doubtful_up_to <= revision:
            self._doubtful_up_to = 0
            self.wants_resync = False
        self._bases = {kept: base for kept, base in self._bases.items() if base > revision}
        self._newest_base = max(self._bases.values(), default=0)


def _key_of(item: tuple[str, CachedObject]) -> str:
    return item[0]
