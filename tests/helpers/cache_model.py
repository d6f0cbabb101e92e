"""The state of a local cache against a database in the plainest way, driven by Hypothesis."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import Created, Difference, Updated
from nb_api.core.copy.snapshot_merge import SnapshotMerge
from nb_api.core.events import events_of
from nb_api.db_api import Change, DbObject
from pubsub_api import Event
from pubsub_api.core.topics import FilterSet


@dataclasses.dataclass
class Database:
    """A database in the plainest way: all that ever happened, in order."""

    changes: list[Change] = dataclasses.field(default_factory=list)
    objects: dict[tuple[str, str], DbObject] = dataclasses.field(default_factory=dict)

    @property
    def revision(self) -> int:
        return self.changes[-1].revision if self.changes else 0

    def write(self, table: str, key: str, topic: str, value: Any, *, is_delete: bool) -> Change | None:
        before = self.objects.get((table, key))
        revision = self.revision + 1
        if is_delete and before is None:
            return None
        if is_delete:
            del self.objects[table, key]
            change = Change(revision, "delete", table, key, before.topic)  # type: ignore[union-attr]
        else:
            self.objects[table, key] = DbObject(table, key, topic, value, revision)
            left = before.topic if before is not None and before.topic != topic else None
            change = Change(revision, "create" if before is None else "set", table, key, topic, value, left)
        self.changes.append(change)
        return change

    def rows(self, filters: FilterSet, tables: frozenset[str]) -> list[DbObject]:
        return [row for row in self.objects.values() if filters.match(row.topic) and row.table in tables]


def held(core: CacheCore) -> list[DbObject]:
    return [found for table in sorted(core.tables) for found in core.find_all(table)]


def expected(db: Database, core: CacheCore, tables: frozenset[str]) -> list[DbObject]:
    return sorted(db.rows(core.filters, tables), key=lambda row: (row.table, row.key))


class Copy:
    """What somebody who hears only the differences believes."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], DbObject] = {}

    def hear(self, differences: list[Difference]) -> None:
        for difference in differences:
            found = difference.object
            name = (found.table, found.key)
            if isinstance(difference, Created):
                assert name not in self.objects
                self.objects[name] = found
            elif isinstance(difference, Updated):
                assert self.objects[name] == difference.before
                self.objects[name] = found
            else:
                assert self.objects.pop(name) == found


TABLES = frozenset({"port", "net"})
ALL_TABLES = ("port", "port", "port", "net", "other")
TOPICS = ("a/x", "a/x", "a/y", "b")
FILTERS = ("a/x", "b", "b", "+", "a/#")
"""What is listed more often is chosen more often."""
FIELDS = st.fixed_dictionaries(
    {"net": st.sampled_from(["x", "x", "y", None, "broken"]), "host": st.sampled_from(["h7", "h7", "h8"])},
    optional={"tags": st.lists(st.sampled_from("abc"), max_size=3)},
)
"""For indexes and selections."""


class CacheMachine(RuleBasedStateMachine):
    """Publishers whose events come late, twice, in any order or not at all, and a cache that syncs at the worst
    moments."""

    def __init__(self) -> None:
        super().__init__()
        self.db = Database()
        self.copy = Copy()
        self.under_way: list[Event] = []
        self.delivered: list[Event] = []
        self.opened: tuple[int, list[str], list[DbObject]] | None = None
        self.merge: tuple[SnapshotMerge, list[DbObject]] | None = None
        self.unloaded: set[str] = set()
        self.dropped: set[str] = set()
        """Filters that were dropped since the snapshot was opened."""
        self.is_loaded = False

    def make_core(self, tombstones_max: int) -> CacheCore:
        return CacheCore(TABLES, ["a/#"], tombstones_max=tombstones_max)

    def selects(self, row: DbObject) -> bool:
        """Whether an object is selected by more than its table and topic."""
        return True

    @initialize(tombstones_max=st.sampled_from([1, 2, 100, 100]), is_lossy=st.booleans())
    def start(self, tombstones_max: int, is_lossy: bool) -> None:
        self.core = self.make_core(tombstones_max)
        self.is_lossy = is_lossy

    # -- the world

    @rule(
        table=st.sampled_from(ALL_TABLES), key=st.sampled_from("kkl"), topic=st.sampled_from(TOPICS),
        is_delete=st.booleans(), is_lost=st.booleans(), fields=FIELDS,
    )  # fmt: skip
    def write(self, table: str, key: str, topic: str, is_delete: bool, is_lost: bool, fields: dict[str, Any]) -> None:
        change = self.db.write(table, key, topic, {"n": self.db.revision, **fields}, is_delete=is_delete)
        if change is not None and not (is_lost and self.is_lossy):
            self.under_way += events_of(change)

    @rule(number=st.integers(0, 5), is_repeat=st.sampled_from([False, False, False, True]))
    def deliver(self, number: int, is_repeat: bool) -> None:
        """One of the oldest that are under way, or one of the youngest that were delivered already."""
        if is_repeat and self.delivered:
            self.hand_over(self.delivered[-1 - number % len(self.delivered)])
        elif self.under_way:
            self.hand_over(self.under_way.pop(number % len(self.under_way)))

    def hand_over(self, event: Event) -> None:
        """The bus delivers only what is subscribed."""
        if self.core.filters.match(event.topic):
            self.copy.hear(self.core.apply([event]))
            self.delivered.append(event)

    # -- reading the database

    @precondition(lambda self: self.merge is None and self.opened is None)
    @rule()
    def open_snapshot(self) -> None:
        self.dropped = set()
        self.opened = (self.db.revision, list(self.core.filters), self.db.rows(self.core.filters, TABLES))

    @precondition(lambda self: self.merge is None and self.opened is None and self.is_loaded and self.unloaded)
    @rule(data=st.data())
    def open_scoped_snapshot(self, data: st.DataObject) -> None:
        scope = data.draw(st.sampled_from(sorted(self.unloaded)))
        self.dropped = set()
        self.opened = (self.db.revision, [scope], self.db.rows(FilterSet([scope]), TABLES))

    @precondition(lambda self: self.opened is not None)
    @rule()
    def begin_merge(self) -> None:
        assert self.opened is not None
        revision, scope, rows = self.opened
        self.merge, self.opened = (self.core.merge(revision, scope), rows), None
        # A filter that was dropped and added again meanwhile is read again: its events were not delivered in between.
        self.covered = {kept for kept in scope if kept in self.unloaded and kept not in self.dropped}

    @precondition(lambda self: self.merge is not None)
    @rule(count=st.integers(1, 3))
    def read_portion(self, count: int) -> None:
        assert self.merge is not None
        merge, rows = self.merge
        self.copy.hear(merge.rows(rows[:count]))
        self.merge = (merge, rows[count:])

    @precondition(lambda self: self.merge is not None)
    @rule()
    def finish_merge(self) -> None:
        assert self.merge is not None
        merge, rows = self.merge
        self.copy.hear(merge.rows(rows))
        self.copy.hear(merge.finish())
        self.merge = None
        self.unloaded -= self.covered
        self.is_loaded |= self.core.covers_all(merge.scope)

    @precondition(lambda self: self.merge is not None)
    @rule()
    def lose_the_database(self) -> None:
        assert self.merge is not None
        self.merge[0].abandon()
        self.merge = None

    @precondition(lambda self: self.merge is None and self.opened is None and self.is_loaded)
    @rule()
    def delta(self) -> None:
        self.copy.hear(self.core.apply_changes(self.db.changes[self.core.position :]))
        self.core.advance(self.db.revision)

    # -- topics

    @rule(topic_filter=st.sampled_from(FILTERS), is_wanted=st.booleans())
    def follow(self, topic_filter: str, is_wanted: bool) -> None:
        if not is_wanted:
            self.copy.hear(self.core.remove_topic(topic_filter))
            self.unloaded.discard(topic_filter)
            self.dropped.add(topic_filter)
            self.covered = set()
        elif self.core.add_topic(topic_filter):
            self.unloaded.add(topic_filter)

    # -- what must always hold

    @invariant()
    def what_was_told_is_what_is_held(self) -> None:
        assert sorted(self.copy.objects) == [(row.table, row.key) for row in held(self.core)]
        assert [self.copy.objects[row.table, row.key] for row in held(self.core)] == held(self.core)

    @invariant()
    def nothing_unfollowed_is_held(self) -> None:
        assert all(self.core.filters.match(row.topic) and row.table in TABLES for row in held(self.core))

    @invariant()
    def nothing_is_newer_than_the_database(self) -> None:
        assert all(row.version <= self.db.revision for row in held(self.core))

    def teardown(self) -> None:
        """What was asked for is read, what is under way arrives: then the cache is right.  Only after loss, or when the
        cache says so itself, a delta is needed for that.  And what comes once more changes nothing."""
        self.read_what_is_missing()
        while self.under_way:
            self.hand_over(self.under_way.pop())
        if self.is_lossy or self.core.wants_resync:
            self.delta()
        self.is_right()
        published = [event for change in self.db.changes for event in events_of(change)]
        for event in [*published, *reversed(published)]:
            self.hand_over(event)
        if self.core.wants_resync:  # so many deletes at once that tombstones were forgotten
            self.delta()
        self.is_right()

    def read_what_is_missing(self) -> None:
        if self.opened is not None:
            self.begin_merge()
        if self.merge is not None:
            self.finish_merge()
        if not self.is_loaded:
            self.open_snapshot()
            self.begin_merge()
            self.finish_merge()
        for scope in sorted(self.unloaded):
            self.dropped = set()
            self.opened = (self.db.revision, [scope], self.db.rows(FilterSet([scope]), TABLES))
            self.begin_merge()
            self.finish_merge()

    def is_right(self) -> None:
        assert held(self.core) == list(filter(self.selects, expected(self.db, self.core, TABLES)))
        self.what_was_told_is_what_is_held()
