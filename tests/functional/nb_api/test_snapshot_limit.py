"""Slots in the database bound how many caches read all of it at once, also when holders die."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from nb_api import LocalCache, NbApi
from nb_api.coordination.snapshot_limit import (
    PROCESS_DELTAS_MAX,
    PROCESS_READERS_MAX,
    TABLE,
    NoTurn,
    SnapshotLimit,
    SnapshotLimitSettings,
)
from nb_api.errors import DbUnavailable
from pubsub_api.errors import Closed
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.waiting import wait_until

WAIT_S = 60.0


@pytest.fixture
def nb(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    with open_nb(sqlite_url(tmp_path)) as nb:
        yield nb


def make(nb: NbApi, count: int, *, lease_s: float = 30.0, wait_max_s: float = WAIT_S) -> SnapshotLimit:
    def pause(seconds: float) -> None:
        threading.Event().wait(min(seconds, 0.02))

    return SnapshotLimit(SnapshotLimitSettings(count, lease_s, wait_max_s), nb.db, pause)


def test_no_more_readers_than_slots(nb: NbApi) -> None:
    inside: list[int] = []
    most: list[int] = []

    def read() -> None:
        for _ in range(3):
            with make(nb, 2).hold():
                inside.append(1)
                most.append(len(inside))
                threading.Event().wait(0.002)
                inside.pop()

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(most) == 24
    assert max(most) <= 2
    assert nb.get_all(TABLE) == []


def test_many_caches_that_lost_the_feed_at_once_are_no_stampede(tmp_path: pathlib.Path) -> None:
    """All of them need a snapshot at the same moment: two read at a time, the others wait, nobody is forgotten."""
    settings = {"snapshot_slots": 2, "snapshot_jitter": 0.0, "verify_interval": 0.0}
    with contextlib.ExitStack() as stack:
        nb = stack.enter_context(open_nb(sqlite_url(tmp_path), cache=settings))
        for number in range(50):
            nb.create("port", f"p{number}", number, topic="t")
        caches = [stack.enter_context(LocalCache(nb, tables=["port"])) for _ in range(12)]
        for cache in caches:
            cache.wait_synced(timeout_s=WAIT_S)
        waits = {cache: cache.statistics().syncs.slots.waits for cache in caches}
        with make(nb, 2).hold(), make(nb, 2).hold():
            for cache in caches:
                cache.need_snapshot("stampede")
            for cache in caches:
                before = waits[cache]
                wait_until(lambda: cache.statistics().syncs.slots.waits > before, WAIT_S, "it to wait")  # noqa: B023
        taken: list[int] = []

        def are_all_done() -> bool:
            taken.append(len(nb.get_all(TABLE)))
            return all(cache.statistics().syncs.snapshots >= 2 for cache in caches)

        wait_until(are_all_done, WAIT_S, "every cache to have read a second snapshot")
        counters = [cache.statistics().syncs.slots for cache in caches]
    assert max(taken) <= 2
    assert sum(found.held for found in counters) == 24
    assert sum(found.without for found in counters) == 0


class HeldReads:
    """Stands in for one way to read of `DbApi`: no call goes on before it may, and the most that wait at the same time
    are noted."""

    def __init__(self, nb: NbApi, monkeypatch: pytest.MonkeyPatch, name: str = "snapshot") -> None:
        self.may_read = threading.Event()
        self.inside = self.most = 0
        self._lock = threading.Lock()
        self._read = getattr(nb.db, name)
        monkeypatch.setattr(nb.db, name, self.read)

    def read(self, *args: Any) -> Any:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            self.may_read.wait(WAIT_S)
            return self._read(*args)
        finally:
            with self._lock:
                self.inside -= 1


def count_waits(caches: Sequence[LocalCache]) -> int:
    return sum(cache.statistics().syncs.slots.waits for cache in caches)


def test_caches_of_a_process_take_turns(nb: NbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, they ask the database as two would: for a slot as well as for the objects."""
    nb.create("port", "p", 1, topic="t")
    reads = HeldReads(nb, monkeypatch)
    with contextlib.ExitStack() as stack:
        caches = [stack.enter_context(LocalCache(nb, tables=["port"])) for _ in range(12)]
        stack.callback(reads.may_read.set)
        wait_until(lambda: count_waits(caches) == 12 - PROCESS_READERS_MAX, WAIT_S, "the others to wait")
        wait_until(lambda: reads.inside == PROCESS_READERS_MAX, WAIT_S, "those whose turn it is")
        reads.may_read.set()
        for cache in caches:
            cache.wait_synced(timeout_s=WAIT_S)
            assert cache.get("port", "p").value == 1
    assert reads.most == PROCESS_READERS_MAX


def test_caches_of_a_process_take_turns_to_read_what_they_missed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise hundreds whose link was lost at the same time ask a server for more connections than it gives."""
    with contextlib.ExitStack() as stack:
        nb = stack.enter_context(open_nb(sqlite_url(tmp_path), bus=memory_bus()))
        nb.create("port", "p", 1, topic="t")
        caches = [stack.enter_context(LocalCache(nb, tables=["port"])) for _ in range(12)]
        for cache in caches:
            cache.wait_synced(timeout_s=WAIT_S)
        reads = HeldReads(nb, monkeypatch, "check_history")
        stack.callback(reads.may_read.set)
        before = [cache.statistics().syncs.deltas for cache in caches]
        for cache in caches:
            cache.need_delta("links were lost")
        wait_until(lambda: reads.inside == PROCESS_DELTAS_MAX, WAIT_S, "those whose turn it is")
        late = 12 - PROCESS_DELTAS_MAX
        wait_until(
            lambda: sum(one.statistics().syncs.waits > 0 for one in caches) == late, WAIT_S, "the others to wait"
        )
        reads.may_read.set()
        for cache, deltas in zip(caches, before, strict=True):
            wait_until(lambda: cache.statistics().syncs.deltas > deltas, WAIT_S, "its delta")  # noqa: B023
    assert reads.most == PROCESS_DELTAS_MAX


def test_a_cache_that_waits_for_its_turn_can_be_closed(nb: NbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = HeldReads(nb, monkeypatch)
    with contextlib.ExitStack() as stack:
        caches = [stack.enter_context(LocalCache(nb, tables=["port"])) for _ in range(PROCESS_READERS_MAX + 1)]
        stack.callback(reads.may_read.set)
        wait_until(lambda: count_waits(caches) == 1, WAIT_S, "one to wait")
        (waiting,) = [cache for cache in caches if cache.statistics().syncs.slots.waits]
        waiting.close()
        assert reads.inside <= PROCESS_READERS_MAX


def test_a_turn_that_ends_is_told_to_one_that_waits(nb: NbApi) -> None:
    told: list[str] = []
    turns = nb.snapshot_turns
    with contextlib.ExitStack() as stack:
        for _ in range(PROCESS_READERS_MAX):
            stack.enter_context(turns.take(lambda: None))
        waiting = [functools.partial(told.append, name) for name in "ab"]
        for when_free in (*waiting, *waiting):  # who asks again waits once
            with pytest.raises(NoTurn), turns.take(when_free):
                pass
        with pytest.raises(NoTurn), turns.take(lambda: None):
            pass
    assert told == ["a", "b"]
    with turns.take(lambda: None):
        pass


def test_caches_that_wait_for_their_turn_need_no_threads(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the bus.  Those that follow the feed have one each."""
    count = 30
    with contextlib.ExitStack() as stack:
        nb = stack.enter_context(open_nb(sqlite_url(tmp_path), bus=memory_bus()))
        reads = HeldReads(nb, monkeypatch)
        caches = [stack.enter_context(LocalCache(nb, tables=["port"])) for _ in range(count)]
        stack.callback(reads.may_read.set)
        wait_until(lambda: count_waits(caches) == count - PROCESS_READERS_MAX, WAIT_S, "the others to wait")
        wait_until(lambda: names_of_threads().count("heliograph-shared") < count / 2, WAIT_S, "idle threads to end")
        assert reads.inside == PROCESS_READERS_MAX
        reads.may_read.set()
        for cache in caches:
            cache.wait_synced(timeout_s=WAIT_S)


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_in_a_forked_child_nobody_has_a_turn(nb: NbApi) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(PROCESS_READERS_MAX):
            stack.enter_context(nb.snapshot_turns.take(lambda: None))
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(NoTurn), nb.snapshot_turns.take(lambda: None):
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with pytest.raises(NoTurn), nb.snapshot_turns.take(lambda: None):
            pass


def test_without_a_limit_nothing_is_written(nb: NbApi) -> None:
    with make(nb, 0).hold() as show_progress:
        show_progress()
    assert nb.db.revision() == 0


def test_the_slot_of_a_holder_that_died_is_taken_over(nb: NbApi) -> None:
    pid = os.fork()
    if pid == 0:
        held = make(nb, 1).hold()
        held.__enter__()
        os._exit(0)  # without a chance to give it back
    os.waitpid(pid, 0)
    assert len(nb.get_all(TABLE)) == 1
    limit = make(nb, 1, lease_s=0.2)
    with limit.hold():
        pass
    assert limit.counters.taken_over == 1
    assert nb.get_all(TABLE) == []


def test_a_holder_that_shows_progress_is_left_alone(nb: NbApi) -> None:
    holder, waiter = make(nb, 1, lease_s=1.0), make(nb, 1, lease_s=1.0)
    entered = threading.Event()
    longest_s, last = 0.0, time.monotonic()  # between two moments at which progress had been shown

    def wait() -> None:
        with waiter.hold():
            entered.set()

    def has_renewed_often() -> bool:
        nonlocal longest_s, last
        show_progress()
        longest_s, last = max(longest_s, time.monotonic() - last), time.monotonic()
        return nb.db.revision() > 4

    with holder.hold() as show_progress:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(has_renewed_often, WAIT_S, "several renewals, for longer than the lease")
        has_entered = entered.is_set()
        longest_s = max(longest_s, time.monotonic() - last)
        assert not has_entered or longest_s > 0.3  # a machine that stood still for that long proves nothing
    thread.join(WAIT_S)
    assert entered.is_set()


def test_a_renewal_that_was_not_answered_does_not_cost_the_slot(nb: NbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = make(nb, 1, lease_s=0.03)
    renew, unanswered, answered = nb.db.set, list[int](), list[int]()

    def lose_the_first_answer(*args: Any, **options: Any) -> int:
        version = renew(*args, **options)
        (answered if unanswered else unanswered).append(version)
        if not answered:
            raise DbUnavailable("no answer, but it was carried out")
        return version

    def has_renewed_again() -> bool:
        show_progress()
        return bool(answered) or bool(limit.counters.lost)

    monkeypatch.setattr(nb.db, "set", lose_the_first_answer)
    with limit.hold() as show_progress:
        wait_until(has_renewed_again, WAIT_S, "a renewal after the one that was not answered")
    assert limit.counters.lost == 0
    assert nb.get_all(TABLE) == []


def test_who_gets_none_for_long_reads_without(nb: NbApi) -> None:
    limit = make(nb, 1, wait_max_s=0.05)
    with make(nb, 1).hold(), limit.hold():
        pass
    assert limit.counters.without == 1
    assert limit.counters.waits == 1


def test_who_is_closed_does_not_wait(nb: NbApi) -> None:
    def closed(seconds: float) -> None:
        raise Closed("nobody waits any more")

    limit = SnapshotLimit(SnapshotLimitSettings(1, 30.0, WAIT_S), nb.db, closed)
    with make(nb, 1).hold(), pytest.raises(Closed), limit.hold():
        pass
