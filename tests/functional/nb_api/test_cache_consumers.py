"""A local cache with several consumers, indexes, a selection, and programs that wait for what they wrote."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from nb_api import CacheChange, Created, DbObject, Deleted, LocalCache, Resynced, Updated
from nb_api.errors import RevisionUnknown
from pubsub_api.errors import Closed, UsageError, WaitTimeout
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.nb_worlds import WAIT_S, Told, World
from tests.helpers.waiting import wait_until


@pytest.fixture(params=["feed", "bus"])
def world(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[World]:
    bus = memory_bus() if request.param == "bus" else None
    world = World(bus, sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), bus))
    yield world
    world.close()


def fill(world: World, count: int = 5, table: str = "port") -> None:
    for number in range(count):
        world.nb.create(table, f"p{number}", {"net": f"n{number % 2}", "number": number}, topic="t")


def objects_told(told: Told) -> dict[str, Any]:
    """What a consumer believes; fails when it is told of an object twice."""
    found: dict[str, Any] = {}
    for change in list(told.changes):
        if isinstance(change, Created):
            assert change.key not in found
            found[change.key] = change.object.value
        elif isinstance(change, Updated):
            assert found[change.key] == change.before.value
            found[change.key] = change.object.value
        elif isinstance(change, Deleted):
            del found[change.key]
    return found


def values_of(cache: LocalCache, table: str = "port") -> dict[str, Any]:
    return {found.key: found.value for found in cache.get_all(table)}


# -- several consumers


def test_a_late_consumer_gets_every_object_once_and_no_gap(world: World) -> None:
    """It comes while changes are under way."""
    fill(world)
    cache = world.cache()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            world.nb.update("port", f"p{number % 5}", {"number": number})

    writer = threading.Thread(target=write)
    writer.start()
    consumers = []
    try:
        for _ in range(5):
            consumers.append(told := Told())
            cache.subscribe(told)
            wait_until(told.resyncs, WAIT_S, "the new consumer to be told that it has everything")
    finally:
        stop.set()
        writer.join()
    world.nb.create("port", "last", {}, topic="t")
    world.wait_equal(cache)
    for told in consumers:
        wait_until(lambda told=told: objects_told(told) == values_of(cache), WAIT_S, "all to be told")  # type: ignore[misc]


def test_a_consumer_of_a_cache_that_is_not_complete_is_told_when_it_is(world: World) -> None:
    fill(world)
    cache = world.cache(is_awaited=False)
    told = Told()
    subscription = cache.subscribe(told)
    wait_until(lambda: told.resyncs() and subscription.is_synced, WAIT_S, "the copy to be complete")
    assert objects_told(told) == values_of(cache)


def test_a_consumer_of_some_tables_hears_of_these(world: World) -> None:
    fill(world)
    cache = world.cache()
    told, others = Told(), Told()
    cache.subscribe(told, tables=["net"])
    cache.subscribe(others)
    world.nb.create("port", "p9", {}, topic="t")
    world.nb.create("net", "n1", {}, topic="t")
    wait_until(lambda: "Created n1" in told.kinds() and "Created n1" in others.kinds(), WAIT_S, "the net")
    assert told.kinds() == ["Created n1"]
    assert told.resyncs()


def test_a_consumer_that_was_removed_hears_nothing_more(world: World) -> None:
    cache = world.cache()
    gone, stays = Told(), Told()
    subscription = cache.subscribe(gone)
    cache.subscribe(stays)
    fill(world, 2)
    wait_until(lambda: len(gone.kinds()) == 2, WAIT_S, "both to be told")
    assert cache.statistics().telling.subscriptions == 3
    subscription.close()
    subscription.close()
    world.nb.create("port", "after", {}, topic="t")
    wait_until(lambda: "Created after" in stays.kinds(), WAIT_S, "the one that stays")
    assert len(gone.kinds()) == 2
    assert cache.statistics().telling.subscriptions == 2


def test_a_consumer_may_remove_itself_from_within_its_callback(world: World) -> None:
    cache = world.cache()
    subscriptions: list[Any] = []
    calls: list[int] = []
    is_known = threading.Event()

    def once(changes: Sequence[CacheChange]) -> None:
        assert is_known.wait(WAIT_S)
        calls.append(len(changes))
        subscriptions[0].close()

    stays = Told()
    subscriptions.append(cache.subscribe(once))
    is_known.set()
    cache.subscribe(stays)
    fill(world, 3)
    wait_until(lambda: len(stays.kinds()) == 3, WAIT_S, "the other one to be told")
    assert len(calls) == 1


def test_a_consumer_that_raises_does_not_touch_the_others(world: World) -> None:
    cache = world.cache()
    sound = Told()
    is_broken = threading.Event()
    is_broken.set()
    later = Told()

    def broken(changes: Sequence[CacheChange]) -> None:
        if is_broken.is_set():
            raise RuntimeError("not now")
        later(changes)

    subscription = cache.subscribe(broken)
    cache.subscribe(sound)
    fill(world, 3)
    wait_until(lambda: len(sound.kinds()) == 3, WAIT_S, "the sound one to be told")
    wait_until(lambda: subscription.callback_errors > 1, WAIT_S, "the broken one to be called again")
    is_broken.clear()
    wait_until(lambda: objects_told(later) == values_of(cache), WAIT_S, "the broken one to be told again")


def test_an_iterating_consumer_that_is_too_slow_is_told_so_and_the_others_are_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.notify_config.CHANGES_QUEUE_MAX", 3)
    cache = world.cache()
    sound = Told()
    slow = cache.subscribe()
    cache.subscribe(sound)
    fill(world, 8)
    wait_until(lambda: len(sound.kinds()) == 8, WAIT_S, "the other one to be told")
    assert slow.overruns == 1
    first = next(slow.changes(timeout_s=WAIT_S))
    assert isinstance(first, Resynced)
    assert first.kind == "overrun"
    world.nb.create("port", "after", {}, topic="t")
    following = (change.key for change in slow.changes(timeout_s=WAIT_S) if isinstance(change, Created))
    assert next(following) == "after"
    with pytest.raises(UsageError):
        next(cache.subscribe(Told()).changes())


def test_more_objects_than_the_queue_takes_are_no_overrun_for_a_new_consumer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.notify_config.CHANGES_QUEUE_MAX", 3)
    fill(world, 8)
    cache = world.cache()
    consumer = cache.subscribe()
    world.nb.create("port", "after", {}, topic="t")
    seen = []
    for change in consumer.changes(timeout_s=WAIT_S):
        seen.append(change)
        if isinstance(change, Created) and change.key == "after":
            break
    assert sorted(change.key for change in seen if isinstance(change, Created)) == [
        "after", *(f"p{number}" for number in range(8))
    ]  # fmt: skip
    assert consumer.overruns == 0


# -- what is handed out


def test_changing_what_was_read_harms_no_reader(world: World) -> None:
    cache = world.cache()
    seen: list[Any] = []

    def spoil(changes: Sequence[CacheChange]) -> None:
        for change in changes:
            if isinstance(change, Created):
                change.object.value["tags"].append("spoilt")
                seen.append(change.object.value)

    cache.subscribe(spoil)
    cache.subscribe(spoil)
    index = cache.index("by_net", lambda port: port.value["net"], table="port")
    world.nb.create("port", "p1", {"net": "n1", "tags": []}, topic="t")
    wait_until(lambda: len(seen) == 2, WAIT_S, "both consumers")
    right = {"net": "n1", "tags": []}
    assert seen == [right, right]
    for read in (
        lambda: cache.get("port", "p1"),
        lambda: cache.get_all("port")[0],
        lambda: index.get("n1")[0],
        lambda: cache.wait_version("port", "p1", 1, timeout_s=1),
    ):
        read().value["tags"].append("spoilt")  # type: ignore[union-attr]
        assert cache.get("port", "p1").value == right
    world.wait_equal(cache)


# -- waiting for own writes


def test_an_own_write_can_be_awaited(world: World) -> None:
    cache = world.cache()
    for number in range(20):
        version = world.nb.create("port", f"p{number}", {"n": number}, topic="t")
        found = cache.wait_version("port", f"p{number}", version, timeout_s=WAIT_S)
        assert found == DbObject("port", f"p{number}", "t", {"n": number}, version)
    version = world.nb.delete("port", "p1")
    assert cache.wait_version("port", "p1", version, timeout_s=WAIT_S) is None
    assert "p1" not in values_of(cache)
    version = world.nb.create("port", "last", {}, topic="t")
    cache.wait_revision(version, timeout_s=WAIT_S)
    assert cache.get("port", "last").version == version
    assert cache.position >= version


def test_a_write_to_a_topic_that_is_not_followed_does_not_make_one_wait_for_ever(world: World) -> None:
    cache = world.cache(topics=["t"])
    version = world.nb.create("port", "p1", {}, topic="elsewhere")
    assert cache.wait_version("port", "p1", version, timeout_s=WAIT_S) is None
    cache = world.cache(where={"host": "h7"})
    version = world.nb.create("port", "p2", {"host": "h8"}, topic="t")
    assert cache.wait_version("port", "p2", version, timeout_s=WAIT_S) is None


def test_a_version_that_the_database_never_gave_is_told(world: World) -> None:
    cache = world.cache()
    world.nb.create("port", "p1", {}, topic="t")
    with pytest.raises(RevisionUnknown):
        cache.wait_version("port", "p1", 2**40, timeout_s=WAIT_S)
    with pytest.raises(RevisionUnknown):
        cache.wait_revision(2**40, timeout_s=WAIT_S)


def test_a_wait_ends_when_a_backup_is_restored(world: World, tmp_path: pathlib.Path) -> None:
    cache = world.cache()
    world.nb.create("port", "kept", {}, topic="t")
    world.nb.flush(timeout_s=WAIT_S)
    world.wait_equal(cache)
    backup = tmp_path / "backup.db"
    path = tmp_path / "objects.db"
    with (
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(backup)) as goal,
    ):
        source.backup(goal)
    version = world.nb.create("port", "lost", {}, topic="t")
    assert cache.wait_version("port", "lost", version, timeout_s=WAIT_S) is not None
    with (
        contextlib.closing(sqlite3.connect(backup)) as source,
        contextlib.closing(sqlite3.connect(path)) as goal,
    ):
        source.backup(goal)
    wait_until(lambda: cache.statistics().syncs.replaced, WAIT_S, "the restored backup to be noticed")
    cache.wait_synced(timeout_s=WAIT_S)
    with contextlib.suppress(RevisionUnknown):  # unless the new history has come as far as that meanwhile
        assert cache.wait_version("port", "lost", version, timeout_s=WAIT_S) is None
    assert list(values_of(cache)) == ["kept"]


def test_a_wait_ends_when_the_cache_is_closed(world: World) -> None:
    cache = world.cache()
    raised: list[BaseException] = []
    world.nb.create("port", "p1", {}, topic="t")
    world.wait_equal(cache)
    began = threading.Event()

    def wait() -> None:
        try:
            began.set()
            cache.wait_version("port", "p1", 2**40, timeout_s=WAIT_S)
        except Exception as error:  # noqa: BLE001  whatever it is, it is looked at
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert began.wait(WAIT_S)
    cache.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert isinstance(raised[0], Closed | RevisionUnknown)  # the latter when it was decided before


def test_waiting_where_it_makes_no_sense_is_refused(world: World) -> None:
    refused: list[BaseException] = []
    caches: list[LocalCache] = []

    def wait(changes: Sequence[CacheChange]) -> None:
        try:
            caches[0].wait_version("port", "p1", 1, timeout_s=0.1)
        except Exception as error:  # noqa: BLE001  whatever it is, it is looked at
            refused.append(error)

    caches.append(world.cache(tables=["port"]))
    caches[0].subscribe(wait)
    wait_until(lambda: refused, WAIT_S, "the callback")
    assert isinstance(refused[0], UsageError)
    with pytest.raises(UsageError):
        caches[0].wait_version("net", "n1", 1, timeout_s=1)
    with pytest.raises(UsageError):
        caches[0].wait_version("port", "p1", -1, timeout_s=1)


def test_a_wait_that_takes_too_long_says_so(world: World) -> None:
    """A callback that does not return holds up the copy."""
    cache = world.cache()
    began, go_on = threading.Event(), threading.Event()

    def block(changes: Sequence[CacheChange]) -> None:
        began.set()
        assert go_on.wait(WAIT_S)

    cache.subscribe(block)
    assert began.wait(WAIT_S)
    try:
        with pytest.raises(WaitTimeout):
            cache.wait_version("port", "p1", 2**40, timeout_s=0.1)
    finally:
        go_on.set()


# -- indexes of a running cache


def test_an_index_follows_the_copy(world: World) -> None:
    fill(world)
    cache = world.cache(tables=["port"])
    by_net = cache.index("by_net", lambda port: port.value["net"])
    by_number = cache.index("by_number", lambda port: port.value["number"], unique=True, sorted=True)
    assert by_net.keys("n0") == ["p0", "p2", "p4"]
    assert [found.key for found in by_number.range(1, 3)] == ["p1", "p2"]
    version = world.nb.update("port", "p0", {"net": "n1", "number": 77})
    cache.wait_version("port", "p0", version, timeout_s=WAIT_S)
    assert by_net.get("n1") == [cache.get("port", key) for key in ("p0", "p1", "p3")]
    assert by_number.one(77) == cache.get("port", "p0")
    assert by_number.one(0) is None
    assert by_number.values() == [1, 2, 3, 4, 77]
    assert cache.index("by_net") is by_net
    assert len(by_net) == 2
    assert repr(by_net) == "<Index 'by_net' of 'port': 2 values>"


def test_an_index_that_cannot_be_is_refused(world: World) -> None:
    cache = world.cache(tables=["port", "net"])
    cache.index("taken", lambda found: found.key, table="port")
    for name, table in (("taken", "net"), ("no table", None), ("not followed", "other")):
        with pytest.raises(UsageError):
            cache.index(name, lambda found: found.key, table=table)
    with pytest.raises(UsageError):
        cache.index("unknown")
    with pytest.raises(UsageError):
        cache.index("taken").one("p1")
    with pytest.raises(UsageError):
        cache.index("taken").range("p1")


def test_the_newest_holder_of_a_unique_value_is_found(world: World) -> None:
    cache = world.cache(tables=["port"])
    by_address = cache.index("by_address", lambda port: port.value["ip"], unique=True)
    world.nb.create("port", "old", {"ip": "10.0.0.1"}, topic="t")
    version = world.nb.create("port", "new", {"ip": "10.0.0.1"}, topic="t")
    cache.wait_version("port", "new", version, timeout_s=WAIT_S)
    wait_until(lambda: cache.statistics().indexes.conflicts == 1, WAIT_S, "both to be there")
    assert by_address.one("10.0.0.1").key == "new"  # type: ignore[union-attr]


def test_an_index_function_that_raises_is_counted_and_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    cache = world.cache(tables=["port"])
    index = cache.index("by_net", lambda port: port.value["net"])
    version = world.nb.create("port", "p1", {}, topic="t")
    assert cache.wait_version("port", "p1", version, timeout_s=WAIT_S) is not None
    assert index.failed == ["p1"]
    assert cache.statistics().indexes.errors == 1
    assert "the function of index 'by_net' failed for port 'p1'" in caplog.text


def test_a_reader_never_sees_an_index_without_the_copy(world: World) -> None:
    """Objects move between two nets while others look, and while topics come and go."""
    fill(world, 8)
    cache = world.cache(tables=["port"], topics=["t"])
    by_net = cache.index("by_net", lambda port: port.value["net"])
    stop = threading.Event()
    wrong: list[Any] = []

    def look() -> None:
        while not stop.is_set():
            seen = {found.key: found.version for net in ("n0", "n1") for found in by_net.get(net) if check(found, net)}
            wrong.extend(key for key, version in seen.items() if (now := find(key)) and now.version < version)

    def check(found: DbObject, net: str) -> bool:
        if found.value["net"] != net:
            wrong.append((found, net))
        return True

    def find(key: str) -> DbObject | None:
        return next((found for found in cache.get_all("port") if found.key == key), None)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(60):
            world.nb.update("port", f"p{number % 8}", {"net": f"n{number % 3 % 2}", "number": number})
            if number % 20 == 10:
                cache.remove_topic("t")
                assert by_net.values() == []
                cache.add_topic("t")
        cache.wait_synced(timeout_s=WAIT_S)
        world.wait_equal(cache)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not wrong
    for net in ("n0", "n1"):
        assert by_net.get(net) == [found for found in cache.get_all("port") if found.value["net"] == net]


# -- selections, and ways out of a copy


def test_an_object_that_leaves_the_selection_is_told_as_deleted(world: World) -> None:
    told = Told()
    world.nb.create("port", "mine", {"host": "h7"}, topic="t")
    world.nb.create("port", "other", {"host": "h8"}, topic="t")
    world.nb.create("net", "n1", {}, topic="t")
    cache = world.cache(tables={"port": {"host": "h7"}, "net": None}, on_changes=told)
    assert list(values_of(cache)) == ["mine"]
    assert list(values_of(cache, "net")) == ["n1"]
    world.nb.update("port", "mine", {"host": "h8"})
    world.nb.update("port", "other", {"host": "h7"})
    wait_until(lambda: "Created other" in told.kinds() and "Deleted mine" in told.kinds(), WAIT_S, "the exchange")
    (gone,) = [change for change in told.changes if isinstance(change, Deleted)]
    assert (gone.reason, gone.object.value) == ("unselected", {"host": "h7"})
    assert list(values_of(cache)) == ["other"]


def test_where_is_checked(world: World) -> None:
    with pytest.raises(UsageError):
        LocalCache(world.nb, where="host")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        LocalCache(world.nb, tables={"port": ["host"]})  # type: ignore[dict-item]


def test_a_move_and_a_dropped_topic_are_told_apart_from_a_delete(world: World) -> None:
    told = Told()
    for key, topic in (("deleted", "t"), ("moved", "t"), ("dropped", "u")):
        world.nb.create("port", key, {}, topic=topic)
    cache = world.cache(tables=["port"], topics=["t", "u"], on_changes=told)
    world.nb.delete("port", "deleted")
    world.nb.update("port", "moved", {}, topic="elsewhere")
    wait_until(lambda: len(told.kinds(Deleted)) == 2, WAIT_S, "both to be gone")
    cache.remove_topic("u")
    gone = {change.key: (change.reason, change.moved_to) for change in told.changes if isinstance(change, Deleted)}
    assert gone == {"deleted": ("deleted", None), "moved": ("moved", "elsewhere"), "dropped": ("unfollowed", None)}


def test_a_delete_that_was_missed_is_told_once_with_the_last_object(world: World) -> None:
    """The cache hears of it from a resync only."""
    told = Told()
    fill(world, 2)
    cache = world.cache(tables=["port"], on_changes=told)
    silent = open_nb(world.url)  # this writer tells no bus
    silent.delete("port", "p1")
    silent.close()
    cache.need_delta("the test")
    wait_until(lambda: told.kinds(Deleted), WAIT_S, "the delete")
    cache.need_snapshot("the test", is_awaited=True)
    world.wait_equal(cache)
    wait_until(lambda: cache.statistics().syncs.snapshots >= 2, WAIT_S, "the snapshot")
    (gone,) = [change for change in told.changes if isinstance(change, Deleted)]
    assert (gone.reason, gone.object.value) == ("deleted", {"net": "n1", "number": 1})
