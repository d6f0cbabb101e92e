"""A periodic thread: what ends it, what does not, and what it says about what went wrong."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable

import pytest

from pubsub_api.errors import Closed, DriverError
from pubsub_api.runtime.periodic import Failures, PeriodicTask, PeriodicThread, with_jitter
from tests.helpers.waiting import WAIT_S, wait_until

LOG = logging.getLogger("tests.periodic")
NEVER_S = 3600.0


@dataclasses.dataclass
class Counters:
    failures: int = 0


def periodic(work: Callable[[], object], **arguments: object) -> PeriodicThread:
    options = {"pause_s": NEVER_S, "at_once": True} | arguments
    failures = options.pop("failures", Failures(LOG, "It cannot be done"))
    return PeriodicThread("tests-periodic", work, failures, **options)  # type: ignore[arg-type]


def named() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tests-periodic"]


def test_work_is_repeated_in_a_daemon_thread_until_it_is_stopped() -> None:
    calls: list[bool] = []
    thread = periodic(lambda: calls.append(threading.current_thread().daemon), pause_s=0.0)
    thread.start()
    thread.start()
    assert len(named()) == 1
    wait_until(lambda: len(calls) >= 3)
    thread.stop()
    assert named() == []
    assert all(calls)
    seen = len(calls)
    thread.start()
    assert named() == []
    assert len(calls) == seen


def test_a_pause_comes_first_and_ends_when_it_is_woken() -> None:
    calls: list[int] = []
    thread = periodic(lambda: calls.append(1), at_once=False)
    thread.start()
    assert not thread.wait_done(timeout_s=0.0)
    assert calls == []
    thread.wake()
    assert thread.wait_done(timeout_s=WAIT_S)
    thread.wake()
    wait_until(lambda: len(calls) == 2)
    thread.stop()


def test_a_wake_up_call_during_the_work_is_not_lost() -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), list[int]()

    def work() -> None:
        calls.append(1)
        begun.set()
        go_on.wait(WAIT_S)

    thread = periodic(work)
    thread.start()
    assert begun.wait(WAIT_S)
    thread.wake()
    go_on.set()
    wait_until(lambda: len(calls) == 2)
    thread.stop()


@pytest.mark.parametrize("error", [DriverError("away"), OSError("no descriptors"), RecursionError("deep")])
def test_no_exception_ends_it_and_the_log_gets_one_line(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    counters, told, results = Counters(), list[Exception](), [error] * 5

    def work() -> None:
        if results:
            raise results.pop()

    failures = Failures(LOG, "It cannot be done", counters, clock=lambda: 0.0)
    thread = periodic(work, failures=failures, retry_s=0.0, on_failure=told.append)
    thread.start()
    assert thread.wait_done(timeout_s=WAIT_S)
    thread.stop()
    assert (counters.failures, failures.count, told) == (5, 5, [error] * 5)
    assert not failures.is_failing
    (record,) = [record for record in caplog.records if record.name == LOG.name]
    assert record.getMessage() == f"It cannot be done: {error}. It will be tried again."
    assert bool(record.exc_info) is not isinstance(error, DriverError)


def test_after_a_failure_the_pause_is_that_for_failures() -> None:
    pauses: list[str] = []

    def pause(name: str) -> Callable[[], float]:
        def seconds() -> float:
            pauses.append(name)
            return 0.0

        return seconds

    results: list[Exception | None] = [None, OSError("once"), None]

    def work() -> None:
        if not results:
            raise Closed("over")
        result = results.pop()
        if result is not None:
            raise result

    thread = periodic(work, pause_s=pause("pause"), retry_s=pause("retry"), at_once=False)
    thread.start()
    wait_until(lambda: not named())
    assert pauses == ["pause", "pause", "retry", "pause"]


def test_what_was_closed_ends_it_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        raise Closed("it is closed")

    thread = periodic(work)
    thread.start()
    wait_until(lambda: not named())
    thread.stop()
    assert [record for record in caplog.records if record.name == LOG.name] == []


def test_the_work_itself_may_stop_it() -> None:
    thread = periodic(lambda: thread.stop(), pause_s=0.0)  # noqa: PLW0108  it is not there yet
    thread.start()
    wait_until(lambda: not named())
    thread.stop()


def test_a_thread_that_the_system_has_no_room_for_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, list[str]()

    def start_some(thread: threading.Thread) -> None:
        if thread.name == "tests-periodic" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")  # as the interpreter says it
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    thread = periodic(lambda: None)
    assert [thread.try_start() for _ in range(4)] == [False, False, True, True]
    assert thread.failures.count == 2
    assert thread.wait_done(timeout_s=WAIT_S)
    thread.stop()


def test_a_forked_child_runs_nothing_until_it_is_started_there() -> None:
    thread = periodic(lambda: None)
    thread.start()
    assert thread.wait_done(timeout_s=WAIT_S)
    child = os.fork()
    if child == 0:
        is_right = False
        try:
            was_idle = not thread.is_started and not thread.wait_done(timeout_s=0.0)
            thread.start()
            is_right = was_idle and thread.wait_done(timeout_s=WAIT_S)
            thread.stop()
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thread.is_started
    thread.stop()


def test_dispersed_pauses_differ_and_keep_near() -> None:
    found = {with_jitter(8.0)() for _ in range(50)}
    assert len(found) > 1
    assert all(6.0 <= one <= 10.0 for one in found)


# -- on shared threads


def test_a_task_is_repeated_whatever_it_raises_until_it_is_stopped() -> None:
    results: list[Exception] = [OSError("no descriptors"), DriverError("away")]
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        if results:
            raise results.pop()

    task = PeriodicTask(work, Failures(LOG, "It cannot be done"), pause_s=0.0)
    assert not task.is_started
    task.start()
    assert task.wait_done(timeout_s=WAIT_S)
    assert task.failures.count == 2
    wait_until(lambda: len(calls) >= 5)
    task.stop()
    seen = len(calls)
    task.wake()
    task.stop()
    assert len(calls) == seen


def test_a_task_ends_when_what_it_works_on_was_closed_and_is_woken_before() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Closed("it is closed")

    task = PeriodicTask(work, Failures(LOG, "It cannot be done"), pause_s=NEVER_S)
    task.start()
    assert task.wait_done(timeout_s=WAIT_S)
    task.wake()
    wait_until(lambda: len(calls) == 2)
    assert task.failures.count == 0
    task.stop()
