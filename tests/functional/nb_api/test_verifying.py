"""A local cache proves that it is equal to its database: no difference is missed, and none is invented."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nb_api import CacheChange, LocalCache, NbApi, Updated, Verification
from nb_api.core.copy.differences import CachedObject, pack
from nb_api.db_api import Change
from nb_api.errors import CopyUnsettled
from nb_api.loading import open_db
from pubsub_api.errors import Closed, Forked, UsageError, WaitTimeout
from tests.helpers.nb_tools import PATIENT_DB, memory_bus, open_nb, sqlite_url
from tests.helpers.waiting import WAIT_S, wait_until

TOPIC = "tenant-7"


@pytest.fixture(params=["feed", "bus"])
def nb(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[NbApi]:
    with open_nb(sqlite_url(tmp_path), memory_bus() if request.param == "bus" else None) as opened:
        yield opened


def fill(nb: NbApi, count: int = 40) -> None:
    for number in range(count):
        nb.create(("port", "net")[number % 2], f"k{number}", {"n": number, "host": f"h{number % 4}"}, topic=TOPIC)


def synced(nb: NbApi, **settings: Any) -> LocalCache:
    cache = LocalCache(nb, **settings)
    cache.wait_synced(timeout_s=WAIT_S)
    settle(nb)
    return cache


def settle(nb: NbApi) -> None:
    """Until all is published: what is not is no difference."""
    wait_until(lambda: not nb.db.unpublished())


def verify(cache: LocalCache, **settings: Any) -> Verification:
    """When the copy is settled: short intervals have it read something now and then."""
    found: list[Verification] = []

    def attempt() -> bool:
        try:
            found.append(cache.verify(timeout_s=WAIT_S, **settings))
        except CopyUnsettled:
            return False
        return True

    wait_until(attempt)
    return found[0]


def damage(cache: LocalCache, table: str, key: str, entry: CachedObject | None) -> None:
    """What an error in the memory of the machine, or in this program, would do: the copy is not told."""
    entries: Any = cache._core.tables[table]
    if entry is None:
        del entries[key]
    else:
        entries[key] = entry


def kinds(found: Verification) -> dict[str, str]:
    return {one.key: one.kind for one in found.differences}


def contents(cache: LocalCache) -> dict[tuple[str, str], tuple[int, str, Any]]:
    return {
        (found.table, found.key): (found.version, found.topic, found.value)
        for table in cache.tables
        for found in cache.get_all(table)
    }


def stored(nb: NbApi) -> dict[tuple[str, str], tuple[int, str, Any]]:
    with nb.db.snapshot(["port", "net"]) as snapshot:
        return {(found.table, found.key): (found.version, found.topic, found.value) for found in snapshot}


def test_an_equal_copy_is_proved(nb: NbApi) -> None:
    fill(nb)
    with synced(nb) as cache:
        found = verify(cache)
        assert found.is_equal
        assert found.revision == nb.db.revision()
        assert (found.objects, found.values) == (40, 40)
        assert [(proof.table, proof.held.objects) for proof in found.tables] == [("net", 20), ("port", 20)]
        assert all(proof.held == proof.stored for proof in found.tables)
        assert cache.digests() == {proof.table: proof.stored for proof in found.tables}
        assert cache.statistics().verify.differences == 0


def test_digests_follow_every_kind_of_change(nb: NbApi) -> None:
    fill(nb)
    with synced(nb, topics=[TOPIC]) as cache:
        nb.update("port", "k0", {"n": -1})
        nb.delete("port", "k2")
        nb.put("net", "k1", {"n": 1}, topic="elsewhere")
        version = nb.create("net", "new", 1, topic=TOPIC)
        cache.wait_version("net", "new", version, timeout_s=WAIT_S)
        assert verify(cache).is_equal
        cache.add_topic("elsewhere")
        cache.wait_synced(timeout_s=WAIT_S)
        assert verify(cache).is_equal
        cache.remove_topic("elsewhere")
        found = verify(cache)
        assert found.is_equal
        assert found.objects == 39


def test_a_flipped_value_is_found_shown_and_repaired(nb: NbApi, caplog: pytest.LogCaptureFixture) -> None:
    fill(nb)
    with synced(nb) as cache:
        right = cache.get("port", "k4")
        damage(cache, "port", "k4", CachedObject(right.version, right.topic, pack({**right.value, "n": True})))
        with caplog.at_level(logging.ERROR):
            found = verify(cache)
        (one,) = found.differences
        assert (one.table, one.key, one.kind, one.is_repaired) == ("port", "k4", "value", True)
        assert one.held is not None
        assert one.held.value["n"] is True
        assert one.stored == right == cache.get("port", "k4")
        assert "port 'k4' (value)" in caplog.text
        counted = cache.statistics().verify
        assert (counted.differences, counted.repaired) == (1, 1)
        assert verify(cache).is_equal


def test_every_kind_of_difference_is_found_and_repaired(nb: NbApi) -> None:
    fill(nb)
    with synced(nb) as cache:
        core: Any = cache._core
        old = cache.get("port", "k0")
        version = nb.update("port", "k0", {"n": 100})
        cache.wait_version("port", "k0", version, timeout_s=WAIT_S)
        settle(nb)

        def lose() -> list[Any]:  # as if an event had been lost, and another never told
            objects = core._objects
            entries = objects.tables["port"]
            objects.put(entries, "port", "k0", entries["k0"], CachedObject(old.version, TOPIC, pack(old.value)), [])
            objects.remove("port", "k2", 0, [])
            objects.put(entries, "port", "ghost", None, CachedObject(7 << 20, TOPIC, pack(1)), [])
            held = entries["k6"]
            objects.put(entries, "port", "k6", held, CachedObject(held.version, "nowhere", pack(held.value)), [])
            return []

        cache.change(lose)
        found = verify(cache)
        assert kinds(found) == {"k0": "stale", "k2": "missing", "ghost": "surplus", "k6": "topic"}
        assert all(one.is_repaired for one in found.differences)
        assert contents(cache) == stored(nb)
        assert verify(cache).is_equal


@pytest.mark.parametrize(("table", "key"), [("port", "no\nkey"), ("port", ""), ("no\ntable", "k"), ("t" * 256, "k")])
def test_what_no_database_can_have_is_found_and_repaired(nb: NbApi, table: str, key: str) -> None:
    """A foreign publisher may have told of it."""
    fill(nb)
    with synced(nb) as cache:
        objects: Any = cache._core._objects
        entry = CachedObject(7 << 20, TOPIC, pack(1))
        cache.change(lambda: objects.put(objects.entries_of(table), table, key, None, entry, []) or [])
        assert kinds(verify(cache)) == {key: "surplus"}
        assert contents(cache) == stored(nb)
        assert verify(cache).is_equal


def test_what_only_the_memory_lost_is_found(nb: NbApi) -> None:
    fill(nb)
    with synced(nb) as cache:
        damage(cache, "port", "k0", None)
        assert kinds(verify(cache)) == {"k0": "missing"}
        assert contents(cache) == stored(nb)


def test_consumers_are_told_of_a_repair(nb: NbApi) -> None:
    fill(nb)
    with synced(nb) as cache:
        told: list[CacheChange] = []
        cache.subscribe(told.extend)
        right = cache.get("port", "k4")
        damage(cache, "port", "k4", CachedObject(right.version, right.topic, pack(None)))
        verify(cache)
        wait_until(lambda: any(isinstance(one, Updated) and one.object == right for one in told))


def test_a_database_that_was_changed_past_everything_is_found(nb: NbApi, tmp_path: pathlib.Path) -> None:
    """A restore of single rows, by hand: versions stay, values do not."""
    fill(nb)
    with synced(nb) as cache:
        with contextlib.closing(sqlite3.connect(tmp_path / "objects.db")) as connection, connection:
            connection.execute("UPDATE objects SET value = x'07' WHERE key = 'k8'")
            connection.execute("DELETE FROM objects WHERE key = 'k9'")
        connection.close()
        assert kinds(verify(cache)) == {"k8": "value", "k9": "surplus"}
        assert cache.get("port", "k8").value == 7


def test_a_restored_database_is_read_again(tmp_path: pathlib.Path) -> None:
    with open_nb(sqlite_url(tmp_path), cache={"verify_interval": 0.0}, bus=memory_bus()) as nb:
        fill(nb)
        with synced(nb) as cache:
            with (
                contextlib.closing(sqlite3.connect(tmp_path / "objects.db")) as source,
                contextlib.closing(sqlite3.connect(tmp_path / "backup.db")) as backup,
            ):
                source.backup(backup)
            source.close()
            backup.close()
            version = nb.create("port", "lost", 1, topic=TOPIC)
            cache.wait_version("port", "lost", version, timeout_s=WAIT_S)
            for end in ("-wal", "-shm"):
                (tmp_path / f"objects.db{end}").unlink(missing_ok=True)
            os.replace(tmp_path / "backup.db", tmp_path / "objects.db")
            with pytest.raises(CopyUnsettled, match="lost its history"):
                cache.verify(timeout_s=WAIT_S)
            wait_until(lambda: cache.statistics().syncs.replaced == 1)
            assert verify(cache).is_equal
            assert contents(cache) == stored(nb)


def test_selections_by_topic_and_by_field(nb: NbApi) -> None:
    fill(nb)
    nb.create("port", "other", {"host": "h0"}, topic="tenant-8/a/b")
    for settings in (
        {"topics": ["tenant-8/#"]}, {"topics": ["tenant-8/+/b", TOPIC]}, {"topics": []}, {"where": {"host": "h0"}},
        {"tables": {"port": {"host": "h2"}, "net": None}}, {"tables": ["net"], "topics": ["+"]},
    ):  # fmt: skip
        with synced(nb, **settings) as cache:
            found = verify(cache)
            assert found.is_equal, settings
            assert found.objects == cache.statistics().objects
            if found.objects:
                table, key = next(iter(contents(cache)))
                held = cache.get(table, key)
                damage(cache, table, key, CachedObject(held.version, held.topic, pack({**held.value, "n": "flipped"})))
                assert kinds(verify(cache)) == {key: "value"}, settings


def test_an_object_that_left_the_selection_unseen_is_surplus(nb: NbApi) -> None:
    fill(nb)
    with synced(nb, where={"host": "h0"}) as cache:
        right = cache.get("port", "k0")
        version = nb.update("port", "k0", {"host": "h1"})
        cache.wait_version("port", "k0", version, timeout_s=WAIT_S)
        settle(nb)
        damage(cache, "port", "k0", CachedObject(right.version, right.topic, pack(right.value)))
        assert kinds(verify(cache)) == {"k0": "surplus"}
        assert ("port", "k0") not in contents(cache)


@pytest.mark.parametrize("bus", [None, memory_bus()], ids=["feed", "bus"])
def test_no_false_alarm_in_a_flood(tmp_path: pathlib.Path, bus: str | None) -> None:
    with open_nb(sqlite_url(tmp_path), bus, db=PATIENT_DB) as nb:  # a machine that stands still may delay a change
        fill(nb)
        flood(nb)


def flood(nb: NbApi) -> None:
    stop = threading.Event()

    def write(seed: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = f"f{seed}-{number % 15}"
            nb.put("port", key, {"n": number}, topic=(TOPIC, "tenant-8")[number % 2])
            if number % 7 == 0:
                nb.delete("port", key)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    with synced(nb) as cache, synced(nb, topics=[TOPIC], where={"n": 3}) as narrow:
        try:
            for writer in writers:
                writer.start()
            for _ in range(8):
                for copy in (cache, narrow):
                    found = verify(copy)
                    assert found.is_equal, found.differences
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        assert verify(cache).is_equal
        assert contents(cache) == stored(nb)


def test_a_difference_is_found_in_a_flood(nb: NbApi) -> None:
    fill(nb)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            nb.put("port", f"f{number % 20}", number, topic=TOPIC)

    with synced(nb) as cache:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            right = cache.get("net", "k1")
            cache.change(lambda: cache._core._objects.remove("net", "k1", 0, []) or [])
            assert kinds(verify(cache))["k1"] == "missing"
            assert cache.get("net", "k1") == right
        finally:
            stop.set()
            writer.join()


def test_two_verifications_at_once(nb: NbApi) -> None:
    fill(nb)
    found: list[Verification] = []
    with synced(nb) as cache:
        threads = [threading.Thread(target=lambda: found.append(verify(cache))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [one.is_equal for one in found] == [True] * 4


def test_a_copy_that_is_being_read_says_so(nb: NbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(nb)
    begun, go_on = threading.Event(), threading.Event()
    snapshot = nb.db.snapshot

    def slow(*args: Any, **settings: Any) -> Any:
        begun.set()
        assert go_on.wait(WAIT_S)
        return snapshot(*args, **settings)

    monkeypatch.setattr(nb.db, "snapshot", slow)
    with LocalCache(nb) as cache:
        assert begun.wait(WAIT_S)
        with pytest.raises(CopyUnsettled, match="try again later") as raised:
            cache.verify(timeout_s=WAIT_S)
        assert raised.value.retriable
        assert cache.statistics().verify.unsettled == 1
        go_on.set()
        cache.wait_synced(timeout_s=WAIT_S)
        assert verify(cache).is_equal


def test_a_resync_in_the_middle_puts_a_verification_off(nb: NbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(nb)
    with synced(nb) as cache:
        digests = nb.db.digests

        def disturbed(*args: Any, **settings: Any) -> Any:
            cache.add_topic("another")
            return digests(*args, **settings)

        monkeypatch.setattr(nb.db, "digests", disturbed)
        wait_until(lambda: not cache.unsettled(has_doubts=True))
        with pytest.raises(CopyUnsettled, match="try again later"):
            cache.verify(timeout_s=WAIT_S)


def test_refusals(nb: NbApi) -> None:
    fill(nb, 2)
    errors: list[Exception] = []

    def on_changes(_: object) -> None:
        try:
            cache.verify()
        except UsageError as error:
            errors.append(error)

    with LocalCache(nb, on_changes=on_changes) as cache:
        cache.wait_synced(timeout_s=WAIT_S)
        wait_until(lambda: errors)
        with pytest.raises(UsageError):
            cache.verify(timeout_s=-1)
        child = os.fork()
        if not child:
            try:
                cache.verify()
            except Forked:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with pytest.raises(Closed):
        cache.verify()
    with pytest.raises(Closed):
        cache.digests()
    with pytest.raises(UsageError):
        LocalCache(nb, verify_interval_s=0)


def test_a_verification_that_takes_too_long(nb: NbApi) -> None:
    fill(nb)
    with synced(nb) as cache:
        cache.change(lambda: cache._core._objects.remove("net", "k1", 0, []) or [])
        wait_until(lambda: not cache.unsettled(has_doubts=True))
        with pytest.raises((WaitTimeout, CopyUnsettled)):
            cache.verify(timeout_s=0)


def test_a_cache_verifies_itself(nb: NbApi) -> None:
    fill(nb)
    with synced(nb, verify_interval_s=0.05) as cache:
        right = cache.get("port", "k4")
        damage(cache, "port", "k4", CachedObject(right.version, right.topic, pack(None)))
        wait_until(lambda: cache.statistics().verify.repaired == 1)
        assert cache.get("port", "k4") == right


def test_a_cache_that_cannot_verify_itself_goes_on_trying(nb: NbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(nb)
    digests = nb.db.digests

    def failing(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(nb.db, "digests", digests)
        raise ValueError("broken")

    monkeypatch.setattr(nb.db, "digests", failing)
    with synced(nb, verify_interval_s=0.05) as cache:
        wait_until(lambda: cache.statistics().verify.failures == 1 and cache.statistics().verify.verifications > 1)


def test_values_of_a_large_copy_are_compared_in_turns(nb: NbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nb_api.verifying.verifier.VALUES_MAX", 100)
    fill(nb, 400)
    with synced(nb) as cache:
        right = cache.get("port", "k4")
        damage(cache, "port", "k4", CachedObject(right.version, right.topic, pack(None)))
        rounds = [verify(cache) for _ in range(4)]
        assert all(found.values < 400 and found.objects == 400 for found in rounds)
        assert sum(found.values for found in rounds) == 400
        assert [kinds(found) for found in rounds if found.differences] == [{"k4": "value"}]
        damage(cache, "port", "k6", CachedObject(cache.get("port", "k6").version, right.topic, pack(None)))
        assert kinds(verify(cache, is_thorough=True)) == {"k6": "value"}


def test_many_differences_are_repaired_by_reading_everything(nb: NbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nb_api.verifying.verifier.REPAIRS_MAX", 5)
    fill(nb)
    with synced(nb) as cache:
        for number in range(0, 40, 2):
            right = cache.get("port", f"k{number}")
            damage(cache, "port", right.key, CachedObject(right.version, right.topic, pack(None)))
        found = verify(cache)
        assert len(found.differences) == 20
        assert sum(one.is_repaired for one in found.differences) == 5
        wait_until(lambda: contents(cache) == stored(nb))


def test_what_no_publisher_has_sent_is_late_and_no_difference(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that died after its commit, and a sweeper that stands still: the copy cannot know of it yet."""
    with open_nb(sqlite_url(tmp_path), memory_bus(), cache={"verify_interval": 0.0}) as nb:
        fill(nb)
        unpublished = nb.db.unpublished
        monkeypatch.setattr(
            nb.db, "unpublished", lambda **asked: [] if asked.get("older_than_s") else unpublished(**asked)
        )
        with synced(nb) as cache, contextlib.closing(open_db(sqlite_url(tmp_path))) as dead:
            dead.create("port", "unpublished", 1, topic=TOPIC)
            found = verify(cache)
            assert found.is_equal
            assert found.late == 1
            assert ("port", "unpublished") not in contents(cache)


@pytest.mark.parametrize("looks", [1, 2])
def test_what_is_published_at_the_last_moment_is_no_difference(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """A publisher that stood still goes on: the change is out of the outbox, and not yet in the copy."""
    with open_nb(sqlite_url(tmp_path), memory_bus(), cache={"verify_interval": 0.0}) as nb:
        fill(nb)
        unpublished = nb.db.unpublished
        seen: list[int] = []
        arriving = threading.Event()

        def looked(**asked: Any) -> list[Change]:
            if asked.get("older_than_s"):
                return []  # the sweeper is the publisher that stands still
            found = unpublished(**asked)
            seen.append(len(found))
            if len(seen) != looks:
                return found
            nb.db.mark_published([change.revision for change in found])
            cache._verifier.behind_s = WAIT_S
            arriving.set()
            return []

        def arrive() -> None:
            arriving.wait(WAIT_S)
            publisher.publish(waiting)

        with synced(nb) as cache, contextlib.closing(open_db(sqlite_url(tmp_path))) as dead:
            publisher = nb.publisher
            assert publisher is not None
            dead.create("port", "late", 1, topic=TOPIC)
            waiting = unpublished()
            monkeypatch.setattr(nb.db, "unpublished", looked)
            travel = threading.Thread(target=arrive)
            travel.start()
            try:
                found = verify(cache)
            finally:
                arriving.set()
                travel.join()
            assert found.is_equal, found.differences
            assert found.late == 1
            cache.wait_version("port", "late", waiting[0].revision, timeout_s=WAIT_S)
