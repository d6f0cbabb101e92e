"""A controller in threads: what it runs when its copy changes, fails, is overrun, and how it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nb_api import Controller, Key, Request, RequeueAfter, RetryPauses
from nb_api.controller import following, work
from nb_api.errors import GiveUp
from pubsub_api.errors import Closed, Forked, UsageError, WaitTimeout
from pubsub_api.testing.conformance.forks import in_forked_child, outcome
from tests.helpers.scripted_cache import ScriptedCache
from tests.helpers.waiting import WAIT_S, wait_until

SOON = RetryPauses(0.001, 0.01)


class Runs:
    """A reconcile function that notes what it is called with."""

    def __init__(self, then: Callable[[Request], RequeueAfter | None] = lambda _: None) -> None:
        self.requests: list[Request] = []
        self._then = then

    def __call__(self, request: Request) -> RequeueAfter | None:
        self.requests.append(request)
        return self._then(request)

    def keys(self) -> Counter[str]:
        return Counter(request.key for request in list(self.requests))

    def clear(self) -> None:
        self.requests = []


class Making:
    """Makes controllers and closes them at the end."""

    def __init__(self) -> None:
        self.made: list[Controller] = []

    def __call__(self, cache: Any, reconcile: Any, **arguments: Any) -> Controller:
        arguments = {"interval_min_s": 0.0, "retries": SOON, **arguments}
        self.made.append(Controller(cache, reconcile, **arguments))
        return self.made[-1]


@pytest.fixture
def make() -> Iterator[Making]:
    making = Making()
    yield making
    for controller in making.made:
        controller.close(timeout_s=WAIT_S)


def idle(controller: Controller) -> None:
    controller.wait_idle(timeout_s=WAIT_S)


# -- what runs


def test_nothing_runs_before_the_copy_is_complete_and_then_everything_once(make: Making) -> None:
    cache, runs = ScriptedCache(is_synced=False), Runs()
    for number in range(20):
        cache.put("port", f"p{number}")
    controller = make(cache, runs)
    cache.put("port", "late")
    wait_until(cache._changes.empty, what="the changes to be taken")
    assert not controller.statistics().has_begun
    assert runs.requests == []
    cache.is_synced = True
    idle(controller)
    assert runs.keys() == Counter([*(f"p{number}" for number in range(20)), "late"])
    assert controller.statistics().has_begun


def test_a_change_causes_a_run_with_what_the_copy_has(make: Making) -> None:
    cache, runs = ScriptedCache(), Runs()
    controller = make(cache, runs)
    idle(controller)
    cache.put("port", "p1", {"up": True})
    wait_until(lambda: runs.requests, what="the run")
    (request,) = runs.requests
    assert (request.table, request.key, request.attempt) == ("port", "p1", 1)
    assert request.object is not None
    assert request.object.value == {"up": True}
    assert request.deleted is None
    assert request.cache is cache
    assert not request.is_stopping


def test_an_object_that_was_deleted_is_absent_and_given_as_it_was_until_a_run_succeeds(make: Making) -> None:
    cache = ScriptedCache()
    cache.put("port", "p1", "last")
    attempts = iter([ValueError("not now"), ValueError("not now"), None])

    def remove(request: Request) -> None:
        if request.object is None and (error := next(attempts, None)) is not None:
            raise error

    runs = Runs(remove)
    controller = make(cache, runs)
    idle(controller)
    runs.clear()
    cache.delete("port", "p1")
    wait_until(lambda: len(runs.requests) == 3, what="three attempts")
    assert [(one.object, one.deleted.value if one.deleted else None) for one in runs.requests] == [(None, "last")] * 3
    idle(controller)
    controller.enqueue("port", "p1")
    wait_until(lambda: len(runs.requests) == 4, what="a run that was asked for")
    assert runs.requests[-1].deleted is None  # told once


def test_an_object_that_is_there_again_has_nothing_of_its_former_self(make: Making) -> None:
    cache, runs = ScriptedCache(), Runs()
    hold = threading.Event()
    blocked = Runs(lambda _: None if hold.wait(WAIT_S) else None)
    cache.put("port", "p1", "old")
    controller = make(cache, lambda request: (blocked(request), runs(request))[1], workers=1)
    wait_until(lambda: blocked.requests, what="the first run to begin")
    cache.delete("port", "p1")
    cache.put("port", "p1", "new")
    wait_until(lambda: controller.statistics().queue.merged >= 1, what="both changes to be taken")
    hold.set()
    idle(controller)
    assert len(runs.requests) == 2
    assert runs.requests[-1].object is not None
    assert runs.requests[-1].object.value == "new"
    assert runs.requests[-1].deleted is None


def test_one_key_is_worked_on_by_one_thread_at_a_time_and_nothing_is_lost(make: Making) -> None:
    cache = ScriptedCache()
    inside: Counter[str] = Counter()
    seen: dict[str, Any] = {}
    clashes: list[str] = []

    def reconcile(request: Request) -> None:
        inside[request.key] += 1
        if inside[request.key] > 1:
            clashes.append(request.key)
        assert request.object is not None
        seen[request.key] = request.object.value
        inside[request.key] -= 1

    controller = make(cache, reconcile, workers=8)
    for value in range(3000):
        cache.put("port", f"p{value % 5}", value)
    wait_until(lambda: seen == {f"p{number}": 2995 + number for number in range(5)}, what="the newest of each")
    idle(controller)
    assert clashes == []


def test_a_burst_causes_a_few_runs_per_key(make: Making) -> None:
    cache, runs = ScriptedCache(), Runs()
    controller = make(cache, runs, interval_min_s=600.0)
    idle(controller)
    for number in range(20_000):
        cache.put("port", f"p{number % 100}", number)
    wait_until(lambda: controller.statistics().queue.merged >= 20_000 - 200, what="all changes to be taken")
    wait_until(lambda: len(runs.keys()) == 100, what="the runs")
    assert max(runs.keys().values()) == 1  # what came after it waits for the interval
    assert controller.statistics().waiting <= 100


# -- owners


def test_a_dependent_object_runs_its_owner_also_the_former_one_and_after_its_end(make: Making) -> None:
    cache, runs = ScriptedCache(), Runs()
    cache.put("port", "p1")
    cache.put("binding", "b1", "p1")
    controller = make(cache, runs, owners={"binding": lambda binding: [("port", binding.value)]})
    idle(controller)
    assert runs.keys() == Counter(["p1"])
    runs.clear()
    cache.put("binding", "b1", "p2")
    wait_until(lambda: set(runs.keys()) == {"p1", "p2"}, what="both owners")
    idle(controller)
    cache.delete("port", "p1")
    wait_until(lambda: any(request.deleted for request in runs.requests), what="the end of p1")
    idle(controller)
    runs.clear()
    cache.delete("binding", "b1")
    wait_until(lambda: set(runs.keys()) == {"p2"}, what="the owner of what was deleted")
    idle(controller)
    assert {request.table for request in runs.requests} == {"port"}
    assert controller._work._ends.of(Key("binding", "b1")) is None  # nothing is remembered of what is not worked on


def test_a_table_may_be_worked_on_itself_and_have_owners(make: Making) -> None:
    cache, runs = ScriptedCache(), Runs()
    cache.put("port", "p1", "n1")
    cache.put("other", "x")
    controller = make(cache, runs, tables=["port"], owners={"port": lambda port: [("net", port.value)]})
    idle(controller)
    assert {(request.table, request.key) for request in runs.requests} == {("port", "p1"), ("net", "n1")}


@pytest.mark.parametrize("wrong", [[("port",)], ["p1"], ("port", "p1"), None, 7])
def test_a_function_that_tells_no_owners_is_counted_and_called_again(
    make: Making, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    monkeypatch.setattr(following, "_RETRY_S", 0.01)
    cache, runs = ScriptedCache(), Runs()
    is_wrong = threading.Event()

    def owners(binding: Any) -> Any:
        return wrong if binding.value == "bad" and not is_wrong.is_set() else [("port", binding.key)]

    controller = make(cache, runs, owners={"binding": owners})
    idle(controller)
    cache.put("binding", "b1", "bad")
    cache.put("binding", "b2", "good")
    wait_until(lambda: set(runs.keys()) == {"b2"}, what="the other one")
    assert controller.statistics().following.mapping_errors >= 1
    assert controller.statistics().following.unmapped == 1
    is_wrong.set()
    wait_until(lambda: set(runs.keys()) == {"b1", "b2"}, what="the owner of what could not be told before")
    wait_until(lambda: controller.statistics().following.unmapped == 0, what="nothing to be left")


def test_after_an_overrun_every_key_runs_those_that_vanished_too(make: Making) -> None:
    cache, runs = ScriptedCache(), Runs()
    for key in ("p1", "p2"):
        cache.put("port", key)
        cache.put("binding", f"of-{key}", f"host-{key}")
    controller = make(cache, runs, owners={"binding": lambda binding: [("host", binding.value)]})
    idle(controller)
    runs.clear()
    cache.delete("port", "p1", is_told=False)
    cache.delete("binding", "of-p1", is_told=False)
    cache.put("port", "p3", is_told=False)
    cache.put("binding", "of-p2", "host-new", is_told=False)
    cache.overrun()
    wait_until(lambda: len(runs.keys()) == 6, what="all of them")
    assert set(runs.keys()) == {"p1", "p2", "p3", "host-p1", "host-p2", "host-new"}
    assert next(request.object for request in runs.requests if request.key == "p1") is None
    assert controller.statistics().following.complete_readings == 2


# -- failures


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_a_run_that_raises_is_made_again_and_stops_nothing(
    make: Making, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ScriptedCache()
    for key in ("bad", "good"):
        cache.put("port", key)

    def reconcile(request: Request) -> None:
        if request.key == "bad" and request.attempt < 4:
            raise error

    runs = Runs(reconcile)
    controller = make(cache, runs, workers=1, name="flows")
    with caplog.at_level(logging.WARNING):
        idle(controller)
    assert runs.keys() == {"bad": 4, "good": 1}
    assert [request.attempt for request in runs.requests if request.key == "bad"] == [1, 2, 3, 4]
    statistics = controller.statistics()
    assert (statistics.runs, statistics.failures, statistics.queue.retries) == (5, 3, 3)
    lines = [record.getMessage() for record in caplog.records if "flows" in record.getMessage()]
    assert len(lines) == 1  # seldom
    assert "port 'bad'" in lines[0]
    assert type(error).__name__ in lines[0]


def test_who_gives_up_is_left_alone_until_it_changes(make: Making) -> None:
    cache = ScriptedCache()
    cache.put("port", "p1", "wrong")

    def reconcile(request: Request) -> None:
        if request.object is not None and request.object.value == "wrong":
            raise GiveUp("no such network")

    runs = Runs(reconcile)
    controller = make(cache, runs)
    idle(controller)
    assert len(runs.requests) == 1
    assert controller.statistics().given_up == 1
    cache.put("port", "p1", "right")
    wait_until(lambda: len(runs.requests) == 2, what="the run after the change")
    idle(controller)


def test_a_change_ends_the_pause_after_a_failure(make: Making) -> None:
    cache = ScriptedCache()
    cache.put("port", "p1", "wrong")

    def reconcile(request: Request) -> None:
        assert request.object is not None
        if request.object.value == "wrong":
            raise ValueError("wrong")

    runs = Runs(reconcile)
    controller = make(cache, runs, retries=RetryPauses(3600.0, 3600.0))
    wait_until(lambda: controller.statistics().failures == 1, what="the failure")
    assert controller.statistics().waiting == 1
    cache.put("port", "p1", "right")
    idle(controller)
    assert len(runs.requests) == 2


def test_what_is_returned_is_a_time_or_nothing(make: Making) -> None:
    cache = ScriptedCache()
    cache.put("port", "p1")
    wrong: list[Any] = [True]
    runs = Runs(lambda _: wrong.pop() if wrong else None)
    controller = make(cache, runs)
    idle(controller)
    assert len(runs.requests) == 2
    assert controller.statistics().failures == 1


class WithoutPicture:
    def __repr__(self) -> str:
        raise ValueError("no picture")


class Unchecked(RequeueAfter):
    def __post_init__(self) -> None: ...


@pytest.mark.parametrize("wrong", [WithoutPicture(), Unchecked(10**400), Unchecked("x"), Unchecked(float("nan"))])  # type: ignore[arg-type]
def test_nothing_that_is_returned_ends_a_worker(make: Making, wrong: Any) -> None:
    cache = ScriptedCache()
    cache.put("port", "p1")
    runs = Runs(lambda request: wrong if request.attempt == 1 else None)
    controller = make(cache, runs, workers=1)
    idle(controller)
    assert len(runs.requests) == 2
    assert controller.statistics().failures == 1
    assert controller.running() == []


def test_times_that_are_none_are_refused(make: Making) -> None:
    controller = make(ScriptedCache(), Runs())
    for seconds in (float("nan"), float("inf"), 10**400):
        with pytest.raises(UsageError):
            controller.enqueue("port", "p1", after_s=seconds)
    for wrong in (float("nan"), -1.0, 10**400, "soon"):
        with pytest.raises(UsageError):
            RequeueAfter(wrong)  # type: ignore[arg-type]
    for pauses in ((10**400, 10**400), (float("inf"), float("inf")), (2.0, 1.0)):
        with pytest.raises(UsageError):
            RetryPauses(*pauses)
    idle(controller)
    assert controller.statistics().runs == 0


def test_a_run_may_ask_for_another_one(make: Making) -> None:
    cache = ScriptedCache()
    cache.put("port", "p1")
    runs = Runs(lambda _: RequeueAfter(0.001) if len(runs.requests) < 5 else RequeueAfter(3600.0))
    controller = make(cache, runs)
    wait_until(lambda: len(runs.requests) == 5, what="five runs")
    idle(controller)  # what asked for a time does not count
    assert controller.statistics().queue.requeues == 5
    assert controller.statistics().waiting == 1
    cache.put("port", "p1")
    wait_until(lambda: len(runs.requests) == 6, what="a change to come first")
    idle(controller)


def test_a_time_that_comes_while_all_workers_sleep_is_kept(make: Making) -> None:
    """Also one that is earlier than the one for which a worker sleeps already."""
    cache, runs = ScriptedCache(), Runs()
    controller = make(cache, runs, workers=3)
    idle(controller)
    controller.enqueue("port", "far", after_s=3600.0)
    controller.enqueue("port", "near", after_s=0.05)
    controller.enqueue("port", "nearer", after_s=0.01)
    wait_until(lambda: set(runs.keys()) == {"near", "nearer"}, what="both")


# -- watching


def test_a_run_that_hangs_is_visible_and_does_not_hold_up_others(make: Making) -> None:
    cache = ScriptedCache()
    cache.put("port", "stuck")
    go_on, begun = threading.Event(), threading.Event()

    def reconcile(request: Request) -> None:
        if request.key == "stuck":
            begun.set()
            go_on.wait(WAIT_S)

    runs = Runs(reconcile)
    controller = make(cache, runs, workers=2)
    try:
        assert begun.wait(WAIT_S)
        for number in range(5):
            cache.put("port", f"p{number}")
        wait_until(lambda: len(runs.keys()) == 6, what="the others")
        wait_until(lambda: controller.statistics().oldest_running_s > 0.01, what="it to grow old")
        ((key, age_s),) = controller.running()
        assert key == Key("port", "stuck")
        assert age_s > 0.01
        with pytest.raises(WaitTimeout, match="not idle"):
            controller.wait_idle(timeout_s=0.01)
        assert controller.statistics().running == 1
    finally:
        go_on.set()
    idle(controller)
    assert controller.statistics().times.run_max_s > 0.01
    assert controller.statistics().oldest_running_s == 0


def test_a_run_that_hangs_is_named_in_the_log(
    make: Making, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work, "HANGING_S", 0.01)
    cache = ScriptedCache()
    cache.put("port", "stuck")
    go_on = threading.Event()
    make(cache, lambda _: None if go_on.wait(WAIT_S) else None, name="flows")
    try:
        wait_until(lambda: "Controller flows: reconcile of port 'stuck' has been running" in caplog.text)
    finally:
        go_on.set()


def test_keys_that_wait_are_counted_with_their_age(make: Making) -> None:
    cache = ScriptedCache()
    for number in range(4):
        cache.put("port", f"p{number}")
    go_on = threading.Event()
    controller = make(cache, lambda _: None if go_on.wait(WAIT_S) else None, workers=1)
    try:
        wait_until(lambda: controller.statistics().running == 1, what="the first run")
        assert controller.statistics().ready == 3
        wait_until(lambda: controller.statistics().oldest_ready_s > 0.01, what="them to grow old")
    finally:
        go_on.set()
    idle(controller)
    assert controller.statistics().times.waited_max_s > 0.01


def test_runs_per_second_are_limited(make: Making) -> None:
    cache, runs = ScriptedCache(), Runs()
    for number in range(30):
        cache.put("port", f"p{number}")
    began_at = time.monotonic()
    controller = make(cache, runs, runs_per_s_max=20.0)
    idle(controller)
    assert time.monotonic() - began_at >= 0.4  # 20 at once, 10 more at 20 a second
    assert len(runs.requests) == 30


# -- the end


def threads_of(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.endswith(f"-{name}")]


def test_close_waits_for_what_runs_and_begins_nothing(make: Making) -> None:
    cache = ScriptedCache()
    for number in range(10):
        cache.put("port", f"p{number}")
    go_on, begun, ended = threading.Event(), threading.Event(), threading.Event()
    stopping: list[bool] = []

    def reconcile(request: Request) -> None:
        begun.set()
        go_on.wait(WAIT_S)
        stopping.append(request.is_stopping)
        ended.set()

    runs = Runs(reconcile)
    controller = make(cache, runs, workers=1, name="orderly")
    assert begun.wait(WAIT_S)
    closing = threading.Thread(target=controller.close, kwargs={"timeout_s": WAIT_S})
    closing.start()
    wait_until(lambda: controller.is_closed, what="the end to be asked for")
    go_on.set()
    closing.join(WAIT_S)
    assert ended.is_set()
    assert stopping == [True]
    assert len(runs.requests) == 1
    assert threads_of("orderly") == []
    with pytest.raises(Closed):
        controller.enqueue("port", "p1")
    with pytest.raises(Closed):
        controller.wait_idle(timeout_s=1)
    assert "closed" in repr(controller)


def test_close_leaves_what_hangs_and_says_so(make: Making, caplog: pytest.LogCaptureFixture) -> None:
    cache = ScriptedCache()
    cache.put("port", "stuck")
    go_on, begun = threading.Event(), threading.Event()

    def reconcile(_: Request) -> None:
        begun.set()
        go_on.wait(WAIT_S)

    controller = make(cache, reconcile)
    try:
        assert begun.wait(WAIT_S)
        controller.close(timeout_s=0.01)
        assert "port 'stuck' has not ended" in caplog.text
    finally:
        go_on.set()


def test_a_run_may_close_its_controller(make: Making) -> None:
    cache = ScriptedCache()
    cache.put("port", "p1")
    controllers: list[Controller] = []
    is_made = threading.Event()

    def reconcile(_: Request) -> None:
        assert is_made.wait(WAIT_S)
        controllers[0].close()

    controllers.append(make(cache, reconcile, name="itself"))
    is_made.set()
    wait_until(lambda: controllers[0].is_closed and not threads_of("itself"), what="it to end")


def test_close_may_be_called_twice_and_while_nothing_runs(make: Making) -> None:
    for is_synced in (True, False):
        with make(ScriptedCache(is_synced=is_synced), Runs(), name="twice") as controller:
            controller.close()
        controller.close()
        assert threads_of("twice") == []


def test_it_ends_with_its_cache(make: Making) -> None:
    cache = ScriptedCache()
    controller = make(cache, Runs(), name="orphan")
    idle(controller)
    cache.is_closed = True
    with pytest.raises(Closed):
        wait_until(lambda: controller.wait_idle(timeout_s=WAIT_S), what="the end")
    wait_until(lambda: threads_of("orphan") == [], what="its threads to end")


def test_it_does_not_live_on_in_a_forked_child(make: Making) -> None:
    cache, runs = ScriptedCache(), Runs()
    controller = make(cache, runs)
    idle(controller)
    assert in_forked_child(lambda: outcome(lambda: controller.enqueue("port", "p1"))) == Forked.__name__
    assert in_forked_child(lambda: str(controller.close())) == "None"
    assert in_forked_child(lambda: str(controller.statistics().running)) == "0"
    cache.put("port", "p1")
    wait_until(lambda: runs.requests, what="the parent to go on")


def test_wrong_arguments_are_refused() -> None:
    cache: Any = ScriptedCache()

    async def coroutine(_: Request) -> None: ...

    for reconcile, arguments in (
        (coroutine, {}), (None, {}), (Runs(), {"workers": 0}), (Runs(), {"tables": "port"}),
        (Runs(), {"interval_min_s": -1.0}), (Runs(), {"runs_per_s_max": 0.0}),
        (Runs(), {"interval_min_s": float("inf")}), (Runs(), {"interval_min_s": 10**400}),
        (Runs(), {"runs_per_s_max": 10**400}),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            Controller(cache, reconcile, **arguments)  # type: ignore[arg-type]
