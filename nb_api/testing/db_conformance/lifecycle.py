"""Opening, closing, and opening again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from nb_api.db_api import DbApi, Write
from nb_api.errors import DbNotFound
from nb_api.loading import build_db, open_db
from nb_api.testing.db_conformance.base import DbConformanceBase, NewUrl
from nb_api.testing.replay import stored
from pubsub_api.errors import Closed
from pubsub_api.testing.receivers import eventually, in_threads

CALLS: dict[str, Callable[[DbApi], object]] = {
    "create": lambda db: db.create("t", "k", 1, topic="t"),
    "set": lambda db: db.set("t", "k", 1),
    "delete": lambda db: db.delete("t", "k"),
    "apply": lambda db: db.apply([Write("delete", "t", "k"), Write("create", "t", "l", 1, "t")]),
    "get": lambda db: db.get("t", "k"),
    "snapshot": lambda db: db.snapshot(),
    "allocate": lambda db: db.allocate("n"),
    "revision": lambda db: db.revision(),
    "changes": lambda db: db.changes(0),
    "wait": lambda db: db.wait(0, timeout_s=60),
    "compact": lambda db: db.compact(keep_changes=0, keep_tombstones_s=0),
    "unpublished": lambda db: db.unpublished(),
    "mark_published": lambda db: db.mark_published([1]),
}


class LifecycleConformance(DbConformanceBase):
    def test_asking_whether_it_exists_makes_nothing(self, db_url: str) -> None:
        with contextlib.closing(build_db(db_url)) as db:
            is_made_by_initialize = not db.exists()
            if is_made_by_initialize:
                with pytest.raises(DbNotFound):
                    open_db(db_url, must_exist=True)
            assert db.exists() is not is_made_by_initialize
        with contextlib.closing(self.open_db(db_url)) as db:
            assert db.exists()
        open_db(db_url, must_exist=True).close()

    def test_initialize_again_changes_nothing(self, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")
        before = stored(db)
        db.initialize()
        assert stored(db) == before

    def test_close_is_idempotent(self, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")
        db.close()
        db.close()

    def test_several_threads_may_close(self, db: DbApi) -> None:
        in_threads(4, lambda _: db.close())

    @pytest.mark.parametrize("name", CALLS)
    def test_a_closed_database_refuses(self, db: DbApi, name: str) -> None:
        db.close()
        with pytest.raises(Closed):
            CALLS[name](db)

    def test_no_thread_is_left_behind(self, db_url: str) -> None:
        with contextlib.closing(self.open_db(db_url)):
            pass  # what a library starts once and keeps for the process is started now
        before = set(threading.enumerate())
        with contextlib.closing(self.open_db(db_url)) as db:
            in_threads(4, lambda number: db.create("t", f"k{number}", 1, topic="t"))
            db.wait(db.revision(), timeout_s=0.01)
        eventually(lambda: set(threading.enumerate()) <= before, "the threads of the database end")

    def test_opening_again_finds_everything(self, db_url: str) -> None:
        with contextlib.closing(self.open_db(db_url)) as db:
            first = db.create("t", "k", {"a": b"1"}, topic="t")
            gone = [db.create("t", "gone", 1, topic="t"), db.delete("t", "gone")]
            db.mark_published([first])
            number = db.allocate("n")
            before, feed = stored(db), db.changes(0)
        with contextlib.closing(self.open_db(db_url)) as db:
            assert stored(db) == before
            assert db.changes(0) == feed
            assert [change.revision for change in db.unpublished()] == gone
            assert db.revision() == gone[-1]
            assert db.allocate("n") == number + 1
            assert db.set("t", "k", 2, expected_version=first) > gone[-1]

    def test_two_databases_know_nothing_of_each_other(self, new_url: NewUrl) -> None:
        with contextlib.closing(self.open_db(new_url())) as one, contextlib.closing(self.open_db(new_url())) as other:
            version = one.create("t", "k", 1, topic="t")
            assert one.allocate("n") == 1
            assert other.revision() == 0
            assert stored(other) == {}
            assert other.unpublished() == []
            assert other.wait(0, timeout_s=0.05) is False
            assert other.allocate("n") == 1
            other.create("t", "k", 2, topic="t")
            assert one.get("t", "k").value == 1
            assert one.revision() == version

    def test_two_objects_of_one_database_share_everything(self, db: DbApi, db_url: str) -> None:
        with contextlib.closing(self.open_db(db_url)) as other:
            version = db.create("t", "k", 1, topic="t")
            assert other.get("t", "k").version == version
            assert other.set("t", "k", 2, expected_version=version) == db.get("t", "k").version
        assert db.get("t", "k").value == 2
