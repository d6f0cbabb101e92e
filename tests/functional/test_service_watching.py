"""Publishing what others wrote past the bus: every change once, whoever watches and however often that changes."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Iterator, Sequence

import pytest

from nb_api.db_api import Change, DbApi
from nb_api.loading import open_db
from nb_api.publishing import ChangePublisher, Refusal
from publisher_service.watching import POSITIONS, TableWatcher
from pubsub_api.errors import TransportUnavailable
from tests.nb_tools import sqlite_url
from tests.waiting import wait_until

WAIT_S = 60.0
Told = tuple[int, str, str, object]
"""Revision, action, key, value."""


class Collector(ChangePublisher):
    """Keeps what it is given; refuses as often as it is told to, before it takes anything."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.refusals = 0

    def publish(self, changes: Sequence[Change]) -> list[Refusal]:
        if self.refusals:
            self.refusals -= 1
            raise TransportUnavailable("the bus is away")
        self.told += [(change.revision, change.action, change.key, change.value) for change in changes]
        return []

    def flush(self, *, timeout_s: float) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def db(tmp_path: pathlib.Path) -> Iterator[DbApi]:
    with contextlib.closing(open_db(sqlite_url(tmp_path), with_outbox=False)) as db:
        yield db


@contextlib.contextmanager
def watching(db: DbApi, collector: Collector) -> Iterator[TableWatcher]:
    """One term of office."""
    watcher = TableWatcher(db, collector, ["chassis"], name="w", portion=3, note_interval_s=0.01)
    stop = threading.Event()
    thread = threading.Thread(target=watcher.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def noted(db: DbApi) -> bool:
    with db.snapshot([POSITIONS]) as snapshot:
        return bool(list(snapshot))


def write(db: DbApi, *keys: str) -> list[Told]:
    return [(db.create("chassis", key, {"ip": key}, topic="chassis"), "create", key, {"ip": key}) for key in keys]


def test_rows_that_were_there_before_anybody_watched_are_no_news(db: DbApi) -> None:
    write(db, "old")
    collector = Collector()
    with watching(db, collector):
        wait_until(lambda: noted(db), WAIT_S, "watching to begin")
        expected = write(db, "new")
        wait_until(lambda: collector.told == expected, WAIT_S, "the new row, with its value, and nothing else")


def test_the_next_who_watches_goes_on_where_the_last_one_ended(db: DbApi) -> None:
    collector = Collector()
    with watching(db, collector):
        wait_until(lambda: noted(db), WAIT_S, "watching to begin")
        expected = write(db, "a", "b", "c", "d")
        db.create("other", "o", 1, topic="t")
        wait_until(lambda: collector.told == expected, WAIT_S, "what was written meanwhile")
    expected += write(db, "e")
    expected.append((db.set("chassis", "a", 2), "set", "a", 2))
    expected.append((db.delete("chassis", "b"), "delete", "b", None))
    with watching(db, collector):
        wait_until(lambda: len(collector.told) >= len(expected), WAIT_S, "what was written while nobody watched")
        expected += write(db, "f")
        wait_until(lambda: collector.told == expected, WAIT_S, "every change once, in order")


def test_a_bus_that_refuses_is_tried_again_and_nothing_is_skipped(db: DbApi) -> None:
    collector = Collector()
    with watching(db, collector) as watcher:
        wait_until(lambda: noted(db), WAIT_S, "watching to begin")
        collector.refusals = 2
        expected = write(db, "a", "b")
        wait_until(lambda: collector.told == expected, WAIT_S, "both changes")
        wait_until(lambda: watcher.counters.published == 2, WAIT_S, "the count of them")
        assert watcher.counters.failures == 2


def test_changes_that_are_gone_are_replaced_by_the_objects(db: DbApi) -> None:
    collector = Collector()
    with watching(db, collector):
        wait_until(lambda: noted(db), WAIT_S, "watching to begin")
    write(db, "a", "b", "c", "d")
    db.set("chassis", "a", "newest")
    db.create("other", "o", 1, topic="t")
    db.compact(keep_changes=1, keep_tombstones_s=0.0)
    with watching(db, collector) as watcher:
        wait_until(lambda: watcher.counters.gaps == 1 and len(collector.told) >= 4, WAIT_S, "the objects")
        assert sorted((action, key) for _, action, key, _ in collector.told) == [("set", key) for key in "abcd"]
        assert "newest" in [value for _, _, _, value in collector.told]
        expected = write(db, "e")
        wait_until(lambda: collector.told[4:] == expected, WAIT_S, "going on from there")
