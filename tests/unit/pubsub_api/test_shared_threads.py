"""Threads that the process shares: work is done, what lasts holds up nothing else, and nothing is left behind."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pubsub_api.errors import LimitReached
from pubsub_api.runtime.shared_threads import SharedTask, SharedThreads, SharedTimer
from tests.helpers.waiting import wait_until

WAIT_S = 60.0


@pytest.fixture
def threads() -> SharedThreads:
    return SharedThreads()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Work that waits for it lasts until the end of the test."""
    opened = threading.Event()
    yield opened
    opened.set()


def shared() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name in ("heliograph-shared", "heliograph-timer")]


def test_work_is_done_though_all_threads_are_busy(threads: SharedThreads, gate: threading.Event) -> None:
    begun: list[int] = []

    def last(number: int) -> Callable[[], None]:
        def work() -> None:
            begun.append(number)
            gate.wait(WAIT_S)

        return work

    for number in range(40):
        threads.run(last(number))
    wait_until(lambda: sorted(begun) == list(range(40)), WAIT_S, "as many threads as there is work that lasts")
    done = threading.Event()
    threads.run(done.set)
    assert done.wait(WAIT_S)


def test_brief_work_needs_few_threads(threads: SharedThreads) -> None:
    before = len(shared())
    done: list[int] = []
    for number in range(200):
        threads.run(lambda number=number: done.append(number))
        wait_until(lambda number=number: len(done) == number + 1, WAIT_S, "the work")
    assert len(shared()) - before <= 4


def test_work_that_raises_ends_no_thread(threads: SharedThreads) -> None:
    def fail() -> None:
        raise SystemExit("on purpose")

    for _ in range(10):
        threads.run(fail)
    done = threading.Event()
    threads.run(done.set)
    assert done.wait(WAIT_S)


def test_threads_without_work_and_timers_without_timers_end(threads: SharedThreads) -> None:
    before = set(threading.enumerate())
    timer = SharedTimer(lambda: math.inf)
    done = threading.Event()
    threads.add_timer(timer)
    threads.run(done.set)
    assert done.wait(WAIT_S)
    threads.remove_timer(timer)
    wait_until(lambda: set(threading.enumerate()) <= before, WAIT_S, "the threads to end")
    done.clear()
    threads.run(done.set)
    assert done.wait(WAIT_S), "new work gets a new thread"


def test_without_a_thread_the_first_work_is_refused(threads: SharedThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(LimitReached):
            threads.run(lambda: None)
        with pytest.raises(LimitReached):
            threads.add_timer(SharedTimer(lambda: math.inf))
    done = threading.Event()
    threads.run(done.set)
    assert done.wait(WAIT_S)


def test_timers_are_called_in_the_order_of_their_times(threads: SharedThreads) -> None:
    called: list[str] = []
    timers = {name: SharedTimer(lambda name=name: called.append(name) or math.inf) for name in "abc"}
    for timer in timers.values():
        threads.add_timer(timer)
    now = time.monotonic()
    threads.set_timer(timers["c"], now + 0.2)
    threads.set_timer(timers["a"], now + 3600)
    threads.set_timer(timers["b"], now + 0.1)
    threads.set_timer(timers["a"], now)
    wait_until(lambda: called == ["a", "b", "c"], WAIT_S, "each timer at its newest time")
    for timer in timers.values():
        threads.remove_timer(timer)


def test_a_timer_is_called_again_when_it_says_and_when_it_has_raised(threads: SharedThreads) -> None:
    calls = 0

    def tick() -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ValueError("on purpose")
        return time.monotonic()

    timer = SharedTimer(tick)
    threads.add_timer(timer)
    threads.set_timer(timer, time.monotonic())
    wait_until(lambda: calls >= 5, WAIT_S, "calls after the one that raised")
    threads.remove_timer(timer)


def test_a_task_works_once_at_a_time_and_once_more_when_it_is_woken_meanwhile(gate: threading.Event) -> None:
    calls: list[int] = []
    overlaps = 0
    busy = threading.Lock()

    def work() -> float:
        nonlocal overlaps
        overlaps += not busy.acquire(blocking=False)
        calls.append(1)
        gate.wait(WAIT_S)
        busy.release()
        return math.inf

    task = SharedTask(work)
    task.wake()
    assert calls == [], "nothing is done before it is started"
    task.start()
    wait_until(lambda: len(calls) == 1, WAIT_S, "the first call")
    for _ in range(5):
        task.wake()
    gate.set()
    wait_until(lambda: len(calls) == 2, WAIT_S, "one more call")
    task.wake()
    wait_until(lambda: len(calls) == 3, WAIT_S, "a call for the next wake-up")
    task.close()
    assert overlaps == 0


def test_a_task_is_called_when_its_time_has_come_and_after_it_raised() -> None:
    calls: list[float] = []

    def work() -> float:
        calls.append(time.monotonic())
        if len(calls) == 2:
            raise ValueError("on purpose")
        return time.monotonic() + 0.01

    task = SharedTask(work)
    task.start()
    wait_until(lambda: len(calls) >= 4, WAIT_S, "calls in time")
    task.close()
    count = len(calls)
    task.wake()
    assert len(calls) == count


def test_closing_a_task_waits_for_its_call_and_not_for_itself(gate: threading.Event) -> None:
    begun, closed_within = threading.Event(), threading.Event()

    def work() -> float:
        begun.set()
        gate.wait(WAIT_S)
        task.close()
        closed_within.set()
        return 0.0

    task = SharedTask(work)
    task.start()
    assert begun.wait(WAIT_S)
    closer = threading.Thread(target=task.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive(), "closing must wait for the call"
    gate.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert closed_within.is_set()


def test_a_forked_child_begins_anew(gate: threading.Event) -> None:
    threads = SharedThreads()
    threads.run(lambda: gate.wait(WAIT_S))
    calls: list[int] = []
    task = SharedTask(lambda: calls.append(1) or math.inf)
    pid = os.fork()
    if pid == 0:
        done = threading.Event()
        threads.run(done.set)
        is_done = done.wait(WAIT_S)
        task.start()
        task.wake()
        task.close()
        os._exit(0 if is_done and not calls else 1)
    assert os.waitpid(pid, 0)[1] == 0
