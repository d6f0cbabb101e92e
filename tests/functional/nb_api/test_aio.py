"""`nb_api` for coroutines: the same results as in threads, and nothing is lost between threads and loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import pathlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

import nb_api
from nb_api import aio
from nb_api.aio import Created, Election, LocalCache, NbApi, Resynced
from nb_api.aio.api import CALLS_MAX
from nb_api.errors import ObjectExists, ObjectNotFound, VersionConflict
from pubsub_api.errors import Closed, Forked, UsageError, WaitTimeout
from tests.helpers.nb_tools import memory_bus, nb_conf, sqlite_url
from tests.helpers.waiting import WAIT_S, wait_until

T = TypeVar("T")


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(test, 3 * WAIT_S))


@contextlib.asynccontextmanager
async def opened(directory: pathlib.Path, bus: str | None = None, **settings: Any) -> AsyncIterator[NbApi]:
    async with NbApi.open(sqlite_url(directory), conf=nb_conf(bus, **settings)) as nb:
        yield nb


@contextlib.asynccontextmanager
async def followed(directory: pathlib.Path, **settings: Any) -> AsyncIterator[tuple[NbApi, LocalCache]]:
    async with opened(directory, memory_bus(), **settings) as nb, LocalCache(nb, tables=["port"]) as cache:
        await cache.wait_synced(timeout_s=WAIT_S)
        yield nb, cache


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


async def gone(prefix: str) -> None:
    while any(name.startswith(prefix) for name in threads()):
        await asyncio.sleep(0.005)


def test_the_names_are_those_of_nb_api() -> None:
    assert set(nb_api.__all__) - set(aio.__all__) == {"DbApi", "Write"}, "what drivers of databases need"
    assert all(hasattr(aio, name) for name in aio.__all__)


@pytest.mark.parametrize("with_bus", [False, True], ids=["feed", "bus"])
def test_what_is_written_comes_as_changes_in_order(tmp_path: pathlib.Path, with_bus: bool) -> None:
    async def test() -> None:
        async with (
            opened(tmp_path, memory_bus() if with_bus else None) as nb,
            LocalCache(nb, tables=["port"], topics=["tenant-7/#"]) as cache,
        ):
            await cache.wait_synced(timeout_s=WAIT_S)
            await nb.create("port", "p1", {"up": False}, topic="tenant-7")
            await nb.update("port", "p1", lambda port: {**port, "up": True})
            async with nb.transaction() as txn:
                txn.create("port", "p2", 2, topic="tenant-7")
                txn.put("port", "p3", 3, topic="tenant-7")
            version = await nb.delete("port", "p2", expected_version=txn.versions[0])
            assert await cache.wait_version("port", "p2", version, timeout_s=WAIT_S) is None
            assert cache.get("port", "p1").value == {"up": True}
            assert cache.get_all("port") == await nb.get_all("port")
            assert await nb.allocate("number") == 1
            await nb.flush(timeout_s=WAIT_S)
            told: list[str] = []
            async for change in cache.changes(timeout_s=WAIT_S):
                if not isinstance(change, Resynced):
                    told.append(f"{type(change).__name__} {change.key}")
                if told and told[-1] == "Deleted p2":
                    break
            newest = {line.split()[1]: line.split()[0] for line in told}
            assert newest == {"p1": newest["p1"], "p2": "Deleted", "p3": "Created"}, told

    run(test())


def test_a_copy_is_proven(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as nb, LocalCache(nb, tables=["port"]) as cache:
            await cache.wait_synced(timeout_s=WAIT_S)
            version = await nb.create("port", "p1", 1, topic="t")
            await cache.wait_version("port", "p1", version, timeout_s=WAIT_S)
            found = await cache.verify(timeout_s=WAIT_S)
            assert found.is_equal
            assert (await cache.digests())["port"].objects == 1

    run(test())


def test_errors_are_the_same(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as nb, LocalCache(nb, tables=["port"]) as cache:
            version = await nb.create("port", "p1", 1, topic="t")
            with pytest.raises(ObjectExists):
                await nb.create("port", "p1", 1, topic="t")
            with pytest.raises(VersionConflict):
                await nb.update("port", "p1", 2, expected_version=version + 1)
            with pytest.raises(ObjectNotFound):
                await nb.get("port", "p2")

            async def commit() -> None:
                async with nb.transaction() as txn:
                    txn.create("port", "p2", 2, topic="t")
                    txn.delete("port", "p3")

            with pytest.raises(ObjectNotFound):
                await commit()
            assert [found.key for found in await nb.get_all("port")] == ["p1"]
            with pytest.raises(WaitTimeout):
                await cache.wait_version("port", "p1", version + (5 << 20), timeout_s=0.0)
            with pytest.raises(UsageError):
                await cache.wait_version("net", "n1", 1, timeout_s=WAIT_S)

            async def slow(value: int) -> int:
                return value

            with pytest.raises(UsageError):
                await nb.update("port", "p1", slow)
        with pytest.raises(Closed):
            await nb.create("port", "p4", 1, topic="t")
        with pytest.raises(Closed):
            await cache.wait_synced(timeout_s=WAIT_S)
        with pytest.raises(Closed):
            await anext(cache.changes())

    run(test())


def test_a_block_that_is_cancelled_commits_nothing(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as nb:

            async def write() -> None:
                async with nb.transaction() as txn:
                    txn.create("port", "p1", 1, topic="t")
                    await asyncio.Event().wait()

            await cancelled(write())
            assert await nb.get_all("port") == []

    run(test())


async def cancelled(work: Coroutine[Any, Any, Any]) -> None:
    """Begin it, and cancel it while it waits."""
    task = asyncio.create_task(work)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Held:
    """Functions of updates that wait, so that the threads that make the calls are busy until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self, value: int) -> int:
        self.begun.release()
        assert self.go.wait(WAIT_S)
        return value + 1

    async def wait_begun(self) -> None:
        while not self.begun.acquire(blocking=False):
            await asyncio.sleep(0.001)


def test_a_write_that_has_not_begun_is_not_made_when_its_task_is_cancelled(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        held = Held()
        async with opened(tmp_path) as nb:
            for number in range(CALLS_MAX):
                await nb.create("port", f"p{number}", 0, topic="t")
            busy = [asyncio.create_task(nb.update("port", f"p{number}", held)) for number in range(CALLS_MAX)]
            for _ in busy:
                await held.wait_begun()
            await cancelled(nb.create("port", "never", 1, topic="t"))
            held.go.set()
            await asyncio.gather(*busy)
            await nb.create("port", "later", 1, topic="t")  # behind what waited
            assert {found.key for found in await nb.get_all("port")} == {
                "later", *(f"p{number}" for number in range(len(busy)))
            }  # fmt: skip

    run(test())


def test_a_write_that_has_begun_goes_on_and_is_told(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        held = Held()
        async with followed(tmp_path) as (nb, cache):
            await nb.create("port", "p1", 0, topic="t")
            task = asyncio.create_task(nb.update("port", "p1", held))
            await held.wait_begun()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            held.go.set()
            async for change in cache.changes():
                if not isinstance(change, Resynced) and change.object.value == 1:
                    break

    run(test())


def test_closing_ends_what_waits_and_leaves_no_thread(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        before, held = threads(), Held()
        async with contextlib.AsyncExitStack() as stack:
            nb = await stack.enter_async_context(opened(tmp_path))
            cache = await stack.enter_async_context(LocalCache(nb, tables=["port"]))
            version = await nb.create("port", "p0", 0, topic="t")
            waits: list[Awaitable[object]] = [
                cache.wait_version("port", "p0", version + (1 << 40), timeout_s=WAIT_S) for _ in range(50)
            ]
            in_wait = [asyncio.ensure_future(wait) for wait in waits]
            busy = [asyncio.create_task(nb.update("port", "p0", held)) for _ in range(CALLS_MAX + 5)]
            for _ in range(CALLS_MAX):
                await held.wait_begun()
            closing = asyncio.create_task(nb.close())
            held.go.set()
            done = await asyncio.gather(*busy, return_exceptions=True)
            assert all(isinstance(one, int | Closed | VersionConflict) for one in done), done
            await closing
            await cache.close()
            ended = await asyncio.gather(*in_wait, return_exceptions=True)
            assert all(isinstance(one, Closed | nb_api.errors.RevisionUnknown) for one in ended), ended
        while threads() - before:
            await asyncio.sleep(0.005)

    run(test())


def test_who_waits_needs_no_thread(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with followed(tmp_path) as (nb, cache):
            subscription = await cache.subscribe()
            await gone("heliograph-cache-aio")
            before = threading.active_count()
            version = await nb.create("port", "p0", 0, topic="t")
            # A version that the next write reaches, so that nobody has to ask the database for it.
            waits = [
                asyncio.create_task(cache.wait_version("port", "p1", version + 1, timeout_s=WAIT_S)) for _ in range(100)
            ]
            told = asyncio.create_task(anext(subscription.changes()))
            await asyncio.sleep(0)
            assert threading.active_count() <= before + CALLS_MAX
            await nb.create("port", "p1", 1, topic="t")
            found = await asyncio.gather(*waits)
            assert {one.value for one in found if one is not None} == {1}
            assert isinstance(await told, Created | Resynced)

    run(test())


def test_a_cancelled_iteration_leaves_nothing_out(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with followed(tmp_path) as (nb, cache):
            seen: list[str] = []

            async def follow() -> None:
                async for change in cache.changes():
                    if isinstance(change, Created):
                        seen.append(change.key)
                    await asyncio.sleep(0)

            async def write() -> None:
                for number in range(300):
                    await nb.create("port", f"p{number:03}", number, topic="t")

            writer = asyncio.create_task(write())
            while len(seen) < 300:
                task = asyncio.create_task(follow())
                await asyncio.sleep(0.002)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await writer
            assert seen == [f"p{number:03}" for number in range(300)]

    run(test())


def test_a_slow_consumer_is_told_once_to_read_everything_even_when_it_is_cancelled(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.notify_config.CHANGES_QUEUE_MAX", 10)

    async def test() -> None:
        async with followed(tmp_path) as (nb, cache):
            subscription = await cache.subscribe()
            async for change in subscription.changes():
                if isinstance(change, Resynced):
                    break  # the copy is complete
            for number in range(50):
                version = await nb.create("port", f"p{number}", number, topic="t")
            await cache.wait_version("port", "p49", version, timeout_s=WAIT_S)
            assert subscription.overruns == 1
            turn = threading.Event()
            with holding(cache, turn):  # the overrun is taken while the copy does not change
                await cancelled(anext(subscription.changes()))  # type: ignore[arg-type]
                turn.set()
            first = await anext(subscription.changes())
            assert isinstance(first, Resynced)
            assert first.kind == "overrun"
            assert len(cache.get_all("port")) == 50
            await nb.create("port", "after", 1, topic="t")
            second = await anext(subscription.changes())
            assert isinstance(second, Created)
            assert second.key == "after"
            await subscription.close()
            assert [one async for one in subscription.changes()] == []

    run(test())


@contextlib.contextmanager
def holding(cache: LocalCache, go: threading.Event) -> Any:
    """A callback of another consumer takes its time, and with it the turn to change the copy."""
    inside = threading.Event()

    def on_changes(_: object) -> None:
        inside.set()
        assert go.wait(WAIT_S)

    thread = threading.Thread(target=lambda: cache.blocking.subscribe(on_changes))
    thread.start()
    thread.join()
    assert inside.wait(WAIT_S)
    yield


def test_a_late_consumer_is_told_of_every_object_once(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with followed(tmp_path) as (nb, cache):
            writer = asyncio.create_task(write_all(nb))
            async with await cache.subscribe(tables=["port"]) as subscription:
                keys: list[str] = []
                async for change in subscription.changes(timeout_s=WAIT_S):
                    if isinstance(change, Created):
                        keys.append(change.key)
                    if len(keys) == 100:
                        break
            await writer
            assert sorted(keys) == sorted({f"p{number}" for number in range(100)})

    async def write_all(nb: NbApi) -> None:
        for number in range(100):
            await nb.create("port", f"p{number}", number, topic="t")

    run(test())


def test_many_changes_in_a_row_leave_other_tasks_their_turn(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with followed(tmp_path) as (nb, cache):
            async with nb.transaction() as txn:
                for number in range(500):
                    txn.create("port", f"p{number}", number, topic="t")
            await cache.wait_version("port", "p499", txn.versions[-1], timeout_s=WAIT_S)
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            seen = 0
            async for change in cache.changes():
                seen += isinstance(change, Created)
                if seen == 500:
                    break
            assert turns >= 4
            task.cancel()

    run(test())


def test_a_loop_that_is_closed_early_is_no_error_and_loses_nothing(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    nb, cache, held = run(make(tmp_path))
    loop = asyncio.new_event_loop()
    waiting = [
        loop.create_task(anext(cache.changes())),  # type: ignore[arg-type]
        loop.create_task(cache.wait_version("port", "p9", 1 << 50, timeout_s=WAIT_S)),
        loop.create_task(nb.update("port", "p0", held)),
    ]
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    assert held.begun.acquire(timeout=WAIT_S)
    loop.close()  # with tasks that wait, and a call under way
    held.go.set()

    async def test() -> None:
        async for change in cache.changes(timeout_s=WAIT_S):
            if not isinstance(change, Resynced) and change.object.value == 1:
                break
        await cache.close()
        await nb.close()

    run(test())
    assert not any("exception" in record.message.lower() for record in caplog.records), caplog.text
    for task in waiting:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  asyncio would tell that we did this


async def make(directory: pathlib.Path) -> tuple[NbApi, LocalCache, Held]:
    nb = await NbApi.open(sqlite_url(directory), conf=nb_conf(memory_bus()))
    cache = LocalCache(nb, tables=["port"])
    await cache.wait_synced(timeout_s=WAIT_S)
    await nb.create("port", "p0", 0, topic="t")
    async for change in cache.changes():
        if isinstance(change, Created):
            break
    return nb, cache, Held()


def test_another_loop_may_close_it(tmp_path: pathlib.Path) -> None:
    nb, cache, _ = run(make(tmp_path))
    begun = threading.Event()

    async def follow() -> list[str]:
        begun.set()
        return [type(change).__name__ async for change in cache.changes()]

    with concurrent.futures.ThreadPoolExecutor(1) as other:
        followed = other.submit(lambda: run(follow()))
        assert begun.wait(WAIT_S)

        async def end() -> None:
            await cache.close()
            await nb.close()

        run(end())
        assert followed.result(WAIT_S) in ([], ["Resynced"])


def test_a_forked_child_uses_the_writer_on_a_loop_of_its_own_and_no_cache(tmp_path: pathlib.Path) -> None:
    nb, cache, _ = run(make(tmp_path))
    pid = os.fork()
    if not pid:
        os._exit(0 if is_right_in_child(nb, cache) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    async def look() -> None:
        assert (await nb.get("port", "child")).value == 1
        await cache.close()
        await nb.close()

    run(look())


def is_right_in_child(nb: NbApi, cache: LocalCache) -> bool:
    async def test() -> bool:
        await nb.create("port", "child", 1, topic="t")
        refused = 0
        tries: list[Callable[[], Awaitable[object]]] = [
            lambda: cache.wait_synced(timeout_s=WAIT_S),
            lambda: anext(cache.changes()),
            cache.subscribe,
        ]
        for attempt in tries:
            try:
                await attempt()
            except Forked:
                refused += 1
        await cache.close()
        await nb.close()
        return refused == len(tries)

    try:
        return run(test())
    except BaseException as error:  # noqa: BLE001  it is a child: nothing else tells
        os.write(2, f"{error!r}\n".encode())
        return False


def test_what_a_cancelled_open_makes_is_closed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, made = threading.Event(), list[nb_api.NbApi]()
    really_open = nb_api.NbApi.open

    def slow(*args: Any, **kwargs: Any) -> nb_api.NbApi:
        assert go.wait(WAIT_S)
        made.append(really_open(*args, **kwargs))
        return made[0]

    async def enter() -> None:
        async with opened(tmp_path):
            raise AssertionError("it was cancelled")

    monkeypatch.setattr(nb_api.NbApi, "open", slow)
    run(cancelled(enter()))
    go.set()

    def is_closed() -> bool:
        try:
            return bool(made) and made[0].get("port", "p1") is None
        except ObjectNotFound:
            return False
        except Closed:
            return True

    wait_until(is_closed, what="the database to be closed")


def test_an_index_and_topics_are_those_of_the_cache(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as nb, LocalCache(nb, tables=["port"], topics=["a"]) as cache:
            by_net = await cache.index("by_net", lambda port: port.value["net"])
            assert await cache.index("by_net") is by_net
            await nb.create("port", "p1", {"net": "blue"}, topic="a")
            version = await nb.create("port", "p2", {"net": "blue"}, topic="b")
            assert await cache.add_topic("b")
            assert await cache.wait_version("port", "p2", version, timeout_s=WAIT_S) is not None
            await cache.wait_revision(version, timeout_s=WAIT_S)
            assert by_net.keys("blue") == ["p1", "p2"]
            assert cache.topics == ["a", "b"]
            assert await cache.remove_topic("b")
            assert by_net.keys("blue") == ["p1"]
            cache.get("port", "p1").value["net"] = "red"
            assert cache.get("port", "p1").value == {"net": "blue"}, "what is read belongs to its reader"

    run(test())


def test_candidates_lead_one_after_the_other(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as nb:
            first = Election(nb, "sweeper", holder="one").start()
            token = await first.wait_leader(timeout_s=WAIT_S)
            assert first.is_leader()
            assert first.token() == token
            async with Election(nb, "sweeper", holder="two") as second:
                with pytest.raises(WaitTimeout):
                    await second.wait_leader(timeout_s=0.0)
                lost = asyncio.create_task(first.wait_lost(token))
                won = asyncio.create_task(second.wait_leader())
                await asyncio.sleep(0)
                with pytest.raises(WaitTimeout):
                    await first.wait_lost(token, timeout_s=0.0)
                await first.close()
                await lost
                assert await won > token
            with pytest.raises(Closed):
                await second.wait_leader(timeout_s=WAIT_S)
            await second.wait_lost(token)

    run(test())


def test_the_statistics_are_those_of_the_blocking_ones(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        async with followed(tmp_path) as (nb, cache):
            version = await nb.put("port", "p1", 1, topic="t")
            await cache.wait_version("port", "p1", version, timeout_s=WAIT_S)
            assert nb.statistics().writes == nb.blocking.statistics().writes == 1
            assert cache.statistics().objects == cache.blocking.statistics().objects == 1
            assert cache.is_followed("port")
            assert cache.tables == ["port"]
        wait_until(lambda: cache.is_closed)

    run(test())
