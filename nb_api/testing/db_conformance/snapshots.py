"""Snapshots: complete, of one revision, and with the selected objects only."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Sequence

import pytest

from nb_api import config
from nb_api.db_api import DbApi, Write
from nb_api.errors import ObjectExists, ObjectNotFound
from nb_api.testing.db_conformance.base import DbConformanceBase, apply_all
from nb_api.testing.replay import State, apply, state_of, stored
from pubsub_api.core.topics import FilterSet
from pubsub_api.testing.receivers import in_threads

TOPICS = ("a", "a/b", "a/b/c", "ab", "A", "a-b", "a%", "a_", "a[b]", "b", "b/a", "\u00e4/\u00fc", "a/B", "a.b")
FILTERS: tuple[Sequence[str], ...] = (
    ("a",), ("a/#",), ("a/+",), ("+/b",), ("+",), ("#",), ("a/b", "b"), ("a%",), ("a_",), ("a[b]",), ("\u00e4/+",),
    ("a/b/#", "+/a"), ("+/+/c",), ("nothing",), ("a", "a/#"), (),
)  # fmt: skip


SNAPSHOTS_MAX = 50
"""Each is compared with the feed afterwards, which takes longer than the snapshot."""


def write_at_random(db: DbApi, seed: int, operations: int) -> None:
    """Create, set and delete a few keys, so that several writers use the same ones."""
    chance = random.Random(seed)
    for number in range(operations):
        table, key = chance.choice(("a", "b", "c")), f"k{chance.randrange(20)}"
        with contextlib.suppress(ObjectExists, ObjectNotFound):
            match chance.randrange(4):
                case 0 | 1:
                    db.create(table, key, [seed, number], topic=chance.choice(TOPICS))
                case 2:
                    db.set(table, key, [seed, number], topic=chance.choice((None, *TOPICS)))
                case _:
                    db.delete(table, key)


class SnapshotConformance(DbConformanceBase):
    def test_a_snapshot_has_every_object_once(self, db: DbApi) -> None:
        versions = {("t", f"k{i}"): db.create("t", f"k{i}", i, topic=f"topic/{i}") for i in range(10)}
        versions["t", "k3"] = db.set("t", "k3", 33)
        db.delete("t", "k4")
        del versions["t", "k4"]
        with db.snapshot() as snapshot:
            assert snapshot.revision == db.revision()
            state = state_of(snapshot)
        assert {name: held.version for name, held in state.items()} == versions
        assert state["t", "k3"] == ("topic/3", 33, versions["t", "k3"])

    def test_a_snapshot_of_tables(self, db: DbApi) -> None:
        for table in ("a", "A", "ab", "a%", "b"):
            db.create(table, "k", 1, topic="t")
        for tables in (["a"], ["a", "b"], ["a%"], ["nothing"], [], ["a", "a"]):
            with db.snapshot(tables=tables) as snapshot:
                assert {table for table, _ in state_of(snapshot)} == set(tables) - {"nothing"}

    @pytest.mark.parametrize("filters", FILTERS, ids=lambda filters: ",".join(filters) or "none")
    def test_a_snapshot_of_topics_follows_the_matcher_exactly(self, db: DbApi, filters: Sequence[str]) -> None:
        for number, topic in enumerate(TOPICS):
            db.create("t", f"k{number}", None, topic=topic)
        wanted = FilterSet(filters)
        with db.snapshot(topics=filters) as snapshot:
            found = sorted(held.topic for held in state_of(snapshot).values())
        assert found == sorted(topic for topic in TOPICS if wanted.match(topic))

    def test_a_snapshot_of_tables_and_topics_takes_what_is_in_both(self, db: DbApi) -> None:
        for table in ("a", "b"):
            for topic in ("t", "u/v"):
                db.create(table, topic, 1, topic=topic)
        with db.snapshot(tables=["b"], topics=["u/#", "nothing"]) as snapshot:
            assert set(state_of(snapshot)) == {("b", "u/v")}

    def test_an_object_that_changed_its_topic_is_selected_by_the_new_one(self, db: DbApi) -> None:
        db.create("t", "k", 1, topic="old")
        db.set("t", "k", 2, topic="new")
        with db.snapshot(topics=["old"]) as snapshot:
            assert state_of(snapshot) == {}
        with db.snapshot(topics=["new"]) as snapshot:
            assert set(state_of(snapshot)) == {("t", "k")}

    def test_a_large_snapshot_is_complete(self, db: DbApi) -> None:
        threads = 8
        per_thread = self.snapshot_objects // threads

        def fill(thread: int) -> None:
            writes = (
                Write("create", f"table-{thread % 3}", f"{thread}-{number}", {"number": number}, f"t/{number % 7}")
                for number in range(per_thread)
            )
            apply_all(db, writes)

        in_threads(threads, fill)
        with db.snapshot() as snapshot:
            assert snapshot.revision == db.revision()
            state = state_of(snapshot)
        assert len(state) == threads * per_thread
        assert all(held.value == {"number": int(key.partition("-")[2])} for (_, key), held in state.items())
        with db.snapshot(tables=["table-1"], topics=["t/3"]) as snapshot:
            found = set(state_of(snapshot))
        assert found == {name for name, held in state.items() if name[0] == "table-1" and held.topic == "t/3"}

    def test_what_is_written_while_it_is_read_is_not_in_it(self, db: DbApi) -> None:
        count = 2 * config.SNAPSHOT_PORTION + 10
        apply_all(db, (Write("create", "t", f"k{i}", 0, "t") for i in range(count)))
        before = stored(db)
        with db.snapshot() as snapshot:
            iterator = iter(snapshot)
            seen = [next(iterator) for _ in range(5)]
            for number in range(0, count, 50):
                db.set("t", f"k{number}", 1, topic="u")
                db.delete("t", f"k{number + 1}")
                db.create("t", f"a{number}", 1, topic="t")
                db.create("t", f"z{number}", 1, topic="t")
            seen += iterator
        assert state_of(seen) == before
        assert max(held.version for held in before.values()) == snapshot.revision
        assert apply(before, db.changes(snapshot.revision, limit=count)) == stored(db)

    def test_a_snapshot_and_the_changes_after_it_are_the_final_state(self, db: DbApi) -> None:
        stop, taken = threading.Event(), list[tuple[int, State]]()

        def write(seed: int) -> None:
            if seed == 0:
                while not stop.is_set() and len(taken) < SNAPSHOTS_MAX:
                    with db.snapshot() as snapshot:
                        taken.append((snapshot.revision, state_of(snapshot)))
                return
            write_at_random(db, seed, 150)

        def write_then_stop(seed: int) -> None:
            try:
                write(seed)
            finally:
                if seed == 1:
                    stop.set()

        in_threads(4, write_then_stop)
        final, feed = stored(db), db.changes(0, limit=10_000)
        assert apply({}, feed) == final
        assert taken
        for revision, state in taken:
            assert state == apply({}, [change for change in feed if change.revision <= revision])
            assert apply(state, db.changes(revision, limit=10_000)) == final

    def test_a_snapshot_can_be_left_early(self, db: DbApi) -> None:
        for number in range(10):
            db.create("t", f"k{number}", number, topic="t")
        snapshot = db.snapshot()
        next(iter(snapshot))
        snapshot.close()
        snapshot.close()
        unread = db.snapshot()
        unread.close()
        assert db.create("t", "after", 1, topic="t") == db.revision()

    def test_two_snapshots_at_once(self, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")
        with db.snapshot() as first:
            db.set("t", "k", 2)
            with db.snapshot() as second:
                assert second.revision > first.revision
                assert [held.value for held in state_of(second).values()] == [2]
            assert [held.value for held in state_of(first).values()] == [1]
