"""What is particular to the SQLite driver: the file, its locks, its log, shared commits, and forks.

That it is a correct database is shown by the conformance suite.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import random
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nb_api import loading
from nb_api.db_api import DbApi, Write
from nb_api.errors import DbError, DbUnavailable, ObjectExists
from nb_api.revisions import number_of
from nb_api.testing.replay import state_of, stored
from pubsub_api.config import new_conf
from pubsub_api.errors import Closed, InvalidConfig
from pubsub_api.testing.conformance.forks import in_forked_child
from tests.helpers.db_faults import opened as opened_with
from tests.helpers.waiting import wait_until

WAIT_S = 60.0


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "heliograph.db"


def open_with(path: pathlib.Path, **options: Any) -> DbApi:
    """The database at that path.  Options of ``[db]`` and ``[db_sqlite]`` by their names."""
    conf = new_conf()
    loading.build_db(f"sqlite://{path}", conf).close()  # registers the options
    for name, value in options.items():
        conf.set_override(name, value, group="db_sqlite" if name in conf.db_sqlite else "db")
    return loading.open_db(f"sqlite://{path}", conf)


@pytest.fixture
def db(path: pathlib.Path) -> Iterator[DbApi]:
    with contextlib.closing(open_with(path, synchronous="normal")) as db:
        yield db


@contextlib.contextmanager
def _reader(path: pathlib.Path) -> Iterator[Callable[[], set[str]]]:
    """Another process that has the file open, and tells the keys that it finds there when it is asked."""
    program = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1])\n"
        "for _ in sys.stdin:\n"
        "    print(*[key for (key,) in connection.execute('SELECT key FROM objects')], flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask() -> set[str]:
            assert process.stdin is not None
            assert process.stdout is not None
            print("keys", file=process.stdin, flush=True)
            return set(process.stdout.readline().split())

        yield ask


class TestFile:
    def test_it_is_private_to_the_user(self, path: pathlib.Path, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes == dict.fromkeys((path.name, f"{path.name}-wal", f"{path.name}-shm"), 0o600)

    def test_a_missing_directory_is_named(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(InvalidConfig, match=r"make .*/missing"):
            loading.open_db(f"sqlite://{tmp_path}/missing/file.db")

    def test_a_directory_is_no_database(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(InvalidConfig, match="is a directory"):
            loading.open_db(f"sqlite://{tmp_path}")

    @pytest.mark.parametrize("url", ["sqlite://file.db", "sqlite://", "sqlite:///", "sqlite:///a.db?mode=ro"])
    def test_a_url_without_a_path_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidConfig, match="three slashes"):
            loading.open_db(url)

    def test_a_path_may_be_quoted(self, tmp_path: pathlib.Path) -> None:
        loading.open_db(f"sqlite://{tmp_path}/a%20b%3F%23%25.db").close()
        assert (tmp_path / "a b?#%.db").exists()

    def test_four_slashes_are_as_good_as_three(self, path: pathlib.Path) -> None:
        loading.open_db(f"sqlite:///{path}").close()
        assert path.exists()

    def test_a_file_that_is_no_database_is_left_alone(self, path: pathlib.Path) -> None:
        path.write_bytes(b"precious" * 1000)
        with pytest.raises(InvalidConfig, match="not a database"):
            loading.open_db(f"sqlite://{path}")
        assert path.read_bytes() == b"precious" * 1000

    def test_the_database_of_another_program_is_left_alone(self, path: pathlib.Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE objects (precious)")
        with pytest.raises(InvalidConfig, match="another program"):
            loading.open_db(f"sqlite://{path}")

    def test_a_newer_schema_is_refused(self, path: pathlib.Path, db: DbApi) -> None:
        db.close()
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA user_version = 99")
        with pytest.raises(InvalidConfig, match="schema 99"):
            loading.open_db(f"sqlite://{path}")

    def test_a_file_that_vanished_is_not_made_anew(self, path: pathlib.Path) -> None:
        db = loading.build_db(f"sqlite://{path}")
        with pytest.raises(DbUnavailable, match="gone"):
            db.revision()
        db.close()
        assert not path.exists()

    def test_what_is_acknowledged_after_the_log_was_removed_is_seen_by_others(self, path: pathlib.Path) -> None:
        open_with(path).close()  # so that its tables are in the file
        db, second = open_with(path), open_with(path)
        db.create("t", "before", 1, topic="t")
        second.create("t", "second", 1, topic="t")
        for suffix in ("-wal", "-shm"):
            os.unlink(f"{path}{suffix}")
        with _reader(path) as keys:
            keys()  # another process has made new ones
            for number in range(3):
                db.create("t", f"after{number}", 1, topic="t")
                second.create("t", f"second{number}", 1, topic="t")
            expected = {f"{name}{number}" for name in ("after", "second") for number in range(3)}
            assert expected <= keys()
            db.close()
            second.close()
            assert expected <= keys()

    def test_what_was_acknowledged_before_the_log_was_removed_is_kept_when_nobody_else_has_it(
        self, path: pathlib.Path
    ) -> None:
        with contextlib.closing(open_with(path)) as db, contextlib.closing(open_with(path)) as second:
            db.create("t", "before", 1, topic="t")
            assert second.get("t", "before").value == 1
            for suffix in ("-wal", "-shm"):
                os.unlink(f"{path}{suffix}")
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda number: db.create("t", f"after{number}", 1, topic="t"), range(20)))
            with _reader(path) as keys:
                assert keys() == {"before", *(f"after{number}" for number in range(20))}
            assert len(list(second.snapshot())) == 21

    def test_a_value_that_somebody_broke_is_a_typed_error(self, path: pathlib.Path, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE objects SET value = x'c1'")
        with pytest.raises(DbError, match="no msgpack"):
            db.get("t", "k")
        with pytest.raises(DbError, match="no msgpack"):
            stored(db)

    def test_nothing_is_left_open(self, path: pathlib.Path) -> None:
        db = open_with(path)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: db.create("t", f"k{number}", 1, topic="t"), range(50)))
        db.close()
        assert _open_files(path) == []
        assert [file.name for file in path.parent.iterdir()] == [path.name]


class TestLocks:
    def test_a_writer_waits_for_another_process(self, path: pathlib.Path, db: DbApi) -> None:
        with _locked(path) as other, ThreadPoolExecutor(1) as pool:
            writing = pool.submit(db.create, "t", "k", 1, topic="t")
            assert db.revision() == 0  # readers do not wait
            assert not writing.done()
            other.execute("ROLLBACK")
            assert number_of(writing.result(WAIT_S)) == 1

    def test_it_does_not_wait_for_ever(self, path: pathlib.Path) -> None:
        with contextlib.closing(open_with(path, operation_timeout=0.1)) as db:
            with _locked(path), ThreadPoolExecutor(4) as pool:
                writing = [pool.submit(db.create, "t", f"k{number}", 1, topic="t") for number in range(4)]
                for one in writing:
                    with pytest.raises(DbUnavailable, match=r"0\.1 s"):
                        one.result(WAIT_S)
            # What was given up must not be done later, by whoever writes next.
            assert number_of(db.create("t", "later", 1, topic="t")) == 1
            assert set(stored(db)) == {("t", "later")}

    def test_each_of_many_writers_gets_its_own_answer(self, path: pathlib.Path, db: DbApi) -> None:
        """While another process has the lock they gather, and then share a transaction."""
        db.create("t", "taken", 0, topic="t")
        with _locked(path) as other, ThreadPoolExecutor(20) as pool:
            keys = ["taken", *(f"k{number}" for number in range(9))] * 2
            writing = [pool.submit(db.create, "t", key, 1, topic="t") for key in keys]
            wait_until(lambda: len(db._writer._waiting) == len(keys), what="all writers gather")  # type: ignore[attr-defined]
            other.execute("ROLLBACK")
            outcomes = [one.exception(WAIT_S) for one in writing]
        assert [type(error) for error in outcomes].count(ObjectExists) == 11
        assert outcomes.count(None) == 9
        assert number_of(db.revision()) == 10
        assert len(stored(db)) == 10

    def test_a_full_disk_is_reported_and_leaves_nothing(self, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")
        pool = db._pool  # type: ignore[attr-defined]
        pool.run(lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchall())  # as many as there are
        with pytest.raises(DbUnavailable, match="full"):
            db.create("t", "large", bytes(500_000), topic="t")
        assert set(stored(db)) == {("t", "k")}
        assert [change.key for change in db.changes(0)] == ["k"]
        assert number_of(db.create("t", "k2", 1, topic="t")) == 2  # on a new connection, which has no such limit

    def test_the_log_does_not_grow_for_ever(self, path: pathlib.Path) -> None:
        with contextlib.closing(open_with(path, synchronous="normal")) as db:
            for number in range(100):
                db.create("t", f"k{number}", bytes(100_000), topic="t")
            db.compact(keep_changes=10, keep_tombstones_s=0)
            assert pathlib.Path(f"{path}-wal").stat().st_size == 0

    def test_a_compaction_does_not_mind_a_reader(self, db: DbApi) -> None:
        revisions = [db.create("t", f"k{number}", 1, topic="t") for number in range(10)]
        db.mark_published(revisions)
        with db.snapshot() as snapshot:
            assert db.compact(keep_changes=0, keep_tombstones_s=0) == 10
            assert len(state_of(snapshot)) == 10


class TestSnapshots:
    def test_one_that_is_open_too_long_is_ended(self, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("heliograph_drivers.db.sqlite.SNAPSHOT_TIME_MAX_S", 0.1)
        with opened_with(f"sqlite://{path}", snapshot_portion=1) as db:
            for number in range(3):
                db.create("t", f"k{number}", 1, topic="t")
            opened = time.monotonic()
            with db.snapshot() as snapshot:
                wait_until(lambda: time.monotonic() > opened + 0.2, what="the time is over")
                with pytest.raises(DbUnavailable, match="SNAPSHOT_TIME_MAX_S"):
                    list(snapshot)

    def test_one_that_is_closed_does_not_end_as_if_it_were_complete(self, path: pathlib.Path) -> None:
        with opened_with(f"sqlite://{path}", snapshot_portion=1) as db:
            for number in range(3):
                db.create("t", f"k{number}", 1, topic="t")
            snapshot = db.snapshot()
            rows = iter(snapshot)
            next(rows)
            snapshot.close()
            with pytest.raises(Closed):
                list(rows)

    @pytest.mark.parametrize("count", [1, 99, 101, 500, 1000])
    def test_many_filters(self, db: DbApi, count: int) -> None:
        for number in range(20):
            db.create(f"table{number}", "k", number, topic=f"a/{number}/b")
        tables = [f"table{number}" for number in range(10, 10 + count)]
        filters = [f"a/{number}/#" for number in range(15, 15 + count)]
        with db.snapshot(tables, filters) as snapshot:
            wanted = {
                number for number in range(20) if number in range(10, 10 + count) and number in range(15, 15 + count)
            }
            assert {held.value for held in state_of(snapshot).values()} == wanted


class TestForks:
    def test_nothing_is_open_in_a_child(self, path: pathlib.Path, db: DbApi) -> None:
        for number in range(5):
            db.create("t", f"k{number}", number, topic="t")
        snapshot = db.snapshot()
        assert _open_files(path)
        assert in_forked_child(lambda: str(_open_files(path))) == "[]"
        assert len(state_of(snapshot)) == 5

    def test_a_snapshot_that_was_begun_goes_on_in_both_processes(self, path: pathlib.Path) -> None:
        with opened_with(f"sqlite://{path}", snapshot_portion=2, synchronous="normal") as db:
            for number in range(10):
                db.create("t", f"k{number}", number, topic="t")
            before = stored(db)
            with db.snapshot() as snapshot:
                rows = iter(snapshot)
                seen = [next(rows)]
                db.delete("t", "k9")
                assert in_forked_child(lambda: str(state_of([*seen, *rows]) == before)) == "True"
                assert state_of([*seen, *rows]) == before

    def test_children_of_a_busy_parent_lose_nothing(self, path: pathlib.Path, db: DbApi) -> None:
        """The parent's last connection must never remove the log while a child is writing to it."""
        stop, written = threading.Event(), list[int]()

        def write(name: int) -> None:
            for number in range(1_000_000):
                if stop.is_set():
                    return
                written.append(db.create("parent", f"{name}-{number}", 0, topic="t"))

        def wait_until_closed() -> None:
            with contextlib.suppress(Closed):
                while db.wait(db.revision(), timeout_s=WAIT_S):
                    pass

        def child(number: int) -> str:
            versions = [db.create("child", f"{number}-{i}", 0, topic="t") for i in range(3)]
            return ",".join(map(str, versions))

        with ThreadPoolExecutor(3) as pool:
            writing = [pool.submit(write, name) for name in range(2)]
            waiting = pool.submit(wait_until_closed)
            try:
                answers = [in_forked_child(lambda number=number: child(number)) for number in range(40)]  # type: ignore[misc]
            finally:
                stop.set()
            for one in writing:
                one.result(WAIT_S)
            db.close()
            waiting.result(WAIT_S)
        versions = [int(version) for answer in answers for version in answer.split(",")]
        with contextlib.closing(open_with(path)) as again:
            feed = [change.revision for change in again.changes(0, limit=1_000_000)]
        assert feed == sorted(versions + written)
        assert [number_of(revision) for revision in feed] == list(range(1, len(feed) + 1))


def _open_files(path: pathlib.Path) -> list[str]:
    """The files of the database that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(str(path))]


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[sqlite3.Connection]:
    """Another connection that has the write lock, as another process would."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


class TestOutbox:
    @pytest.mark.parametrize("seed", range(20))
    def test_it_is_what_wants_to_be_published_and_is_not(self, path: pathlib.Path, db: DbApi, seed: int) -> None:
        """What is marked need not be what was written together, nor be there at all; some changes want nothing."""
        chance = random.Random(seed)
        waiting: set[int] = set()
        given: list[int] = []
        for step in range(40):
            if chance.random() < 0.5:
                db.with_outbox = chance.random() < 0.8
                table = "heliograph.own" if chance.random() < 0.2 else "t"
                writes = [Write("create", table, f"{step}-{number}", 0, "t") for number in range(chance.randint(1, 8))]
                revisions = db.apply(writes)
                given += revisions
                waiting.update(revisions if db.with_outbox and table == "t" else ())
            else:
                marked = set(chance.sample(given, min(len(given), chance.randint(1, 12))))
                if chance.random() < 0.3:
                    first = chance.randint(0, len(given))
                    marked.update(given[first : first + 10])
                marked.update(revision + chance.choice((-1, 1)) for revision in list(marked)[:2])  # of another history
                db.mark_published(chance.sample(sorted(marked), len(marked)))
                waiting -= marked
            if chance.random() < 0.2:
                db.compact(keep_changes=chance.randint(0, 5), keep_tombstones_s=0)
            assert [change.revision for change in db.unpublished(limit=1000)] == sorted(waiting)
            _check_runs(path, waiting)

    def test_a_clock_that_was_ahead_keeps_nothing_waiting(self, db: DbApi, monkeypatch: pytest.MonkeyPatch) -> None:
        """Written while the clock was an hour ahead; then it is set right."""
        real = time.time
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: real() + 3600)
            versions = [db.create("t", f"k{number}", 0, topic="t") for number in range(3)]
        assert db.unpublished(older_than_s=0.3) == []
        wait_until(lambda: len(db.unpublished(older_than_s=0.3)) == 3, WAIT_S, "the changes to be found old")
        later = db.create("t", "later", 0, topic="t")
        assert [change.revision for change in db.unpublished(older_than_s=3600)] == []
        assert [change.revision for change in db.unpublished()] == [*versions, later]

    def test_what_nobody_wants_published_is_not_looked_at_for_ever(self, path: pathlib.Path, db: DbApi) -> None:
        db.with_outbox = False
        for portion in range(22):
            db.apply([Write("create", "t", f"{portion}-{number}", 0, "t") for number in range(500)])
        assert _runs(path) == [(0, 0)]
        assert db.unpublished() == []
        assert _runs(path) == [(0, db.revision())]
        db.with_outbox = True
        assert [db.create("t", "k", 0, topic="t")] == [change.revision for change in db.unpublished()]

    def test_the_newest_revision_outlives_the_feed(self, path: pathlib.Path, db: DbApi) -> None:
        revisions = [db.create("t", f"k{number}", 0, topic="t") for number in range(3)]
        db.mark_published(revisions)
        assert db.compact(keep_changes=0, keep_tombstones_s=0) == 3
        db.close()
        with contextlib.closing(open_with(path)) as again:
            assert again.revision() == revisions[-1]
            assert again.changes(revisions[-1]) == []
            assert number_of(again.create("t", "k3", 0, topic="t")) == 4


def _runs(path: pathlib.Path) -> list[tuple[int, int]]:
    with contextlib.closing(sqlite3.connect(path)) as other:
        return other.execute("SELECT first, last FROM published ORDER BY first").fetchall()


def _check_runs(path: pathlib.Path, waiting: set[int]) -> None:
    """Runs do not touch what waits, and no more of them are kept than that takes."""
    runs = _runs(path)
    assert runs[0][0] == 0
    assert not any(first <= revision <= last for first, last in runs for revision in waiting)
    for (_, last), (first, _) in itertools.pairwise(runs):
        assert any(last < revision < first for revision in waiting)
