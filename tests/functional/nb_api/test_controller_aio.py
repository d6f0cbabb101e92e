"""A controller on an event loop: the same as in threads, and runs that take too long are cancelled."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nb_api.aio import Controller, LocalCache, Request, RequeueAfter, RetryPauses
from pubsub_api.errors import Closed, UsageError, WaitTimeout
from tests.helpers.scripted_cache import ScriptedCache
from tests.helpers.waiting import WAIT_S

SOON = RetryPauses(0.001, 0.01)


def made(cache: Any, reconcile: Any, **arguments: Any) -> Controller:
    arguments = {"interval_min_s": 0.0, "retries": SOON, **arguments}
    return Controller(LocalCache.over(cache), reconcile, **arguments)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 3 * WAIT_S))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_runs_are_made_on_the_loop_of_the_program() -> None:
    async def test() -> None:
        cache, seen = ScriptedCache(), Counter[str]()
        threads: set[int] = set()

        async def reconcile(request: Request) -> None:
            threads.add(threading.get_ident())
            await asyncio.sleep(0)
            seen[request.key] += 1

        for number in range(50):
            cache.put("port", f"p{number}")
        async with made(cache, reconcile) as controller:
            await controller.wait_idle(timeout_s=WAIT_S)
            assert seen == Counter(f"p{number}" for number in range(50))
            assert threads == {threading.get_ident()}
            cache.put("port", "p0")
            await until(lambda: seen["p0"] == 2)
        assert "closed" in repr(controller)
        assert controller.is_closed
        with pytest.raises(Closed):
            controller.enqueue("port", "p1")

    run(test)


def test_a_run_that_is_cancelled_before_its_first_step_is_made_again() -> None:
    async def test() -> None:
        cache, seen = ScriptedCache(), set[str]()
        others = asyncio.all_tasks()
        cancelled = 0

        async def reconcile(request: Request) -> None:
            nonlocal cancelled
            if not cancelled:  # those that were made together with this one have not begun
                waiting = asyncio.all_tasks() - others - {asyncio.current_task()}
                cancelled = sum(task.cancel() for task in waiting)
            seen.add(request.key)

        for number in range(4):
            cache.put("port", f"p{number}")
        async with made(cache, reconcile, workers=4) as controller:
            await until(lambda: len(seen) == 4)
            await controller.wait_idle(timeout_s=WAIT_S)
            assert controller.running() == []
        assert cancelled

    run(test)


def test_so_many_run_at_a_time_and_no_key_twice() -> None:
    async def test() -> None:
        cache = ScriptedCache()
        inside: Counter[str] = Counter()
        newest: dict[str, Any] = {}
        most = 0

        async def reconcile(request: Request) -> None:
            nonlocal most
            assert not inside[request.key]
            inside[request.key] += 1
            most = max(most, sum(inside.values()))
            await asyncio.sleep(0)
            assert request.object is not None
            newest[request.key] = request.object.value
            inside[request.key] -= 1

        async with made(cache, reconcile, workers=3) as controller:
            for number in range(1000):
                cache.put("port", f"p{number % 10}", number)
            await until(lambda: newest == {f"p{number}": 990 + number for number in range(10)})
            await controller.wait_idle(timeout_s=WAIT_S)
            assert controller.statistics().failures == 0
        assert most <= 3

    run(test)


def test_what_raises_or_takes_too_long_is_made_again() -> None:
    async def test() -> None:
        cache, attempts = ScriptedCache(), Counter[str]()
        for key in ("raises", "hangs", "good"):
            cache.put("port", key)

        async def reconcile(request: Request) -> RequeueAfter | None:
            attempts[request.key] += 1
            if request.key == "raises" and request.attempt < 3:
                raise ValueError("broken")
            if request.key == "hangs" and request.attempt < 2:
                await asyncio.Event().wait()
            return RequeueAfter(3600.0) if request.key == "good" else None

        async with made(cache, reconcile, workers=1, timeout_s=0.5) as controller:
            await controller.wait_idle(timeout_s=WAIT_S)
            assert attempts["raises"] >= 3
            assert attempts["hangs"] >= 2
            assert controller.statistics().failures >= 3
            assert controller.statistics().waiting == 1

    run(test)


def test_a_time_and_a_call_from_another_thread_are_heard() -> None:
    async def test() -> None:
        cache, seen = ScriptedCache(), Counter[str]()

        async def reconcile(request: Request) -> None:
            seen[request.key] += 1

        async with made(cache, reconcile) as controller:
            await controller.wait_idle(timeout_s=WAIT_S)
            controller.enqueue("port", "far", after_s=3600.0)
            controller.enqueue("port", "near", after_s=0.01)
            await until(lambda: seen["near"])
            await asyncio.to_thread(controller.enqueue, "port", "other")
            await until(lambda: seen["other"])

    run(test)


def test_close_waits_for_what_runs_and_begins_nothing() -> None:
    async def test() -> None:
        cache, begun, ended = ScriptedCache(), list[str](), list[str]()
        go_on = asyncio.Event()
        for number in range(4):
            cache.put("port", f"p{number}")

        async def reconcile(request: Request) -> None:
            begun.append(request.key)
            await go_on.wait()
            ended.append(request.key)

        controller = made(cache, reconcile, workers=2, name="orderly")
        await until(lambda: len(begun) == 2)
        closing = asyncio.create_task(controller.close(timeout_s=WAIT_S))
        await until(lambda: controller.is_closed)
        go_on.set()
        await closing
        await controller.close()
        assert sorted(ended) == sorted(begun) == ["p0", "p1"]
        assert not any("orderly" in thread.name for thread in threading.enumerate())

    run(test)


def test_close_cancels_what_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        cache, ends = ScriptedCache(), list[str]()
        cache.put("port", "stuck")

        async def reconcile(_: Request) -> None:
            ends.append("begun")
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("ended")

        controller = made(cache, reconcile)
        await until(lambda: ends)
        await controller.close(timeout_s=0.01)
        await until(lambda: ends == ["begun", "ended"])
        assert "port 'stuck' is cancelled" in caplog.text

    run(test)


def test_a_run_may_close_its_controller() -> None:
    async def test() -> None:
        cache = ScriptedCache()
        cache.put("port", "p1")

        async def reconcile(_: Request) -> None:
            await controller.close()

        controller = made(cache, reconcile)
        await until(lambda: controller.is_closed and not controller.running())
        await controller.close()

    run(test)


@pytest.mark.parametrize("is_in_a_task", [False, True])
def test_a_run_with_a_time_limit_may_close_its_controller(is_in_a_task: bool) -> None:
    async def test() -> None:
        cache, ended = ScriptedCache(), list[bool]()
        cache.put("port", "p1")

        async def reconcile(_: Request) -> None:
            closing = controller.close(timeout_s=3 * WAIT_S)
            await (asyncio.create_task(closing) if is_in_a_task else closing)
            ended.append(True)

        controller = made(cache, reconcile, timeout_s=3 * WAIT_S)
        await until(lambda: ended)
        await controller.close()

    run(test)


def test_waiting_needs_no_thread_and_ends_at_once_when_it_is_cancelled() -> None:
    async def test() -> None:
        cache = ScriptedCache()
        cache.put("port", "p1")
        go_on = asyncio.Event()

        async def reconcile(_: Request) -> None:
            await go_on.wait()

        loop, busy = asyncio.get_running_loop(), threading.Event()
        executor = concurrent.futures.ThreadPoolExecutor(1)
        loop.set_default_executor(executor)
        executor.submit(busy.wait, 3 * WAIT_S)
        try:
            async with made(cache, reconcile) as controller:
                await until(controller.running)
                with pytest.raises(WaitTimeout, match="not idle"):
                    await controller.wait_idle(timeout_s=0.01)
                cancelled = asyncio.create_task(controller.wait_idle(timeout_s=3 * WAIT_S))
                await asyncio.sleep(0)
                cancelled.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
                waiting = asyncio.create_task(controller.wait_idle(timeout_s=3 * WAIT_S))
                await asyncio.sleep(0)
                go_on.set()
                await waiting
                assert not controller.running()
        finally:
            busy.set()

    run(test)


def test_who_waits_is_told_when_it_is_closed() -> None:
    async def test() -> None:
        controller = made(ScriptedCache(is_synced=False), Awaited())
        waiting = asyncio.create_task(controller.wait_idle(timeout_s=3 * WAIT_S))
        await asyncio.sleep(0)
        await controller.close()
        with pytest.raises(Closed):
            await waiting

    run(test)


class Awaited:
    """An object that is called, and gives what it was made with."""

    def __init__(self, given: Any = None) -> None:
        self._given = given

    def __call__(self, _: Request) -> Any:
        return self._given


def test_what_is_no_coroutine_function_is_refused_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    def plain(_: Request) -> None: ...

    async def test() -> None:
        cache: Any = ScriptedCache()
        for wrong in (plain, functools.partial(plain)):
            with pytest.raises(UsageError, match="coroutine function"):
                made(cache, wrong)
        for timeout_s in (0.0, float("nan")):
            with pytest.raises(UsageError, match="timeout_s"):
                made(cache, Awaited(), timeout_s=timeout_s)
        cache.put("port", "p1")
        async with made(cache, Awaited()) as controller:
            await until(lambda: controller.statistics().failures)
        assert "reconcile returns an awaitable, not a NoneType" in caplog.text

    run(test)


def test_it_needs_a_loop() -> None:
    async def reconcile(_: Request) -> None: ...

    cache: Any = ScriptedCache()
    with pytest.raises(UsageError, match="coroutine"):
        Controller(LocalCache.over(cache), reconcile)
