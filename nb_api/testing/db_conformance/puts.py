"""Create or replace in one call: `put`, and what `commit` returns for each write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from nb_api.core.writes import committed_changes
from nb_api.db_api import Change, DbApi, DbObject, Write, Written
from nb_api.errors import ObjectExists, ObjectNotFound, VersionConflict
from nb_api.testing.db_conformance.base import DbConformanceBase
from nb_api.testing.replay import apply, stored
from pubsub_api.errors import InvalidTopic
from pubsub_api.testing.receivers import in_threads


def commit(db: DbApi, *writes: Write) -> list[Written]:
    return db.commit(db.check(writes))


class PutConformance(DbConformanceBase):
    @pytest.fixture
    def other(self, db_url: str, db: DbApi) -> Iterator[DbApi]:
        """The same database, as another process has it."""
        del db  # it is there
        with contextlib.closing(self.open_db(db_url)) as other:
            yield other

    def test_a_put_creates_what_is_not_there(self, db: DbApi) -> None:
        [written] = commit(db, Write("put", "port", "p1", {"mac": 1}, "t"))
        assert written == Written(db.revision(), "create", "t")
        assert db.get("port", "p1") == DbObject("port", "p1", "t", {"mac": 1}, written.version)
        assert db.changes(0) == db.unpublished() == [Change(written.version, "create", "port", "p1", "t", {"mac": 1})]

    def test_a_put_replaces_what_is_there(self, db: DbApi) -> None:
        first = db.create("port", "p1", {"a": 1}, topic="t")
        [written] = commit(db, Write("put", "port", "p1", {"b": 2}, "t"))
        assert written == Written(db.revision(), "set", "t")
        assert written.version > first
        assert db.get("port", "p1") == DbObject("port", "p1", "t", {"b": 2}, written.version)
        assert db.changes(first) == [Change(written.version, "set", "port", "p1", "t", {"b": 2})]

    def test_a_put_can_move_an_object_to_another_topic(self, db: DbApi) -> None:
        first = db.put("port", "p1", 1, topic="t")
        [written] = commit(db, Write("put", "port", "p1", 1, "u"))
        assert written == Written(db.revision(), "set", "u", "t")
        assert db.get("port", "p1").topic == "u"
        assert db.changes(first) == [Change(written.version, "set", "port", "p1", "u", 1, "t")]

    def test_a_put_that_changes_nothing_writes_nothing(self, db: DbApi) -> None:
        first = db.put("port", "p1", {"a": [1, None]}, topic="t")
        [written] = commit(db, Write("put", "port", "p1", {"a": [1, None]}, "t"))
        assert written == Written(first, None, "t")
        assert db.put("port", "p1", {"a": [1, None]}, topic="t") == first
        assert db.revision() == first
        assert [change.revision for change in db.changes(0)] == [first]
        assert [change.revision for change in db.unpublished()] == [first]
        assert db.get("port", "p1").version == first

    def test_values_are_equal_only_when_they_are_equal_as_msgpack(self, db: DbApi) -> None:
        values: list[object] = [1, True, 1.0, "1", b"1", None, []]
        versions = [db.put("port", "p1", value, topic="t") for value in values]
        assert versions == sorted(set(versions))
        found = [change.value for change in db.changes(0)]
        assert [(type(value), value) for value in found] == [(type(value), value) for value in values]

    def test_a_put_after_another_writer_sees_what_that_has_written(self, db: DbApi, other: DbApi) -> None:
        db.put("port", "p1", 1, topic="t")
        other.put("port", "p1", 2, topic="u")
        [written] = commit(db, Write("put", "port", "p1", 1, "t"))
        assert (written.action, written.topic, written.left_topic) == ("set", "t", "u")
        gone = other.delete("port", "p1")
        [again] = commit(db, Write("put", "port", "p1", 1, "t"))
        assert (again.action, again.topic, again.left_topic) == ("create", "t", None)
        assert again.version > gone
        other.put("port", "p1", 1, topic="t")
        assert db.put("port", "p1", 1, topic="t") == again.version

    def test_a_put_after_a_delete_creates(self, db: DbApi) -> None:
        db.create("port", "p1", 1, topic="t")
        gone = db.delete("port", "p1")
        [written] = commit(db, Write("put", "port", "p1", 1, "u"))
        assert written == Written(db.revision(), "create", "u")
        assert written.version > gone
        assert db.get("port", "p1") == DbObject("port", "p1", "u", 1, written.version)
        assert db.compact(keep_changes=100, keep_tombstones_s=0) == 0
        assert db.get("port", "p1").version == written.version

    def test_a_put_is_refused_only_by_an_expected_version(self, db: DbApi) -> None:
        first = db.put("port", "p1", 1, topic="t")
        second = db.put("port", "p1", 2, topic="t", expected_version=first)
        with pytest.raises(VersionConflict, match="p1"):
            db.put("port", "p1", 3, topic="t", expected_version=first)
        with pytest.raises(VersionConflict, match="p1"):
            db.put("port", "p1", 2, topic="t", expected_version=first)  # also when it would change nothing
        assert db.put("port", "p1", 2, topic="t", expected_version=second) == second
        gone = db.delete("port", "p1")
        for key, expected in (("p1", second), ("p1", gone), ("p2", first)):
            with pytest.raises(ObjectNotFound, match=key):
                db.put("port", key, 3, topic="t", expected_version=expected)
        assert db.revision() == gone

    def test_a_put_needs_a_topic(self, db: DbApi) -> None:
        with pytest.raises(InvalidTopic):
            db.apply([Write("put", "port", "p1", 1)])
        assert db.revision() == 0

    def test_a_set_that_asks_for_it_writes_nothing_when_nothing_changes(self, db: DbApi) -> None:
        first = db.create("port", "p1", 1, topic="t")
        for topic in (None, "t"):
            assert commit(db, Write("set", "port", "p1", 1, topic, if_changed=True)) == [Written(first, None, "t")]
        with pytest.raises(VersionConflict):
            db.apply([Write("set", "port", "p1", 1, expected_version=first + 1, if_changed=True)])
        assert db.revision() == first
        [moved] = commit(db, Write("set", "port", "p1", 1, "u", if_changed=True))
        assert moved == Written(db.revision(), "set", "u", "t")
        [changed] = commit(db, Write("set", "port", "p1", 2, if_changed=True))
        assert changed == Written(db.revision(), "set", "u")
        db.delete("port", "p1")
        with pytest.raises(ObjectNotFound):
            db.apply([Write("set", "port", "p1", 2, if_changed=True)])

    def test_commit_tells_all_that_the_feed_shows(self, db: DbApi) -> None:
        for key in ("kept", "changed", "moved", "deleted", "gone"):
            db.create("t", key, 1, topic="old")
        begun = db.delete("t", "gone")
        writes = db.check(
            [
                Write("put", "t", "kept", 1, "old"),
                Write("put", "t", "new", 1, "old"),
                Write("put", "t", "gone", 1, "old"),
                Write("set", "t", "changed", 2),
                Write("put", "t", "moved", 2, "new"),
                Write("delete", "t", "deleted"),
                Write("create", "t", "created", {"a": 1}, "new"),
            ]
        )
        written = db.commit(writes)
        assert [(one.action, one.topic, one.left_topic) for one in written] == [
            (None, "old", None), ("create", "old", None), ("create", "old", None), ("set", "old", None),
            ("set", "new", "old"), ("delete", "old", None), ("create", "new", None),
        ]  # fmt: skip
        feed = db.changes(begun)
        told = committed_changes(writes, written)
        assert [(one.revision, one.action, one.key, one.topic, one.left_topic) for one in told] == [
            (one.revision, one.action, one.key, one.topic, one.left_topic) for one in feed
        ]
        assert [None if write.value is None else bytes(write.value) for write in writes[1:]] == [
            None if one.value is None else bytes(one.value) for one in told
        ]
        assert written[0].version < begun < written[1].version
        assert apply({}, db.changes(0)) == stored(db)

    def test_a_transaction_that_changes_nothing_leaves_no_trace(self, db: DbApi) -> None:
        versions = db.apply([Write("put", "t", f"k{number}", number, "t") for number in range(5)])
        assert db.apply([Write("put", "t", f"k{number}", number, "t") for number in range(5)]) == versions
        assert db.revision() == versions[-1]
        assert [change.revision for change in db.changes(0)] == versions

    @pytest.mark.parametrize("position", [0, 1, 3])
    def test_one_refusal_refuses_the_puts_beside_it(self, db: DbApi, position: int) -> None:
        there = db.put("t", "there", 1, topic="t")
        writes = [Write("put", "t", f"k{number}", 1, "t") for number in range(3)]
        for refused, error in (
            (Write("create", "t", "there", 1, "t"), ObjectExists),
            (Write("put", "t", "there", 2, "t", there + 1), VersionConflict),
            (Write("put", "t", "missing", 2, "t", there), ObjectNotFound),
        ):
            with pytest.raises(error, match=rf"\[{position}\].*{refused.key}") as caught:
                db.apply([*writes[:position], refused, *writes[position:]])
            assert caught.value.position == position
        assert db.revision() == there
        assert len(stored(db)) == 1

    def test_many_who_put_at_once_lose_nothing(self, db: DbApi) -> None:
        """Each finds its own change in the feed, once, and what each left agrees with what the one before it put."""

        def work(number: int) -> list[Written]:
            key, own = f"k{number % 16}", f"own{number}"
            return commit(
                db, Write("put", "t", key, number, f"t{number % 5}"), Write("put", "t", own, number, "t")
            ) + commit(db, Write("put", "t", key, -1 - number, "t"))

        done = [written for result in in_threads(64, work) for written in result]
        feed = db.changes(0, limit=10_000)
        assert sorted(one.version for one in done) == [change.revision for change in feed]
        told = {one.version: (one.action, one.topic, one.left_topic) for one in done}
        topics: dict[str, str] = {}
        for change in feed:
            before = topics.get(change.key)
            expected = "create" if before is None else "set"
            left = None if before in (None, change.topic) else before
            assert (change.action, change.left_topic) == (expected, left)
            assert told[change.revision] == (expected, change.topic, left)
            topics[change.key] = change.topic
        assert apply({}, feed) == stored(db)
