"""The outbox: it has every change from the commit until the publication is confirmed."""

from __future__ import annotations

from nb_api.db_api import Change, DbApi, Write
from nb_api.testing.db_conformance.base import DbConformanceBase, apply_all
from nb_api.testing.db_conformance.feed import fill
from pubsub_api.testing.receivers import eventually


class OutboxConformance(DbConformanceBase):
    def test_changes_wait_in_order_until_they_are_published(self, db: DbApi) -> None:
        created = db.create("t", "k", {"a": 1}, topic="x")
        changed = db.set("t", "k", {"a": 2})
        deleted = db.delete("t", "k")
        assert db.unpublished() == [
            Change(created, "create", "t", "k", "x", {"a": 1}),
            Change(changed, "set", "t", "k", "x", {"a": 2}),
            Change(deleted, "delete", "t", "k", "x"),
        ]
        assert db.unpublished() == db.changes(0)

    def test_what_is_published_leaves(self, db: DbApi) -> None:
        versions = fill(db, 5)
        db.mark_published([versions[3], versions[0]])
        assert [change.revision for change in db.unpublished()] == [versions[1], versions[2], versions[4]]
        assert [change.revision for change in db.changes(0)] == versions

    def test_marking_is_idempotent_and_ignores_what_it_does_not_know(self, db: DbApi) -> None:
        versions = fill(db, 3)
        db.mark_published([])
        db.mark_published([versions[1]])
        db.mark_published([versions[1], versions[1], versions[-1] + 1000])
        assert [change.revision for change in db.unpublished()] == [versions[0], versions[2]]
        later = db.create("t", "later", 1, topic="t")
        assert [change.revision for change in db.unpublished()] == [versions[0], versions[2], later]

    def test_many_can_be_marked_at_once(self, db: DbApi) -> None:
        versions = apply_all(db, (Write("create", "t", f"k{number}", number, "t") for number in range(1500)))
        assert [change.revision for change in db.unpublished(limit=2000)] == versions
        db.mark_published(versions)
        assert db.unpublished() == []

    def test_the_limit_of_unpublished_changes_is_kept(self, db: DbApi) -> None:
        versions = fill(db, 5)
        assert [change.revision for change in db.unpublished(limit=2)] == versions[:2]

    def test_unpublished_changes_can_be_read_one_portion_after_the_other(self, db: DbApi) -> None:
        versions = db.apply([Write("create", "t", f"x{number}", number, "t") for number in range(5)]) + fill(db, 4)
        db.mark_published(versions[1:2])
        read: list[int] = []
        while portion := db.unpublished(after_revision=read[-1] if read else 0, limit=2):
            assert len(portion) <= 2
            read += [change.revision for change in portion]
        assert read == [versions[0], *versions[2:]]

    def test_young_changes_are_left_to_their_writer(self, db: DbApi) -> None:
        versions = fill(db, 2)
        assert db.unpublished(older_than_s=3600) == []
        eventually(lambda: len(db.unpublished(older_than_s=0.2)) == 2, "the changes grow old")
        assert [change.revision for change in db.unpublished()] == versions

    def test_compaction_keeps_what_is_not_published(self, db: DbApi) -> None:
        versions = fill(db, 6)
        db.mark_published([versions[0], versions[1], versions[3], versions[5]])
        db.compact(keep_changes=0, keep_tombstones_s=0)
        assert db.unpublished() == [
            Change(versions[2], "create", "t", "k2", "t", 2),
            Change(versions[4], "create", "t", "k4", "t", 4),
        ]
        db.mark_published([versions[2], versions[4]])
        assert db.unpublished() == []

    def test_what_is_no_news_for_others_does_not_wait(self, db: DbApi) -> None:
        """Leases are renewed all the time; a publisher must not see them."""
        db.apply([Write("create", "heliograph.leases", "k", 1, "t"), Write("create", "t", "k", 1, "t")])
        db.set("heliograph.leases", "k", 2)
        db.delete("heliograph.leases", "k")
        assert [change.table for change in db.unpublished()] == ["t"]
        assert len(db.changes(0)) == 4

    def test_without_an_outbox_nothing_waits(self, db: DbApi) -> None:
        db.with_outbox = False
        versions = [db.create("t", "k", 1, topic="t"), db.set("t", "k", 2), db.delete("t", "k")]
        assert db.unpublished() == []
        assert [change.revision for change in db.changes(0)] == versions
        db.with_outbox = True
        assert [db.create("t", "k", 1, topic="t")] == [change.revision for change in db.unpublished()]
