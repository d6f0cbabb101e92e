"""Several writes in one transaction: all or nothing, together in the feed, and refused as single writes are."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from nb_api.config import transaction_bytes_max
from nb_api.db_api import Change, DbApi, DbObject, Write
from nb_api.errors import DbError, InvalidObject, ObjectExists, ObjectNotFound, VersionConflict
from nb_api.testing.db_conformance.base import DbConformanceBase
from nb_api.testing.replay import WAIT_S, apply, follow, stored
from pubsub_api.errors import HeliographError, InvalidTopic, LimitReached, UsageError
from pubsub_api.testing.receivers import in_threads


def creates(count: int, table: str = "t", value: Any = 0) -> list[Write]:
    return [Write("create", table, f"k{number}", value, "t") for number in range(count)]


REFUSED: dict[str, tuple[Write, type[DbError]]] = {
    "exists": (Write("create", "t", "there", 1, "t"), ObjectExists),
    "set-missing": (Write("set", "t", "missing", 1), ObjectNotFound),
    "delete-missing": (Write("delete", "t", "missing"), ObjectNotFound),
    "delete-deleted": (Write("delete", "t", "gone"), ObjectNotFound),
    "set-conflict": (Write("set", "t", "there", 1, expected_version=0), VersionConflict),
    "delete-conflict": (Write("delete", "t", "there", expected_version=0), VersionConflict),
}

BAD: dict[str, tuple[Write, type[HeliographError]]] = {
    "action": (Write("replace", "t", "k", 1, "t"), UsageError),  # type: ignore[arg-type]
    "key": (Write("create", "t", "", 1, "t"), InvalidObject),
    "no-topic": (Write("create", "t", "k", 1), InvalidTopic),
    "create-with-version": (Write("create", "t", "k", 1, "t", 7), UsageError),
    "delete-with-value": (Write("delete", "t", "k", 1), UsageError),
    "delete-with-topic": (Write("delete", "t", "k", topic="t"), UsageError),
    "value": (Write("set", "t", "k", object()), InvalidObject),
    "version": (Write("set", "t", "k", 1, expected_version=-1), UsageError),
    "twice": (Write("set", "t", "there", 2), UsageError),
}


class TransactionConformance(DbConformanceBase):
    def test_writes_are_done_together_in_order(self, db: DbApi) -> None:
        old = [db.create("t", "changed", 1, topic="old"), db.create("u", "deleted", 1, topic="t")]
        versions = db.apply(
            [
                Write("create", "t", "new", {"a": 1}, "t"),
                Write("set", "t", "changed", 2, "new", old[0]),
                Write("delete", "u", "deleted", expected_version=old[1]),
            ]
        )
        assert versions == sorted(set(versions))
        assert versions[0] > old[1]
        assert db.revision() == versions[-1]
        expected = [
            Change(versions[0], "create", "t", "new", "t", {"a": 1}),
            Change(versions[1], "set", "t", "changed", "new", 2, "old"),
            Change(versions[2], "delete", "u", "deleted", "t"),
        ]
        assert db.changes(old[1]) == expected
        assert db.unpublished()[2:] == expected
        assert db.get("t", "changed") == DbObject("t", "changed", "new", 2, versions[1])
        assert {name: held.version for name, held in stored(db).items()} == {
            ("t", "new"): versions[0], ("t", "changed"): versions[1],
        }  # fmt: skip

    def test_the_versions_can_be_expected_afterwards(self, db: DbApi) -> None:
        versions = db.apply(creates(5))
        again = db.apply([Write("set", "t", f"k{i}", 1, expected_version=versions[i]) for i in range(5)])
        gone = db.apply([Write("delete", "t", f"k{i}", expected_version=again[i]) for i in reversed(range(5))])
        assert [change.revision for change in db.changes(0)] == [*versions, *again, *gone]
        with pytest.raises(ObjectNotFound) as caught:
            db.get("t", "k3")
        assert caught.value.deleted_version == gone[1]

    def test_nothing_is_nothing(self, db: DbApi) -> None:
        assert db.apply([]) == []
        assert db.revision() == 0

    @pytest.mark.parametrize("position", [0, 2, 4])
    @pytest.mark.parametrize("name", REFUSED)
    def test_one_refusal_refuses_all(self, db: DbApi, name: str, position: int) -> None:
        db.create("t", "there", 0, topic="t")
        db.create("t", "gone", 0, topic="t")
        db.delete("t", "gone")
        before, revision, feed = stored(db), db.revision(), db.changes(0)
        writes = creates(4)
        writes.insert(position, REFUSED[name][0])
        with pytest.raises(REFUSED[name][1], match=rf"\[{position}\].*{REFUSED[name][0].key}") as caught:
            db.apply(writes)
        assert caught.value.position == position
        assert (stored(db), db.revision(), db.changes(0), db.unpublished()) == (before, revision, feed, feed)
        assert db.create("t", "k0", 1, topic="t") > revision

    @pytest.mark.parametrize("name", BAD)
    def test_what_may_not_be_is_refused_before_anything_happens(self, db: DbApi, name: str) -> None:
        write, error = BAD[name]
        with pytest.raises(error, match=r"writes\[1\]"):
            db.apply([Write("create", "t", "there", 1, "t"), write])
        assert db.revision() == 0

    def test_the_largest_transaction(self, db: DbApi) -> None:
        with pytest.raises(LimitReached, match=str(db.writes_max)):
            db.apply(creates(db.writes_max + 1))
        assert db.revision() == 0
        versions = db.apply(creates(db.writes_max))
        versions += db.apply([Write("set", "t", f"k{i}", 1, "u") for i in range(db.writes_max)])
        versions += db.apply([Write("delete", "t", f"k{i}") for i in range(db.writes_max)])
        versions += db.apply(creates(db.writes_max))
        assert [change.revision for change in db.changes(0, limit=10_000)] == versions == sorted(set(versions))

    def test_values_that_are_too_large_together_are_refused(self, db: DbApi) -> None:
        value = bytes(db.conf.db.value_bytes_max // 2)
        count = transaction_bytes_max(db.conf) // len(value) + 1
        with pytest.raises(LimitReached, match="value_bytes_max"):
            db.apply(creates(count, value=value))
        assert db.revision() == 0

    def test_the_feed_can_be_read_from_the_middle_of_a_transaction(self, db: DbApi) -> None:
        versions = [*db.apply(creates(5, "a")), *db.apply(creates(4, "b")), db.create("c", "k", 0, topic="t")]
        for position, version in enumerate(versions):
            assert [change.revision for change in db.changes(version)] == versions[position + 1 :]
            assert db.wait(version, timeout_s=0) is (position + 1 < len(versions))
        for limit in range(1, 11):
            seen = [change.revision for change in follow(db, lambda seen: len(seen) == 10, limit=limit)]
            assert seen == versions

    def test_compaction_counts_changes_and_not_transactions(self, db: DbApi) -> None:
        db.with_outbox = False
        versions = [*db.apply(creates(3, "a")), db.create("b", "k", 0, topic="t"), *db.apply(creates(5, "c"))]
        versions += db.apply(creates(2, "d"))
        assert db.compact(keep_changes=7, keep_tombstones_s=0) == 4
        assert [change.revision for change in db.changes(versions[3])] == versions[4:]
        lost = db.compact(keep_changes=4, keep_tombstones_s=0)
        assert lost in (0, 3)  # a database may keep the changes of a transaction together
        assert [change.revision for change in db.changes(versions[3 + lost])] == versions[4 + lost :]
        assert db.compact(keep_changes=0, keep_tombstones_s=0) == 7 - lost
        assert db.changes(versions[-1]) == []

    def test_the_outbox_has_each_write_by_itself(self, db: DbApi) -> None:
        versions = db.apply(creates(4))
        db.mark_published([versions[1], versions[2]])
        assert [change.revision for change in db.unpublished()] == [versions[0], versions[3]]
        db.with_outbox = False
        db.apply([Write("set", "t", "k0", 1), Write("set", "t", "k1", 1)])
        assert [change.revision for change in db.unpublished()] == [versions[0], versions[3]]

    def test_no_reader_sees_half_a_transaction(self, db: DbApi) -> None:
        """The two objects are always changed together, so they are equal in every snapshot."""
        stop = threading.Event()

        def work(number: int) -> None:
            if number == 0:
                while not stop.is_set():
                    with db.snapshot() as snapshot:
                        values = {found.key: found.value for found in snapshot}
                    assert values.get("a") == values.get("b"), values
                return
            try:
                for turn in range(30):
                    _change_both(db, [number, turn])
            finally:
                stop.set()

        in_threads(4, work)
        feed = db.changes(0, limit=10_000)
        assert apply({}, feed) == stored(db)
        pairs = list(itertools.zip_longest(feed[::2], feed[1::2]))
        assert len(pairs) == 3 * 30
        assert all((a.key, b.key, a.value) == ("a", "b", b.value) for a, b in pairs)

    def test_of_transactions_that_expect_the_same_one_wins(self, db: DbApi) -> None:
        versions: Sequence[int] = db.apply(creates(3))
        for turn in range(5):
            barrier = threading.Barrier(4)

            def attempt(
                number: int, known: Sequence[int] = versions, turn: int = turn, barrier: threading.Barrier = barrier
            ) -> list[int] | None:
                mine = [Write("set", "t", f"k{i}", [turn, number], expected_version=known[i]) for i in range(3)]
                barrier.wait(WAIT_S)
                try:
                    return db.apply(mine if number % 2 else mine[::-1])
                except VersionConflict:
                    return None

            won = [new for new in in_threads(4, attempt) if new is not None]
            assert len(won) == 1
            versions = [db.get("t", f"k{i}").version for i in range(3)]
            assert sorted(versions) == won[0]
            assert len({str(db.get("t", f"k{i}").value) for i in range(3)}) == 1


def _change_both(db: DbApi, value: Any) -> None:
    """Create both or change both, also while other writers do the same."""
    while True:
        for action in ("set", "create"):
            try:
                topic = "t" if action == "create" else None
                db.apply([Write(action, "t", key, value, topic) for key in ("a", "b")])
            except (ObjectNotFound, ObjectExists):
                continue
            return
