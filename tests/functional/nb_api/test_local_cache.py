"""A controller's copy: equal to the database in the end, with the same changes told, from the bus and from the feed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nb_api import CacheChange, Created, Deleted, LocalCache, Resynced, Updated
from nb_api.cache.reading.live_changes import LiveChanges
from nb_api.errors import InvalidObject, ObjectNotFound
from pubsub_api import Event
from pubsub_api.errors import Closed, Forked, InvalidTopic, UsageError, WaitTimeout
from pubsub_api.loading import load_driver
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.nb_worlds import Told, World
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.waiting import wait_until

WAIT_S = 60.0
_DIRECT = {"pub_sub_use_multiproc": False}


@pytest.fixture(params=["feed", "bus"])
def world(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[World]:
    bus = memory_bus() if request.param == "bus" else None
    world = World(bus, sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), bus))
    yield world
    world.close()


# -- following


def test_a_new_cache_reads_the_database_once(tmp_path: pathlib.Path) -> None:
    """The beginning of the subscription asks for all objects, which have the changes, too."""
    bus = memory_bus()
    with open_nb(sqlite_url(tmp_path), bus) as nb:
        nb.put("port", "p1", 1, topic="t")
        for _ in range(10):
            with contextlib.closing(LocalCache(nb)) as cache:
                cache.wait_synced(timeout_s=WAIT_S)
                assert cache.statistics().syncs.reasons["initial"] == 1


def test_a_cache_holds_what_was_there_and_follows_what_comes(world: World) -> None:
    world.nb.create("port", "p1", {"up": False}, topic="tenant-7")
    told = Told()
    cache = world.cache(tables=["port"], topics=["tenant-7/#"], on_changes=told)
    assert cache.get("port", "p1") == world.nb.get("port", "p1")
    world.nb.create("port", "p2", 2, topic="tenant-7/x")
    world.nb.update("port", "p1", {"up": True})
    world.nb.delete("port", "p2")
    world.nb.create("port", "other", 3, topic="tenant-8")
    world.nb.create("net", "n", 3, topic="tenant-7")
    world.nb.create("port", "p3", 4, topic="tenant-7")
    world.wait_equal(cache, topics=["tenant-7/#"])
    wait_until(lambda: len(told.kinds()) >= 5, WAIT_S, "all changes")
    assert sorted(told.kinds()) == ["Created p1", "Created p2", "Created p3", "Deleted p2", "Updated p1"]
    with pytest.raises(ObjectNotFound):
        cache.get("port", "p2")
    assert told.resyncs()[0].kind == "snapshot"
    assert cache.tables == ["port"]


def test_changes_that_could_not_be_applied_are_read_from_the_database(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may run out in the middle of a batch."""
    with open_nb(sqlite_url(tmp_path), memory_bus()) as nb, LocalCache(nb, on_changes=Told()) as cache:
        cache.wait_synced(timeout_s=WAIT_S)
        monkeypatch.setattr(LiveChanges, "apply", fail_once(LiveChanges.apply, MemoryError()))
        nb.put("port", "p1", 1, topic="t")
        wait_until(lambda: cache.get_all("port") == nb.get_all("port"), WAIT_S, "the copy to be equal")
        assert cache.statistics().syncs.reasons["changes could not be applied"] == 1


def fail_once(function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    errors = [error]

    def call(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return function(*args)

    return call


def test_changes_can_be_iterated(world: World) -> None:
    world.nb.create("port", "p1", 1, topic="t")
    cache = world.cache()
    world.nb.update("port", "p1", 2)
    seen: list[CacheChange] = []
    for change in cache.changes(timeout_s=WAIT_S):
        seen.append(change)
        if isinstance(change, Updated):
            break
    assert [type(change).__name__ for change in seen if not isinstance(change, Resynced)] == ["Created", "Updated"]
    found = seen[0].object  # type: ignore[union-attr]
    assert (found.table, found.key, found.value, found.topic) == ("port", "p1", 1, "t")
    assert [change for change in cache.changes(timeout_s=0.0) if not isinstance(change, Resynced)] == []


def test_iterating_ends_when_the_cache_is_closed(world: World) -> None:
    cache = world.cache()
    seen: queue.SimpleQueue[CacheChange | None] = queue.SimpleQueue()

    def iterate() -> None:
        for change in cache.changes():
            seen.put(change)
        seen.put(None)

    thread = threading.Thread(target=iterate)
    thread.start()
    assert seen.get(timeout=WAIT_S) is not None
    cache.close()
    thread.join(WAIT_S)
    while seen.get(timeout=WAIT_S) is not None:
        """Changes that came before the end."""
    with pytest.raises(Closed):
        cache.get("port", "p1")
    cache.close()


def test_an_iterator_that_does_not_keep_up_is_told_to_read_everything(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.notify_config.CHANGES_QUEUE_MAX", 10)
    cache = world.cache()
    for number in range(50):
        world.nb.create("port", f"p{number}", number, topic="t")
    world.wait_equal(cache)
    wait_until(lambda: cache.statistics().telling.overruns == 1, WAIT_S, "an overrun")
    overrun = next(cache.changes(timeout_s=WAIT_S))
    assert isinstance(overrun, Resynced)
    assert not overrun.is_told
    assert len(cache.get_all("port")) == 50
    world.nb.create("port", "late", 1, topic="t")
    # Before it there may be one of the fifty that was in the copy already and is told only now.
    told = (change for change in cache.changes(timeout_s=WAIT_S) if isinstance(change, Created))
    assert any(change.object.key == "late" for change in told)


def test_many_objects_and_writers_at_once(world: World) -> None:
    cache = world.cache()

    def write(number: int) -> None:
        with open_nb(world.url, world.bus) as mine:
            for step in range(60):
                key = f"p{step % 7}"
                if step % 5 == 4:
                    with contextlib.suppress(ObjectNotFound):
                        mine.delete("port", key)
                else:
                    mine.put("port", key, [number, step], topic=f"t/{step % 3}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    world.wait_equal(cache)


def test_a_cache_that_starts_in_the_middle_of_writing_misses_nothing(world: World) -> None:
    stop = threading.Event()

    def write() -> None:
        for number in range(100_000):
            if stop.is_set():
                return
            world.nb.put("port", f"p{number % 50}", number, topic="t")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        caches = [world.cache() for _ in range(3)]
    finally:
        stop.set()
        writer.join()
    for cache in caches:
        world.wait_equal(cache)


def test_a_callback_that_raises_is_counted_and_the_copy_stays_right(world: World) -> None:
    def broken(changes: Sequence[CacheChange]) -> None:
        raise ValueError("on purpose")

    cache = world.cache(on_changes=broken)
    world.nb.create("port", "p1", 1, topic="t")
    world.wait_equal(cache)
    wait_until(lambda: cache.statistics().telling.callback_errors > 0, WAIT_S, "the error to be counted")
    with pytest.raises(UsageError):
        next(cache.changes())


def test_a_callback_may_close_the_cache(world: World) -> None:
    caches: list[LocalCache] = []
    closed = threading.Event()

    def on_changes(changes: Sequence[CacheChange]) -> None:
        if caches:
            caches[0].close()
            closed.set()

    caches.append(world.cache(on_changes=on_changes))
    world.nb.create("port", "p1", 1, topic="t")
    assert closed.wait(WAIT_S)


def test_arguments_are_checked(world: World) -> None:
    with pytest.raises(InvalidTopic):
        LocalCache(world.nb, topics=["a/#/b"])
    with pytest.raises(InvalidObject):
        LocalCache(world.nb, tables="port")


def test_a_cache_does_not_live_on_in_a_forked_child(world: World) -> None:
    cache = world.cache()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            cache.get("port", "p1")
        except Forked:
            cache.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- topics


def test_topics_can_be_added_and_removed(world: World) -> None:
    for tenant in ("7", "8"):
        world.nb.create("port", f"p{tenant}", tenant, topic=f"tenant-{tenant}")
    told = Told()
    cache = world.cache(topics=["tenant-7"], on_changes=told)
    rows = cache.statistics().syncs.rows
    assert cache.add_topic("tenant-8")
    assert not cache.add_topic("tenant-8")
    cache.wait_synced(timeout_s=WAIT_S)
    world.wait_equal(cache)
    assert cache.statistics().syncs.rows == rows + 1  # only what is relevant was pulled
    world.nb.update("port", "p8", "more")
    world.wait_equal(cache)
    assert cache.remove_topic("tenant-8")
    assert not cache.remove_topic("tenant-8")
    assert [found.key for found in cache.get_all("port")] == ["p7"]
    assert told.kinds()[-1] == "Deleted p8"
    world.nb.update("port", "p8", "unseen")
    world.nb.update("port", "p7", "seen")
    wait_until(lambda: cache.get("port", "p7").value == "seen", WAIT_S, "the update of what is still followed")
    assert [found.key for found in cache.get_all("port")] == ["p7"]
    assert cache.topics == ["tenant-7"]


def test_a_cache_may_begin_without_topics(world: World) -> None:
    world.nb.create("port", "p1", 1, topic="t")
    cache = world.cache(topics=[])
    assert cache.get_all("port") == []
    cache.add_topic("t")
    wait_until(lambda: len(cache.get_all("port")) == 1, WAIT_S, "the topic's objects")
    cache.wait_synced(timeout_s=WAIT_S)


def test_a_port_online_subscribes_its_tenant_and_a_second_one_does_not_pull_again(world: World) -> None:
    """Selective topology: a binding of this host makes its tenant relevant, the last one gone makes it irrelevant."""
    world.nb.create("net", "n7", "net of 7", topic="tenant-7")
    world.nb.create("net", "n8", "net of 8", topic="tenant-8")
    caches: list[LocalCache] = []
    bound: dict[str, str] = {}

    def on_changes(changes: Sequence[CacheChange]) -> None:
        for change in changes:
            if isinstance(change, Resynced) or change.object.table != "binding":
                continue
            if isinstance(change, Deleted):
                tenant = bound.pop(change.object.key)
                if tenant not in bound.values():
                    caches[0].remove_topic(tenant)
            else:
                bound[change.object.key] = change.object.value
                caches[0].add_topic(change.object.value)

    caches.append(world.cache(topics=["host-1"], on_changes=on_changes))
    cache = caches[0]
    world.nb.create("binding", "port-1", "tenant-7", topic="host-1")
    wait_until(lambda: [found.key for found in cache.get_all("net")] == ["n7"], WAIT_S, "the tenant's network")
    world.nb.create("binding", "port-2", "tenant-7", topic="host-1")
    world.wait_equal(cache, "binding")
    cache.wait_synced(timeout_s=WAIT_S)
    pulled = cache.statistics().syncs.topics
    world.nb.delete("binding", "port-1")
    world.wait_equal(cache, "binding")
    assert [found.key for found in cache.get_all("net")] == ["n7"]
    world.nb.delete("binding", "port-2")
    wait_until(lambda: cache.get_all("net") == [], WAIT_S, "the network to be dropped")
    assert cache.statistics().syncs.topics == pulled


def test_an_object_that_moves_between_topics_comes_and_goes(world: World) -> None:
    world.nb.create("port", "p1", 1, topic="a")
    seven, eight, both = (world.cache(topics=topics) for topics in (["a"], ["b"], ["a", "b"]))
    told = Told()
    watching = world.cache(topics=["a", "b"], on_changes=told)
    world.nb.update("port", "p1", 2, topic="b")
    wait_until(lambda: seven.get_all("port") == [], WAIT_S, "the old topic's follower to drop it")
    for cache in (eight, both, watching):
        world.wait_equal(cache)
    wait_until(lambda: len(told.kinds()) >= 2, WAIT_S, "both to be told")
    assert told.kinds() == ["Created p1", "Updated p1"]


# -- loss, resync, the database


def test_rows_written_past_the_bus_appear_with_a_periodic_resync(world: World) -> None:
    cache = world.cache(options={"resync_interval": 0.2})
    world.nb.db.create("port", "p1", 1, topic="t")
    world.nb.db.mark_published([world.nb.db.revision()])
    world.wait_equal(cache)
    world.nb.db.delete("port", "p1")
    world.nb.db.mark_published([world.nb.db.revision()])
    world.wait_equal(cache)


def test_a_database_that_went_back_is_noticed_and_followed(world: World, tmp_path: pathlib.Path) -> None:
    world.nb.create("port", "kept", 1, topic="t")
    world.nb.flush(timeout_s=WAIT_S)
    backup = tmp_path / "backup.db"
    _copy(tmp_path / "objects.db", backup)
    world.nb.create("port", "undone", 1, topic="t")
    world.nb.update("port", "kept", 2)
    told = Told()
    cache = world.cache(on_changes=told)
    world.wait_equal(cache)
    world.nb.flush(timeout_s=WAIT_S)
    _copy(backup, tmp_path / "objects.db")
    world.wait_equal(cache)
    assert [found.value for found in cache.get_all("port")] == [1]
    wait_until(lambda: cache.statistics().syncs.replaced > 0, WAIT_S, "the replacing snapshot")
    world.nb.create("port", "new", 3, topic="t")
    world.wait_equal(cache)


def _copy(source: pathlib.Path, goal: pathlib.Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(source)) as read,
        contextlib.closing(sqlite3.connect(goal, timeout=WAIT_S)) as write,
    ):
        read.backup(write)


def test_changes_that_are_compacted_away_lead_to_a_snapshot(world: World) -> None:
    cache = world.cache(tables=["port"])
    nb = world.nb
    nb.create("port", "p0", 0, topic="t")
    world.wait_equal(cache)
    if world.bus is None:
        with world.open() as other:  # past the feed of the cache, which is fast: so the compaction has to win a race
            for number in range(20):
                other.create("port", f"p{number + 1}", number, topic="t")
                other.db.compact(keep_changes=0, keep_tombstones_s=0)
        world.wait_equal(cache)
        return
    nb.db.delete("port", "p0")
    nb.db.create("port", "p1", 1, topic="t")
    nb.db.mark_published([found.revision for found in nb.db.unpublished()])
    nb.db.compact(keep_changes=0, keep_tombstones_s=0)
    cache.need_delta("test")
    world.wait_equal(cache)
    cache.wait_synced(timeout_s=WAIT_S)
    assert cache.statistics().syncs.escalated >= 1
    assert cache.statistics().syncs.snapshots >= 2


def test_a_cache_that_is_far_behind_reads_the_objects_instead(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.cache.reading.sync.DELTA_CHANGES_MAX", 5)
    world = World(memory_bus(), sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), db={"outbox_age": 60.0}))
    try:
        cache = world.cache()
        for number in range(20):
            world.nb.create("port", f"p{number}", number, topic="t")
        cache.need_delta("test")
        world.wait_equal(cache)
        cache.wait_synced(timeout_s=WAIT_S)
        assert cache.statistics().syncs.deltas == 0
        assert cache.statistics().syncs.snapshots >= 2
    finally:
        world.close()


@pytest.mark.parametrize("source", ["feed", "bus"])
def test_a_database_that_is_away_is_waited_for(source: str) -> None:
    """The resync is deferred, again and again, and not dropped."""
    with RedisServer() as server:
        bus = memory_bus() if source == "bus" else None
        times = {"operation_timeout": 0.5}
        world = World(bus, server.address, open_nb(server.address, bus), times)
        try:
            cache = world.cache()
            server.freeze()
            cache.need_delta("test")
            with pytest.raises(WaitTimeout):
                cache.wait_synced(timeout_s=0.05)
            wait_until(lambda: cache.statistics().syncs.failures > 1, WAIT_S, "attempts that failed")
            server.thaw()
            cache.wait_synced(timeout_s=WAIT_S)
            world.nb.put("port", "p1", 1, topic="t")
            world.wait_equal(cache)
        finally:
            server.thaw()
            world.close()


# -- the bus's own troubles


@pytest.fixture
def bus_world(tmp_path: pathlib.Path) -> Iterator[World]:
    bus = memory_bus()
    world = World(bus, sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), bus))
    yield world
    world.close()


def _faults(world: World) -> Any:
    assert world.bus is not None
    return load_driver("memory").bus(world.bus.removeprefix("memory://")).faults  # type: ignore[attr-defined]


def test_lost_events_are_repaired_by_a_delta_and_told_as_differences(bus_world: World) -> None:
    told = Told()
    cache = bus_world.cache(on_changes=told)
    bus_world.nb.create("port", "first", 0, topic="t")
    bus_world.wait_equal(cache)
    _faults(bus_world).set(drop=1.0)
    for number in range(10):
        bus_world.nb.create("port", f"p{number}", number, topic="t")
    bus_world.nb.delete("port", "p0")
    bus_world.nb.flush(timeout_s=WAIT_S)
    _faults(bus_world).set(drop=0.0)
    bus_world.nb.create("port", "last", 0, topic="t")
    bus_world.wait_equal(cache)
    cache.wait_synced(timeout_s=WAIT_S)
    expected = {f"Created p{number}" for number in range(1, 10)}
    wait_until(lambda: expected <= set(told.kinds()), WAIT_S, "all of them to be told")


def test_a_bus_that_drops_repeats_and_reorders_ends_right(bus_world: World) -> None:
    cache = bus_world.cache()
    _faults(bus_world).set(drop=0.2, duplicate=0.2, reorder=0.2)
    for number in range(300):
        bus_world.nb.put("port", f"p{number % 20}", number, topic=f"t/{number % 3}")
    bus_world.nb.flush(timeout_s=WAIT_S)
    _faults(bus_world).set(drop=0.0, duplicate=0.0, reorder=0.0)
    bus_world.wait_equal(cache)


def test_events_of_other_programs_do_no_harm(bus_world: World) -> None:
    """Poison: events without a version, with one from the far future, with a wrong form; then the truth again."""
    bus_world.nb.create("port", "p1", "truth", topic="t")
    cache = bus_world.cache()
    assert bus_world.nb.session is not None
    stranger = bus_world.nb.session.publisher(name="stranger")
    stranger.send_event(Event(topic="t", table="port", key="p1", action="set", value="lie"))
    stranger.send_event(Event(topic="t", table="port", key="p1", action="set", value="lie", version=10**15))
    stranger.send_event(Event(topic="t", table="port", key="p2", action="delete", value={"moved_to": 7}, version=1))
    stranger.flush(timeout_s=WAIT_S)
    wait_until(lambda: cache.statistics().news.unversioned == 1, WAIT_S, "the events")
    wait_until(lambda: cache.statistics().syncs.replaced > 0, WAIT_S, "the lie to be found out")
    bus_world.wait_equal(cache)
    bus_world.nb.update("port", "p1", "new truth")
    bus_world.wait_equal(cache)


def test_a_bus_that_is_away_does_not_make_copies_old(tmp_path: pathlib.Path) -> None:
    """The database is read instead, also by a controller that starts without a bus; then the bus comes back."""
    with RedisServer() as server:
        world = World(server.address, sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), server.address))
        try:
            patience = {"bus_patience": 0.2}
            cache = world.cache(options=patience)
            server.kill()
            world.nb.create("port", "p1", 1, topic="t")
            world.wait_equal(cache)
            late = world.cache(options=patience)
            world.wait_equal(late)
            server.restart()
            wait_until(lambda: world.nb.db.unpublished() == [], WAIT_S, "the outbox to be published")
            world.nb.create("port", "p2", 2, topic="t")
            for one in (cache, late):
                world.wait_equal(one)
                one.wait_synced(timeout_s=WAIT_S)
                wait_until(lambda one=one: _links_up(one) == 1, WAIT_S, "the link to be up")  # type: ignore[misc]
        finally:
            world.close()


def test_a_copy_that_cannot_reach_one_of_its_publishers_reads_the_database(tmp_path: pathlib.Path) -> None:
    """Another one can be reached, so the bus is there; what the first one tells has to come otherwise."""
    here, there, nowhere = (f"127.0.0.1:{free_port()}" for _ in range(3))
    world = World(f"zmq://{here}", sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), f"zmq://{here}", **_DIRECT))
    unheard = open_nb(world.url, f"zmq://{there}", publisher_name="unheard", **_DIRECT)
    try:
        world.nb.create("port", "p1", 1, topic="t")
        addresses = [f"tcp://{here}", f"tcp://{nowhere}"]
        cache = world.cache(options={"bus_patience": 0.2}, addresses=addresses)
        wait_until(lambda: _links_up(cache) == 1, WAIT_S, "the link to be up")
        unheard.create("port", "p2", 2, topic="t")
        unheard.flush(timeout_s=WAIT_S)
        world.wait_equal(cache)
        bus = cache.statistics().bus
        assert bus is not None
        assert (bus.links_up, bus.links_down) == (1, 1)
    finally:
        unheard.close()
        world.close()


def test_a_copy_whose_key_is_not_that_of_a_writer_reads_the_database(tmp_path: pathlib.Path) -> None:
    """Half of the hosts have another key: what they publish is refused, and must not be missing."""
    bus = memory_bus()
    world = World(bus, sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), bus, hmac_key="a" * 32))
    other = open_nb(world.url, bus, publisher_name="other", hmac_key="b" * 32)
    try:
        cache = LocalCache(world.open(cache={"bus_patience": 0.2}, hmac_key="a" * 32))
        world.caches.append(cache)
        cache.wait_synced(timeout_s=WAIT_S)
        other.create("port", "p1", 1, topic="t")
        other.flush(timeout_s=WAIT_S)
        world.wait_equal(cache)
    finally:
        other.close()
        world.close()


def _links_up(cache: LocalCache) -> int:
    statistics = cache.statistics().bus
    assert statistics is not None
    return statistics.links_up


def test_tombstones_are_bounded(bus_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nb_api.notify_config.TOMBSTONES_MAX", 16)
    cache = bus_world.cache()
    for number in range(60):
        bus_world.nb.create("port", f"p{number}", number, topic="t")
        bus_world.nb.delete("port", f"p{number}")
    bus_world.nb.create("port", "last", 1, topic="t")
    bus_world.wait_equal(cache)
    cache.wait_synced(timeout_s=WAIT_S)
    assert cache.statistics().tombstones <= 16
    assert cache.statistics().syncs.deltas > 0


def test_a_copy_learns_of_changes_that_the_bus_cannot_carry(tmp_path: pathlib.Path) -> None:
    """Beyond ``streams_max`` nothing is published: the status names it, and copies must not stay wrong for that."""
    url, bus = sqlite_url(tmp_path), memory_bus()
    with open_nb(url, bus, streams_max=2) as writer, open_nb(url, bus) as nb, LocalCache(nb) as cache:
        cache.wait_synced(timeout_s=WAIT_S)
        for number in range(6):
            writer.create("port", f"p{number}", number, topic=f"t/{number}")
        wait_until(lambda: len(cache.get_all("port")) == 6, WAIT_S, "what could not be published")
        wait_until(lambda: len(writer.db.unpublished()) == 4, WAIT_S, "the others to be out of the outbox")
        writer.delete("port", "p5")
        wait_until(lambda: len(cache.get_all("port")) == 5, WAIT_S, "the delete, too")
