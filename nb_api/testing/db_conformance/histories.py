"""The history: a revision that was read is part of it, or is known to be lost, however high the revision is now."""

from __future__ import annotations

import contextlib

import pytest

from nb_api.db_api import DbApi, Write
from nb_api.errors import RevisionTooOld, RevisionUnknown
from nb_api.revisions import HistoryCheck
from nb_api.testing.db_conformance.base import DbConformanceBase, NewUrl
from nb_api.testing.db_conformance.feed import fill
from nb_api.testing.replay import WAIT_S


def _follow(db: DbApi, seen: int) -> None:
    while db.wait(seen, timeout_s=WAIT_S):
        db.changes(seen)


class HistoryConformance(DbConformanceBase):
    def test_all_that_was_given_is_part_of_the_history(self, db: DbApi) -> None:
        assert db.check_history([]) == HistoryCheck(0, 0, None)
        versions = fill(db, 5)
        together = db.apply([Write("set", "t", f"k{number}", "new", None) for number in range(5)])
        assert db.check_history([*versions, *together]) == HistoryCheck(together[-1], 0, None)
        for position, version in enumerate(together):  # also from within a transaction
            assert [change.revision for change in db.changes(version)] == together[position + 1 :]

    def test_two_databases_never_give_the_same_revision(self, db: DbApi, new_url: NewUrl) -> None:
        """Nor do two histories of one database: the same writes get other revisions, and each history knows its own."""
        versions = fill(db, 8)
        with contextlib.closing(self.open_db(new_url())) as other:
            others = fill(other, 8)
            assert not set(versions) & set(others)
            assert other.check_history([others[0], others[-1]]).lost is None
            assert other.check_history(versions).lost == min(versions)
            for foreign in versions:
                assert other.check_history([others[0], foreign]).lost == foreign
                with pytest.raises(RevisionUnknown):
                    other.changes(foreign)

    def test_a_revision_of_another_history_is_not_marked_and_not_found(self, db: DbApi, new_url: NewUrl) -> None:
        versions = fill(db, 6)
        with contextlib.closing(self.open_db(new_url())) as other:
            foreign = fill(other, 6)
        assert db.changes_of(foreign) == []
        db.mark_published(foreign)
        assert [change.revision for change in db.unpublished()] == versions

    def test_changes_are_found_by_their_revisions(self, db: DbApi) -> None:
        versions = fill(db, 6)
        wanted = [versions[4], versions[1], versions[5] + 1]
        assert [change.key for change in db.changes_of(wanted)] == ["k1", "k4"]
        assert db.changes_of([]) == []

    def test_what_is_compacted_is_neither_known_nor_lost(self, db: DbApi) -> None:
        versions = fill(db, 10)
        db.mark_published(versions)
        db.compact(keep_changes=3, keep_tombstones_s=3600)
        assert db.check_history(versions) == HistoryCheck(versions[-1], versions[6], None)
        assert [change.revision for change in db.changes(versions[6])] == versions[7:]
        with pytest.raises(RevisionTooOld):
            db.changes(versions[5])

    def test_a_wait_in_another_history_ends(self, db: DbApi, new_url: NewUrl) -> None:
        """`wait` may return True; `changes` then raises, because it is another history."""
        seen = fill(db, 1)[0]
        with contextlib.closing(self.open_db(new_url())) as other:
            for count in (0, 50):
                fill(other, count)
                with pytest.raises(RevisionUnknown):
                    _follow(other, seen)
