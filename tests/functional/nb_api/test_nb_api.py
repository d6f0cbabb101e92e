"""Writing objects: what is stored, what is told, what is refused, and what outlives a process that dies."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nb_api import Change, NbApi, notify_config
from nb_api.errors import InvalidObject, ObjectExists, ObjectNotFound, RevisionTooOld, VersionConflict
from nb_api.loading import open_db
from pubsub_api import Event
from pubsub_api.errors import InvalidConfig, LimitReached, UsageError, WaitTimeout
from tests.helpers.nb_tools import PATIENT_DB, memory_bus, nb_conf, open_nb, sqlite_url
from tests.helpers.waiting import wait_until


class Listener:
    """Everything that the bus tells."""

    def __init__(self, nb: NbApi) -> None:
        assert nb.session is not None
        self.events: list[Event] = []
        nb.session.subscriber(["#"], self.events.append).wait_ready(timeout_s=30)

    def wait(self, count: int) -> list[Event]:
        wait_until(lambda: len(self.events) >= count, 30, f"{count} events")
        return list(self.events)

    def wait_versions(self, *versions: int) -> None:
        """Until these were told, in whatever order, however often."""
        wanted = set(versions)
        wait_until(lambda: {event.version for event in tuple(self.events)} >= wanted, 60, f"versions {versions}")

    def told(self, count: int) -> list[tuple[str, str, str, Any, int]]:
        return [(e.topic, e.key, e.action, e.value, e.version) for e in self.wait(count)]


@pytest.fixture
def nb(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    with open_nb(sqlite_url(tmp_path), memory_bus(), db=PATIENT_DB) as nb:
        yield nb


@pytest.fixture
def sweeping_nb(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    """Publishes soon what others left, and what is its own again when it was slow."""
    with open_nb(sqlite_url(tmp_path), memory_bus()) as nb:
        yield nb


@pytest.fixture
def plain(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    """Without a bus."""
    with open_nb(sqlite_url(tmp_path)) as nb:
        yield nb


def is_clean(nb: NbApi) -> bool:
    return nb.db.unpublished() == []


# -- what is told


def test_create_update_delete_are_stored_and_told_exactly(nb: NbApi) -> None:
    listener = Listener(nb)
    created = nb.create("port", "p1", {"up": False}, topic="tenant-7")
    updated = nb.update("port", "p1", {"up": True})
    assert nb.get("port", "p1").value == {"up": True}
    deleted = nb.delete("port", "p1")
    assert listener.told(3) == [
        ("tenant-7", "p1", "create", {"up": False}, created),
        ("tenant-7", "p1", "set", {"up": True}, updated),
        ("tenant-7", "p1", "delete", None, deleted),
    ]
    nb.flush(timeout_s=30)
    assert is_clean(nb)


def test_followers_of_the_topic_that_an_object_left_are_told_too(nb: NbApi) -> None:
    listener = Listener(nb)
    nb.create("port", "p1", 1, topic="tenant-7")
    moved = nb.update("port", "p1", 1, topic="tenant-8")
    told = listener.told(3)
    # Each topic has an order of its own.
    assert [event for event in told if event[0] == "tenant-8"] == [("tenant-8", "p1", "set", 1, moved)]
    assert [event for event in told if event[0] == "tenant-7"][1:] == [
        ("tenant-7", "p1", "delete", {"moved_to": "tenant-8"}, moved)
    ]


def test_a_transaction_is_told_as_a_batch_with_every_version(nb: NbApi) -> None:
    listener = Listener(nb)
    nb.create("port", "p1", 1, topic="t")
    nb.create("port", "p2", 1, topic="t")
    with nb.transaction() as txn:
        txn.update("port", "p1", 2, topic="u")
        txn.delete("port", "p2")
        txn.create("port", "p3", 3, topic="t")
    first, second, third = txn.versions
    told = listener.told(6)
    # Each topic has an order of its own.
    assert [event for event in told if event[0] == "u"] == [("u", "p1", "set", 2, first)]
    assert [event for event in told if event[0] == "t"][2:] == [
        ("t", "p1", "delete", {"moved_to": "u"}, first),
        ("t", "p2", "delete", None, second),
        ("t", "p3", "create", 3, third),
    ]


def test_what_the_caller_does_to_a_value_afterwards_is_not_told(nb: NbApi) -> None:
    listener = Listener(nb)
    value = {"n": 0}
    for number in range(50):
        value["n"] = number
        nb.create("port", f"p{number}", value, topic="t")
    assert [event.value["n"] for event in listener.wait(50)] == list(range(50))


def test_an_unchanged_update_writes_and_tells_nothing(nb: NbApi) -> None:
    listener = Listener(nb)
    created = nb.create("port", "p1", {"up": True}, topic="t")
    assert nb.update("port", "p1", {"up": True}) == created
    assert nb.update("port", "p1", lambda value: value, expected_version=created) == created
    changed = nb.update("port", "p1", {"up": 1})  # equal in Python, not the same value
    assert changed > created
    assert nb.update("port", "p1", lambda value: {**value, "up": 2}) > changed
    assert [event.value["up"] for event in listener.wait(3)] == [True, 1, 2]
    assert nb.statistics().unchanged == 2


def test_a_function_may_change_the_value_it_is_given(nb: NbApi) -> None:
    def add(value: dict[str, int]) -> dict[str, int]:
        value["n"] += 1
        return value

    nb.create("port", "p1", {"n": 0}, topic="t")
    nb.update("port", "p1", add)
    assert nb.get("port", "p1").value == {"n": 1}


def test_refused_writes_tell_nothing(nb: NbApi) -> None:
    listener = Listener(nb)
    nb.create("port", "p1", 1, topic="t")
    with pytest.raises(ObjectNotFound):
        nb.delete("port", "p2")
    with pytest.raises(VersionConflict):
        nb.delete("port", "p1", expected_version=99)
    with pytest.raises(ObjectNotFound):
        nb.update("port", "p2", 1)
    with pytest.raises(VersionConflict):
        nb.update("port", "p1", 2, expected_version=99)
    with pytest.raises(ObjectExists):
        nb.create("port", "p1", 2, topic="t")
    last = nb.create("port", "end", None, topic="t")
    assert [event.version for event in listener.wait(2)] == [nb.get("port", "p1").version, last]


def test_a_transaction_that_was_given_up_cannot_be_used_again(nb: NbApi) -> None:
    transaction = nb.transaction()
    with contextlib.suppress(ZeroDivisionError), transaction as txn:
        txn.create("port", "given-up", {}, topic="t")
        raise ZeroDivisionError
    with pytest.raises(UsageError):
        transaction.create("port", "p1", {}, topic="t")
    with pytest.raises(UsageError), transaction:
        pass
    assert nb.get_all("port") == []


def test_a_transaction_happens_as_a_whole_or_not_at_all(nb: NbApi) -> None:
    listener = Listener(nb)
    nb.create("port", "p1", 1, topic="t")

    def write(goal: str) -> None:
        with nb.transaction() as txn:
            txn.update("port", "p1", 2)
            txn.delete("port", goal or str(1 // 0))

    with pytest.raises(ObjectNotFound) as caught:
        write("missing")
    assert caught.value.position == 1
    with pytest.raises(ZeroDivisionError):
        write("")
    with nb.transaction() as txn:
        pass
    assert txn.versions == []
    with pytest.raises(UsageError):
        txn.create("port", "late", 1, topic="t")
    assert nb.get("port", "p1").value == 1
    last = nb.create("port", "end", None, topic="t")
    assert [event.version for event in listener.wait(2)] == [nb.get("port", "p1").version, last]


# -- reading and rules


def test_get_all_selects_by_topic_and_sorts_by_key(plain: NbApi) -> None:
    for key, topic in (("b", "t/1"), ("a", "t/2"), ("c", "u")):
        plain.create("port", key, None, topic=topic)
    plain.create("net", "n", None, topic="t/1")
    assert [found.key for found in plain.get_all("port")] == ["a", "b", "c"]
    assert [found.key for found in plain.get_all("port", topics=["t/#"])] == ["a", "b"]
    assert plain.get_all("port", topics=[]) == []


def test_put_creates_or_updates(plain: NbApi) -> None:
    created = plain.put("port", "p1", 1, topic="t")
    assert plain.put("port", "p1", 2, topic="t") > created
    assert plain.get("port", "p1").value == 2


def test_numbers_are_allocated_once(plain: NbApi) -> None:
    assert [plain.allocate("tunnel") for _ in range(3)] == [1, 2, 3]


def test_bad_arguments_are_refused_before_anything_happens(plain: NbApi) -> None:
    with pytest.raises(InvalidObject):
        plain.create("", "p1", 1, topic="t")
    with pytest.raises(LimitReached):
        plain.create("port", "p1", "x" * 600_000, topic="t")
    assert plain.db.revision() == 0


def test_without_a_bus_there_is_no_outbox(plain: NbApi) -> None:
    plain.create("port", "p1", 1, topic="t")
    assert plain.session is None
    assert is_clean(plain)
    plain.flush(timeout_s=0)


def test_configurations_that_cannot_work_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidConfig, match="frame_bytes_max"):
        open_nb(sqlite_url(tmp_path), memory_bus(), db={"value_bytes_max": 2_000_000})
    with pytest.raises(UsageError):
        NbApi.open(conf=nb_conf(), config_files=[])


# -- no lost update


def test_no_update_is_lost_between_writers(plain: NbApi, tmp_path: pathlib.Path) -> None:
    plain.create("counter", "c", 0, topic="t")

    def work() -> None:
        with open_nb(sqlite_url(tmp_path)) as mine:
            for _ in range(25):
                mine.update("counter", "c", lambda value: value + 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plain.get("counter", "c").value == 100
    assert len(plain.db.changes(0)) == 101


def test_an_update_that_is_always_overtaken_gives_up_with_a_conflict(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.notify_config.UPDATE_ATTEMPTS_MAX", 3)
    with open_nb(sqlite_url(tmp_path)) as nb:
        nb.create("counter", "c", 0, topic="t")

        def overtaken(value: int) -> int:
            nb.db.set("counter", "c", value + 1)
            return value + 10

        with pytest.raises(VersionConflict):
            nb.update("counter", "c", overtaken)
        assert nb.get("counter", "c").value == 3
        assert nb.statistics().conflicts == 2


# -- the outbox


@pytest.mark.parametrize("has_bus", [False, True])
def test_the_feed_of_a_database_does_not_grow_for_ever(
    tmp_path: pathlib.Path, has_bus: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.writing.compaction.COMPACT_INTERVAL_S", 0.05)
    with open_nb(sqlite_url(tmp_path), memory_bus() if has_bus else None, db={"changes_kept": 10}) as nb:
        for number in range(50):
            nb.put("port", "p1", number, topic="t")
        nb.flush(timeout_s=30)
        wait_until(lambda: nb.statistics().compactor.dropped == 40, 30, "a compacted feed")
        assert [change.value for change in _feed(nb)] == list(range(40, 50))


def _feed(nb: NbApi) -> list[Change]:
    try:
        return nb.db.changes(0)
    except RevisionTooOld as error:
        return nb.db.changes(error.oldest_revision)


def test_what_a_writer_left_is_swept(sweeping_nb: NbApi) -> None:
    nb = sweeping_nb
    listener = Listener(nb)
    left = [nb.db.create("port", f"p{number}", number, topic="t") for number in range(3)]  # past NbApi: not published
    mine = nb.create("port", "mine", None, topic="t")
    listener.wait_versions(*left, mine)
    wait_until(lambda: is_clean(nb), 30, "an empty outbox")
    wait_until(lambda: nb.statistics().sweeper.swept >= 3, 30, "the count of them")


def test_a_change_that_no_event_can_carry_does_not_hold_up_the_others(
    sweeping_nb: NbApi, tmp_path: pathlib.Path
) -> None:
    """Poison in the outbox: somebody with larger limits has written it."""
    nb = sweeping_nb
    listener = Listener(nb)
    large = open_db(sqlite_url(tmp_path), nb_conf(db={"value_bytes_max": 2_000_000}))
    large.create("port", "large", "x" * 1_500_000, topic="t")
    after = large.create("port", "after", 1, topic="t")
    large.close()
    mine = nb.create("port", "mine", 1, topic="t")
    listener.wait_versions(mine, after)
    wait_until(lambda: [one.key for one in nb.db.unpublished()] == ["large"], 60, "the others to be published")
    assert {event.key for event in listener.events} == {"mine", "after"}
    wait_until(lambda: nb.statistics().sweeper.refused == 1, 60, "the count of it")


def test_what_can_be_published_is_swept_however_many_changes_before_it_cannot(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.writing.sweeper.REFUSED_MAX", 3)
    monkeypatch.setattr("nb_api.notify_config.SWEEP_BATCH", 2)
    url = sqlite_url(tmp_path)
    with open_nb(url, memory_bus(), streams_max=1) as nb:
        nb.create("port", "first", 0, topic="t")
        nb.flush(timeout_s=60)
        with contextlib.closing(open_db(url, with_outbox=True)) as dead:
            bad = [dead.create("port", f"bad-{number}", number, topic=f"t/{number}") for number in range(9)]
            dead.create("port", "good", 1, topic="t")
        wait_until(lambda: [one.revision for one in nb.db.unpublished()] == bad, 60, "the good one to be swept")
        wait_until(lambda: nb.statistics().sweeper.refused == len(bad), 60, "the count of the others")


def test_changes_beyond_streams_max_stay_in_the_outbox_until_there_is_room(tmp_path: pathlib.Path) -> None:
    url, bus = sqlite_url(tmp_path), memory_bus()
    with open_nb(url, bus, streams_max=3) as nb:
        created = [nb.create("port", f"p{number}", number, topic=f"t/{number}") for number in range(5)]
        last = nb.update("port", "p0", 10)
        wait_until(lambda: nb.statistics().sweeper.refused == 2, 60, "the sweeper to meet them")
        wait_until(lambda: [one.key for one in nb.db.unpublished()] == ["p3", "p4"], 60, "the others to be published")
        assert last not in {one.revision for one in nb.db.unpublished()}
    with open_nb(url, bus) as roomy:
        listener = Listener(roomy)
        roomy.create("port", "awake", 1, topic="t/0")  # a process sweeps from its first write on
        wait_until(lambda: is_clean(roomy), 60, "an empty outbox")
        listener.wait_versions(*created[3:])


def test_a_bus_that_is_away_costs_no_write_and_is_caught_up_with(tmp_path: pathlib.Path) -> None:
    """Nobody can bind the address: changes are stored, told to be unpublished, and published when it can be had."""
    with open_nb(sqlite_url(tmp_path, "other"), "zmq://127.0.0.1:0", pub_sub_use_multiproc=False) as owner:
        owner.create("port", "p", 1, topic="t")
        owner.flush(timeout_s=30)
        assert owner.session is not None
        (_, _, statistics), *_ = owner.session.statistics()
        port = int(statistics.address.rpartition(":")[2])  # type: ignore[union-attr]
        bus = f"zmq://127.0.0.1:{port}"
        with open_nb(sqlite_url(tmp_path), bus, pub_sub_use_multiproc=False) as nb:
            nb.create("port", "p1", 1, topic="t")
            nb.flush(timeout_s=30)  # left to the sweeper counts as settled
            assert nb.statistics().handover.left == 1
            assert nb.statistics().handover.failures > 0
            assert [change.key for change in nb.db.unpublished()] == ["p1"]
            owner.close()
            wait_until(lambda: is_clean(nb), 30, "the sweeper to have published it")


def test_flush_says_when_changes_are_not_confirmed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_config, "CONFIRM_INTERVAL_S", 30.0)
    with open_nb(sqlite_url(tmp_path), memory_bus(), db={"outbox_age": 3600.0}) as nb:
        nb.create("port", "p1", 1, topic="t")
        nb.flush(timeout_s=30)
        nb.create("port", "p2", 2, topic="t")
        other = sqlite3.connect(tmp_path / "objects.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(WaitTimeout, match="outbox"):
            nb.flush(timeout_s=0.1)
        other.close()
        nb.flush(timeout_s=30)


# -- fork


def test_a_forked_child_writes_and_publishes_as_itself(nb: NbApi) -> None:
    """On a bus in memory the child's events end in the child, so that the sweeper of the parent is not needed."""
    nb.create("port", "parent", 1, topic="t")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            nb.create("port", "child", 2, topic="t")
            nb.flush(timeout_s=30)
            status = 0 if nb.statistics().handover.confirmed == 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    nb.flush(timeout_s=30)
    assert nb.get("port", "child").value == 2
    assert is_clean(nb)
