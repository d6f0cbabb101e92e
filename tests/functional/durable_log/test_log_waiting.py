"""Waiting for what other processes append to a log in SQLite: the files are looked at, and nothing is overlooked."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import durable_log
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.log_child import FRAME_EVENTS, log_process
from durable_log.testing.sources import Source
from heliograph_drivers.log.sqlite import reading, watching
from pubsub_api.testing.child import ChildProcess
from tests.helpers.logs import opened
from tests.helpers.waiting import WAIT_S, wait_until

TOPIC = "t"
LONG_S = 3600.0
OPTIONS = "shards=1"


@pytest.fixture(autouse=True)
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite is asked only when the files say so: what they do not tell is not found by chance."""
    monkeypatch.setattr(watching, "ASK_S", LONG_S)
    monkeypatch.setattr("heliograph_drivers.log.sqlite._POLL_INTERVAL_MAX_S", 0.002)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "log.db"


@pytest.fixture
def log(path: pathlib.Path) -> Iterator[SegmentedLog]:
    with opened(f"sqlite://{path}?{OPTIONS}") as log:
        yield log


@contextlib.contextmanager
def other_process(path: pathlib.Path) -> Iterator[ChildProcess]:
    with log_process(f"sqlite://{path}?{OPTIONS}") as child:
        child.receive()
        yield child


@contextlib.contextmanager
def waiting(log: SegmentedLog, end: int) -> Iterator[Future[bool]]:
    """A thread that waits for more than ``end`` events."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(log.wait, {0: end}, timeout_s=LONG_S)
        try:
            yield future
        finally:
            log.close()  # ends it


def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an entry whenever a wait asks SQLite."""
    calls: list[int] = []
    has_grown = reading.has_grown

    def counting(connection: sqlite3.Connection, ends: dict[int, int]) -> bool:
        calls.append(1)
        return has_grown(connection, ends)

    monkeypatch.setattr(reading, "has_grown", counting)
    return calls


def make_old(path: pathlib.Path) -> None:
    """As if nobody had written for a minute."""
    for file in (path, pathlib.Path(f"{path}-wal")):
        if file.exists():
            os.utime(file, (time.time() - 60, time.time() - 60))


def append(child: ChildProcess) -> None:
    assert child.ask(append=TOPIC, count=1, guid=os.urandom(16).hex())["events"] == FRAME_EVENTS


def nothing(_: pathlib.Path) -> None:
    pass


def checkpoint(path: pathlib.Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def restart_journal(path: pathlib.Path) -> None:
    """The next commit writes over the beginning of the write-ahead log, which does not grow by it."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)")


def leave_wal(path: pathlib.Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)


@pytest.mark.parametrize("before", [nothing, checkpoint, restart_journal])
def test_what_another_process_appends_wakes(
    log: SegmentedLog, path: pathlib.Path, before: Callable[[pathlib.Path], None]
) -> None:
    with other_process(path) as child, waiting(log, 4 * FRAME_EVENTS) as future:
        for number in range(5):
            assert not future.done(), number
            make_old(path)
            before(path)
            append(child)
        assert future.result(WAIT_S)


def test_what_is_appended_without_a_write_ahead_log_wakes(path: pathlib.Path) -> None:
    url = f"sqlite://{path}?{OPTIONS}"
    with opened(url):
        pass
    leave_wal(path)
    with other_process(path) as child, opened(url) as log:
        make_old(path)
        with waiting(log, 0) as future:
            append(child)
            assert future.result(WAIT_S)
        assert not pathlib.Path(f"{path}-wal").exists()


def test_who_waits_is_told_of_an_exchanged_file(log: SegmentedLog, path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with opened(f"sqlite://{tmp_path}/other.db?shards=1") as other:
        other.append([Source().frame(TOPIC, 10)])
    make_old(path)
    with waiting(log, 5) as future:
        shutil.copy(tmp_path / "other.db", tmp_path / "copy.db")
        os.replace(tmp_path / "copy.db", path)
        with pytest.raises(durable_log.LogReplaced):
            future.result(WAIT_S)


def test_who_waits_is_told_of_a_removed_file(log: SegmentedLog, path: pathlib.Path) -> None:
    make_old(path)
    with waiting(log, 5) as future:
        path.unlink()
        with pytest.raises(durable_log.LogUnavailable, match="gone"):
            future.result(WAIT_S)


def test_closing_ends_a_wait_that_asks_nothing(
    log: SegmentedLog, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = asked(monkeypatch)
    make_old(path)
    with waiting(log, 0) as future:
        wait_until(lambda: calls)
        log.close()
        assert future.result(WAIT_S) is False


def test_an_idle_file_is_not_asked(log: SegmentedLog, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = asked(monkeypatch)
    make_old(path)
    assert not log.wait({0: 0}, timeout_s=0.2)
    assert len(calls) <= 2, "at the beginning, and at the end to be certain"


def test_what_was_written_just_now_is_asked_until_it_is_settled(
    log: SegmentedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "SETTLED_S", LONG_S)
    calls = asked(monkeypatch)
    log.append([Source().frame(TOPIC, 10)])
    with waiting(log, 10):
        wait_until(lambda: len(calls) > 10, what="many looks, because what is written may be seen later")


def test_an_idle_file_is_asked_now_and_then(
    log: SegmentedLog, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ASK_S", 0.005)
    calls = asked(monkeypatch)
    make_old(path)
    with waiting(log, 0):
        wait_until(lambda: len(calls) > 3)
