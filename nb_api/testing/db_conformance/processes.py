"""Several processes on one database: they see each other's changes, and one that is killed loses no commit."""

from __future__ import annotations

import contextlib
import functools
import threading
from concurrent.futures import ThreadPoolExecutor

from nb_api.db_api import Change, DbApi
from nb_api.testing.db_child import WRITES_PER_TRANSACTION, increment, writer_process
from nb_api.testing.db_conformance.base import DbConformanceBase
from nb_api.testing.replay import WAIT_S, follow, stored
from pubsub_api.testing.conformance.forks import in_forked_child
from pubsub_api.testing.receivers import eventually, in_threads


class ProcessConformance(DbConformanceBase):
    def test_processes_see_each_other(self, db: DbApi, db_url: str) -> None:
        mine = db.create("t", "mine", 1, topic="t")
        with writer_process(db_url) as child:
            child.receive()
            theirs = child.ask(create="t", prefix="theirs", count=1)["versions"]
        assert db.get("t", "theirs0").version == theirs[0] > mine
        assert [change.revision for change in db.changes(0)] == [mine, *theirs]

    def test_many_can_open_a_new_database_at_once(self, db_url: str) -> None:
        with writer_process(db_url) as first, writer_process(db_url) as second:

            def open_and_write(number: int) -> int:
                with contextlib.closing(self.open_db(db_url)) as db:
                    return db.create("t", f"mine{number}", number, topic="t")

            versions = in_threads(4, open_and_write)
            for name, child in (("first", first), ("second", second)):
                child.receive()
                versions += child.ask(create="t", prefix=name, count=1)["versions"]
        with contextlib.closing(self.open_db(db_url)) as db:
            assert sorted(versions) == [change.revision for change in db.changes(0)]

    def test_wait_is_woken_by_another_process(self, db: DbApi, db_url: str) -> None:
        with writer_process(db_url) as child, ThreadPoolExecutor(1) as pool:
            child.receive()
            waiting = pool.submit(db.wait, 0, timeout_s=WAIT_S)
            child.ask(create="t", prefix="k", count=1)
            assert waiting.result(WAIT_S) is True

    def test_a_follower_misses_nothing_of_threads_and_processes(self, db: DbApi, db_url: str) -> None:
        threads, each = 4, 100
        with writer_process(db_url) as first, writer_process(db_url) as second:
            first.receive()
            second.receive()

            def work(number: int) -> list[int]:
                if number < threads:
                    return [db.create(f"t{number}", f"k{i}", i, topic="t") for i in range(each)]
                child, prefix = ((first, "first"), (second, "second"))[number - threads]
                versions: list[int] = child.ask(create="p", prefix=prefix, count=each)["versions"]
                return versions

            with ThreadPoolExecutor(1) as pool:
                total = (threads + 2) * each
                following = pool.submit(follow, db, lambda seen: len(seen) >= total)
                written = in_threads(threads + 2, work)
                seen: list[Change] = following.result(2 * WAIT_S)
        assert [change.revision for change in seen] == sorted(version for part in written for version in part)
        assert db.changes(0) == seen

    def test_no_update_is_lost_between_processes(self, db: DbApi, db_url: str) -> None:
        db.create("t", "k", 0, topic="t")
        with writer_process(db_url) as first, writer_process(db_url) as second, ThreadPoolExecutor(2) as pool:
            for child in (first, second):
                child.receive()
            asked = [pool.submit(child.ask, increment=["t", "k"], count=50) for child in (first, second)]
            for _ in range(50):
                increment(db, "t", "k")
            assert [one.result(2 * WAIT_S) for one in asked] == [{"done": 50}] * 2
        assert db.get("t", "k").value == 150

    def test_a_counter_never_gives_a_number_twice_between_processes(self, db: DbApi, db_url: str) -> None:
        with writer_process(db_url) as first, writer_process(db_url) as second, ThreadPoolExecutor(2) as pool:
            for child in (first, second):
                child.receive()
            asked = [pool.submit(child.ask, allocate="n", count=100) for child in (first, second)]
            numbers = [db.allocate("n") for _ in range(100)]
            for one in asked:
                numbers += one.result(2 * WAIT_S)["numbers"]
        assert len(set(numbers)) == 300

    def test_what_a_killed_writer_committed_is_in_the_outbox(self, db: DbApi, db_url: str) -> None:
        reported: list[int] = []
        for attempt, kill_after in enumerate((1, 7, 30)):
            with writer_process(db_url) as child:
                child.receive()
                reported.append(child.ask(create_without_end="t", prefix=f"{attempt}-")["version"])
                reported += [child.receive()["version"] for _ in range(kill_after)]
                child.kill()
        feed = wait_agreed(db)
        assert set(reported) <= {change.revision for change in feed}
        eventually(lambda: publish_all(db) and db.unpublished() == [], "everything is published")
        assert db.create("t", "after", 1, topic="t") > max(reported)

    def test_a_killed_writer_leaves_no_half_of_a_transaction(self, db: DbApi, db_url: str) -> None:
        for attempt, kill_after in enumerate((1, 7, 30)):
            with writer_process(db_url) as child:
                child.receive()
                child.ask(apply_without_end="t", prefix=f"{attempt}-")
                for _ in range(kill_after):
                    child.receive()
                child.kill()
        transactions = [change.key.rpartition("-")[0] for change in wait_agreed(db)]
        assert transactions == [name for name in dict.fromkeys(transactions) for _ in range(WRITES_PER_TRANSACTION)]

    def test_a_forked_child_works_while_the_parent_goes_on(self, db: DbApi) -> None:
        stop, written = threading.Event(), list[int]()

        def write_until_stopped() -> None:
            while not stop.is_set():
                written.append(db.create("parent", f"k{len(written)}", 0, topic="t"))

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write_until_stopped)
            try:
                answers = [in_forked_child(functools.partial(_use_in_child, db, number)) for number in range(5)]
            finally:
                stop.set()
            writing.result(WAIT_S)
        assert answers == ["0 1", "1 2", "2 3", "3 4", "4 5"]
        assert [change.revision for change in db.changes(0, limit=1_000_000) if change.table == "parent"] == written
        assert [db.get("child", f"k{number}").value for number in range(5)] == [0, 1, 2, 3, 4]

    def test_a_forked_child_may_close_what_it_inherited(self, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")

        def close() -> str:
            db.close()
            return "closed"

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(db.wait, db.revision(), timeout_s=WAIT_S)
            assert in_forked_child(close) == "closed"
            version = db.set("t", "k", 2)
            assert waiting.result(WAIT_S) is True
        assert db.get("t", "k").version == version


def wait_agreed(db: DbApi) -> list[Change]:
    """The feed, once outbox and objects agree with it.

    A server may carry out the last call of a process after the process was killed, and so between two reads.
    """

    def agreed() -> list[Change] | None:
        feed = db.changes(0, limit=1_000_000)
        names = {(change.table, change.key) for change in feed}
        return feed if db.unpublished(limit=1_000_000) == feed and set(stored(db)) == names else None

    feed = eventually(agreed, "feed, outbox and objects agree")
    assert feed is not None
    return feed


def publish_all(db: DbApi) -> bool:
    db.mark_published([change.revision for change in db.unpublished(limit=1_000_000)])
    return True


def _use_in_child(db: DbApi, number: int) -> str:
    """What a forked child does with the database object of its parent."""
    key = f"k{number}"
    before = db.revision()
    version = db.create("child", key, number, topic="t")
    assert db.wait(before, timeout_s=WAIT_S)
    assert any(change.revision == version for change in db.changes(before, limit=1_000_000))
    value = db.get("child", key).value
    allocated = db.allocate("children")
    db.close()
    return f"{value} {allocated}"
