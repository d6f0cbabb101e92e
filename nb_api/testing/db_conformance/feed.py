"""The feed of changes: complete, in order, limited on request, with waiting, and honest about forgotten changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nb_api.db_api import Change, DbApi
from nb_api.errors import ObjectNotFound, RevisionTooOld, RevisionUnknown
from nb_api.testing.db_conformance.base import DbConformanceBase
from nb_api.testing.replay import WAIT_S, stored
from pubsub_api.errors import Closed


def fill(db: DbApi, count: int) -> list[int]:
    return [db.create("t", f"k{number}", number, topic="t") for number in range(count)]


def _expect_unknown(db: DbApi, ahead: int) -> None:
    """`changes` and `wait` refuse a revision that is so far ahead."""
    newest = db.revision()
    with pytest.raises(RevisionUnknown) as caught:
        db.changes(newest + ahead)
    assert caught.value.newest_revision == newest
    with pytest.raises(RevisionUnknown):
        db.wait(newest + ahead, timeout_s=10 * WAIT_S)


class FeedConformance(DbConformanceBase):
    def test_a_change_says_what_happened(self, db: DbApi) -> None:
        created = db.create("port", "p1", {"a": 1}, topic="t")
        changed = db.set("port", "p1", {"a": 2})
        deleted = db.delete("port", "p1")
        assert db.changes(0) == [
            Change(created, "create", "port", "p1", "t", {"a": 1}),
            Change(changed, "set", "port", "p1", "t", {"a": 2}),
            Change(deleted, "delete", "port", "p1", "t"),
        ]

    def test_a_change_of_topic_says_which_one_was_left(self, db: DbApi) -> None:
        db.create("port", "p1", 1, topic="old")
        db.set("port", "p1", 2, topic="new")
        db.set("port", "p1", 3, topic="new")
        db.delete("port", "p1")
        assert [(change.topic, change.left_topic) for change in db.changes(0)] == [
            ("old", None), ("new", "old"), ("new", None), ("new", None),
        ]  # fmt: skip
        assert db.unpublished()[1].left_topic == "old"

    def test_changes_after_a_revision(self, db: DbApi) -> None:
        versions = fill(db, 5)
        for position, version in enumerate(versions):
            assert [change.revision for change in db.changes(version)] == versions[position + 1 :]

    def test_a_revision_that_was_never_reached_is_unknown(self, db: DbApi) -> None:
        """The reader has seen this revision, so the database has lost changes; no result may hide that."""
        _expect_unknown(db, 1)
        fill(db, 3)
        _expect_unknown(db, 1)
        _expect_unknown(db, 1_000_000)
        db.mark_published([change.revision for change in db.unpublished()])
        db.compact(keep_changes=0, keep_tombstones_s=0)
        _expect_unknown(db, 1)

    def test_the_limit_is_kept(self, db: DbApi) -> None:
        versions = fill(db, 7)
        assert [change.revision for change in db.changes(0, limit=3)] == versions[:3]
        assert [change.revision for change in db.changes(versions[2], limit=1)] == versions[3:4]
        assert [change.revision for change in db.changes(0, limit=7)] == versions

    def test_wait_returns_at_once_when_there_is_something(self, db: DbApi) -> None:
        first, _ = fill(db, 2)
        assert db.wait(0, timeout_s=WAIT_S) is True
        assert db.wait(first, timeout_s=0) is True

    def test_wait_returns_false_when_the_time_is_over(self, db: DbApi) -> None:
        version = fill(db, 1)[0]
        assert db.wait(version, timeout_s=0) is False
        assert db.wait(version, timeout_s=0.05) is False

    def test_wait_is_woken_by_a_change(self, db: DbApi) -> None:
        revision = fill(db, 1)[0]
        for number in range(20):
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(db.wait, revision, timeout_s=WAIT_S)
                written = db.set("t", "k0", number)
                assert waiting.result(WAIT_S) is True
            assert [change.revision for change in db.changes(revision)] == [written]
            revision = written

    def test_many_threads_can_wait(self, db: DbApi) -> None:
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(db.wait, 0, timeout_s=WAIT_S) for _ in range(8)]
            fill(db, 1)
            assert [one.result(WAIT_S) for one in waiting] == [True] * 8

    def test_close_ends_a_wait(self, db_url: str) -> None:
        db = self.open_db(db_url)
        started, results = threading.Event(), list[bool]()

        def wait() -> None:
            started.set()
            try:
                results.append(db.wait(0, timeout_s=10 * WAIT_S))
            except Closed:  # it had not begun yet
                results.append(False)

        thread = threading.Thread(target=wait)
        thread.start()
        assert started.wait(WAIT_S)
        db.close()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert results == [False]

    def test_compaction_forgets_the_oldest_changes(self, db: DbApi) -> None:
        versions = fill(db, 10)
        db.mark_published(versions)
        assert db.compact(keep_changes=3, keep_tombstones_s=3600) == 7
        assert [change.revision for change in db.changes(versions[6])] == versions[7:]
        with pytest.raises(RevisionTooOld) as caught:
            db.changes(versions[5])
        oldest = caught.value.oldest_revision
        assert [change.revision for change in db.changes(oldest)] == versions[7:]
        with pytest.raises(RevisionTooOld):
            db.changes(0)

    def test_compaction_leaves_objects_and_revisions_alone(self, db: DbApi) -> None:
        versions = fill(db, 5)
        before = stored(db)
        db.mark_published(versions)
        assert db.compact(keep_changes=0, keep_tombstones_s=0) == 5
        assert stored(db) == before
        assert db.revision() == versions[-1]
        assert db.changes(versions[-1]) == []
        assert db.wait(versions[-1], timeout_s=0) is False
        later = db.set("t", "k0", "later")
        assert later > versions[-1]
        assert [change.revision for change in db.changes(versions[-1])] == [later]

    def test_compacting_again_finds_nothing(self, db: DbApi) -> None:
        db.mark_published(fill(db, 5))
        assert db.compact(keep_changes=5, keep_tombstones_s=0) == 0
        assert db.compact(keep_changes=2, keep_tombstones_s=0) == 3
        assert db.compact(keep_changes=2, keep_tombstones_s=0) == 0
        assert db.compact(keep_changes=100, keep_tombstones_s=0) == 0
        assert len(db.changes(db.revision())) == 0

    def test_an_empty_database_can_be_compacted(self, db: DbApi) -> None:
        assert db.compact(keep_changes=0, keep_tombstones_s=0) == 0
        assert db.changes(0) == []

    def test_tombstones_expire(self, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")
        gone = db.delete("t", "k")
        db.compact(keep_changes=0, keep_tombstones_s=3600)
        assert self._tombstone(db) == gone
        db.compact(keep_changes=0, keep_tombstones_s=0)
        assert self._tombstone(db) is None
        assert db.create("t", "k", 2, topic="t") > gone

    def test_what_was_created_again_does_not_expire(self, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")
        db.delete("t", "k")
        again = db.create("t", "k", 2, topic="t")
        db.compact(keep_changes=0, keep_tombstones_s=0)
        assert db.get("t", "k").version == again

    @staticmethod
    def _tombstone(db: DbApi) -> int | None:
        with pytest.raises(ObjectNotFound) as caught:
            db.get("t", "k")
        return caught.value.deleted_version
