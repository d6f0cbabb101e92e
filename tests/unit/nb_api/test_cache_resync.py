"""When a cache reads the database again: joined, delayed, spaced, and never dropped."""

from __future__ import annotations

import dataclasses
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from nb_api.core.copy.resync_schedule import SyncScheduler, SyncSettings, SyncTask

SETTINGS = SyncSettings(
    snapshot_jitter_s=4.0,
    snapshot_interval_min_s=10.0,
    retry_interval_s=1.0,
    retry_interval_max_s=5.0,
    verify_interval_s=0.0,
    resync_interval_s=0.0,
)


def scheduler(*, jitter: float = 0.5, **changes: float) -> SyncScheduler:
    return SyncScheduler(dataclasses.replace(SETTINGS, **changes), now=0.0, jitter=lambda: jitter)


def test_nothing_is_due_until_something_is_asked_for() -> None:
    idle = scheduler()
    assert idle.take(1e9) is None
    assert idle.is_idle
    assert idle.next_deadline() == math.inf


def test_a_snapshot_that_somebody_waits_for_is_not_delayed() -> None:
    busy = scheduler()
    busy.request_snapshot("initial", 1.0, is_awaited=True)
    assert busy.take(1.0) == SyncTask("initial", is_snapshot=True)
    assert busy.is_idle


def test_other_snapshots_are_delayed_by_jitter_and_kept_apart() -> None:
    busy = scheduler()
    busy.request_snapshot("loss", 0.0)
    assert busy.next_deadline() == 2.0
    assert busy.take(1.9) is None
    assert busy.take(2.0) is not None
    busy.request_snapshot("loss", 3.0)
    assert busy.next_deadline() == 12.0


def test_requests_are_joined() -> None:
    busy = scheduler()
    for number in range(5):
        busy.request_delta("loss", number)
    busy.request_delta("silence", 5.0)
    busy.request_topics(["a", "b"], 5.0)
    busy.request_topics(["b"], 5.0)
    assert busy.take(5.0) == SyncTask("loss, silence, subscribed", is_delta=True, topics=frozenset("ab"))
    assert busy.take(5.0) is None


def test_a_snapshot_covers_a_delta_but_topics_do_not_wait_for_it() -> None:
    busy = scheduler()
    busy.request_snapshot("too old", 0.0)
    busy.request_delta("loss", 0.0)
    busy.request_topics(["a"], 0.0)
    first = busy.take(0.0)
    assert first is not None
    assert (first.is_snapshot, first.is_delta, first.topics) == (False, False, {"a"})
    second = busy.take(2.0)
    assert second is not None
    assert second.is_snapshot
    assert busy.is_idle


def test_a_topic_that_is_given_up_is_not_read() -> None:
    busy = scheduler()
    busy.request_topics(["a"], 0.0)
    busy.forget_topic("a")
    assert busy.take(0.0) is None


@pytest.mark.parametrize(
    "task",
    [
        SyncTask("r", is_snapshot=True, is_replacing=True),
        SyncTask("r", is_delta=True, topics=frozenset("a")),
    ],
)
def test_what_failed_is_due_again_after_a_growing_pause(task: SyncTask) -> None:
    busy = scheduler(jitter=1.0)
    assert [busy.failed(task, 0.0) for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    assert busy.take(0.5) is None
    assert busy.take(1.0) == task
    busy.done()
    assert busy.failed(task, 0.0) == 1.0


def test_a_verification_that_is_put_off_comes_then_and_not_an_interval_later() -> None:
    busy = scheduler(verify_interval_s=100.0)
    task = SyncTask("verification")
    assert busy.take(100.0) == task
    busy.put_off(task, 101.0)
    assert busy.next_deadline() == 101.0
    assert busy.take(101.0) == task
    assert busy.next_deadline() == 201.0


def test_periodic_work_comes_by_chance_around_its_interval() -> None:
    early, late = (scheduler(jitter=jitter, verify_interval_s=100.0, resync_interval_s=200.0) for jitter in (0.0, 1.0))
    assert early.next_deadline() == 75.0
    assert late.next_deadline() == 125.0
    assert early.take(75.0) == SyncTask("verification")
    assert early.take(150.0) == SyncTask("periodic", is_delta=True)
    assert early.is_idle


REQUESTS = st.lists(
    st.tuples(st.sampled_from(["snapshot", "replacing", "delta", "topics", "fail", "wait"]), st.floats(0, 20)),
    max_size=40,
)


@given(REQUESTS, st.floats(0, 1))
def test_nothing_is_ever_dropped(requests: list[tuple[str, float]], jitter: float) -> None:
    """Whatever is asked for, and however often it fails: everything is covered by a task that succeeded afterwards."""
    busy = scheduler(jitter=jitter)
    wanted: set[str] = set()
    now = 0.0
    for what, delay in [*requests, *[("wait", 1000.0)] * 10]:
        now += delay
        if what in ("snapshot", "replacing"):
            busy.request_snapshot(what, now, is_replacing=what == "replacing")
            wanted |= {"snapshot", what}
        elif what == "delta":
            busy.request_delta(what, now)
            wanted.add("delta")
        elif what == "topics":
            busy.request_topics(["t"], now)
            wanted.add("topics")
        elif (task := busy.take(now)) is not None:
            if what == "fail":
                busy.failed(task, now)
            else:
                busy.done()
                wanted -= {"snapshot", "delta", "topics"} if task.is_snapshot else set()
                wanted -= {"replacing"} if task.is_replacing else set()
                wanted -= {"delta"} if task.is_delta else set()
                wanted -= {"topics"} if task.topics else set()
    assert wanted == set()
    assert busy.is_idle
