"""Publishing what others wrote past the bus: every change once, whoever watches and however often that changes."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Sequence

import pytest

from nb_api import LocalCache
from nb_api.coordination import watch_note
from nb_api.db_api import Change, DbApi
from nb_api.loading import open_db
from nb_api.writing.publishing import ChangePublisher, PublishRefusal
from publisher_service.upkeep.watching import TableWatcher
from pubsub_api.errors import TransportUnavailable
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.waiting import wait_until

WAIT_S = 60.0
Told = tuple[int, str, str, object]
"""Revision, action, key, value."""


class Collector(ChangePublisher):
    """Keeps what it is given; refuses as often as it is told to, before it takes anything, and some keys always."""

    def __init__(self, *refused: str) -> None:
        self.told: list[Told] = []
        self.refusals = 0
        self.refused = set(refused)

    def publish(self, changes: Sequence[Change]) -> list[PublishRefusal]:
        if self.refusals:
            self.refusals -= 1
            raise TransportUnavailable("the bus is away")
        refused = [change for change in changes if change.key in self.refused]
        self.told += [
            (change.revision, change.action, change.key, change.value) for change in changes if change not in refused
        ]
        return [PublishRefusal(change.revision, change.table, change.key, "no room") for change in refused]

    def flush(self, *, timeout_s: float) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def db(tmp_path: pathlib.Path) -> Iterator[DbApi]:
    with contextlib.closing(open_db(sqlite_url(tmp_path), with_outbox=False)) as db:
        yield db


@contextlib.contextmanager
def watching(db: DbApi, publisher: ChangePublisher, *, name: str = "w") -> Iterator[TableWatcher]:
    """One time of being elected."""
    watcher = TableWatcher(db, publisher, ["chassis"], name=name, portion=3, note_interval_s=0.01)
    thread = watcher.thread()
    thread.start()
    try:
        yield watcher
    finally:
        thread.stop()
        watcher.note_end()


def noted(db: DbApi) -> bool:
    return watch_note.read(db, "w") is not None


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


def test_a_change_that_cannot_be_published_is_named_noted_and_tried_again(db: DbApi) -> None:
    collector = Collector("b", "d")
    with watching(db, collector) as watcher:
        wait_until(lambda: noted(db), WAIT_S, "watching to begin")
        written = write(db, "a", "b", "c", "d")
        wait_until(lambda: collector.told == written[::2], WAIT_S, "the others")
        wait_until(lambda: watcher.counters.refused == 2, WAIT_S, "the count")
        wait_until(lambda: untold(db) == written[3][0], WAIT_S, "the note of what copies have to read")
        collector.refused = {"d"}
        wait_until(lambda: written[1] in collector.told, WAIT_S, "what can be published now")
        wait_until(lambda: [refusal.key for refusal in watcher.refused.values()] == ["d"], WAIT_S, "the other to stay")
    assert untold(db) == written[3][0]


def untold(db: DbApi) -> int:
    note = watch_note.read(db, "w")
    return 0 if note is None else note.untold


def test_copies_read_what_was_deleted_before_it_was_followed(
    db: DbApi, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody watched, and the feed does not have it any more."""
    with open_nb(sqlite_url(tmp_path), memory_bus()) as nb, LocalCache(nb) as cache:
        assert nb.publisher is not None
        verifications: list[object] = []
        check = nb.db.check_history
        monkeypatch.setattr(nb.db, "check_history", lambda asked: (check(asked), verifications.append(asked))[0])
        cache.wait_synced(timeout_s=WAIT_S)
        with watching(db, nb.publisher, name=watch_note.NAME):
            wait_until(lambda: watch_note.read(db) is not None, WAIT_S, "watching to begin")
            write(db, "a", "b", "c")
            wait_until(lambda: len(cache.get_all("chassis")) == 3, WAIT_S, "the copy to have them")
        db.delete("chassis", "b")
        nb.create("port", "p", 1, topic="t")
        wait_until(lambda: cache.get_all("port"), WAIT_S, "the copy to hear of something newer")
        goal = len(verifications) + 2
        wait_until(lambda: len(verifications) >= goal, WAIT_S, "a verification of that")
        assert len(cache.get_all("chassis")) == 3, "nobody told"
        nb.flush(timeout_s=WAIT_S)
        db.compact(keep_changes=1, keep_tombstones_s=0.0)
        with watching(db, nb.publisher, name=watch_note.NAME) as watcher:
            wait_until(lambda: watcher.counters.gaps == 1, WAIT_S, "the gap to be noticed")
            wait_until(lambda: cache.get_all("chassis") == nb.get_all("chassis"), WAIT_S, "the copy to be right")
