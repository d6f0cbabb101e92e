"""The asyncio face: the same promises, inside an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

import pubsub_api
from pubsub_api import aio, errors
from pubsub_api.testing.fast_conf import fast_conf
from tests.functional.conftest import event
from tests.helpers.waiting import wait_until


def test_events_and_resyncs_come_in_order() -> None:
    async def main() -> list[object]:
        seen: list[object] = []
        async with aio.open("memory://aio-order") as session:
            publisher = await session.publisher()
            async with session.subscriber(["a/#"]) as subscriber:
                await subscriber.wait_ready(timeout_s=60)
                publisher.send_events(event(number, "a/b") for number in range(1, 1001))
                await publisher.flush(timeout_s=60)
                async for item in subscriber:
                    seen.append(item.version if isinstance(item, pubsub_api.Event) else item.reason)
                    if len(seen) == 1001:
                        break
                assert subscriber.statistics().received == 1000
                assert publisher.statistics().events == 1000
        return seen

    assert asyncio.run(main()) == [pubsub_api.Reason.INITIAL, *range(1, 1001)]


def test_filters_change_while_it_runs() -> None:
    async def main() -> list[int]:
        async with aio.open("memory://aio-filters") as session:
            publisher = await session.publisher()
            async with session.subscriber(["a"]) as subscriber:
                await subscriber.wait_ready(timeout_s=60)
                assert await subscriber.subscribe("b")
                versions: list[int] = []
                async for item in subscriber:
                    if isinstance(item, pubsub_api.Resync) and "b" in item.topics:
                        publisher.send_event(event(1, "b"))
                    elif isinstance(item, pubsub_api.Event):
                        versions.append(item.version)
                        break
                assert await subscriber.unsubscribe("b")
                return versions

    assert asyncio.run(main()) == [1]


def test_closing_ends_an_iteration_that_waits() -> None:
    async def main() -> None:
        async with aio.open("memory://aio-close") as session:
            subscriber = session.subscriber(["a"])
            await subscriber.wait_ready(timeout_s=60)

            async def consume() -> int:
                return len([item async for item in subscriber])

            task = asyncio.create_task(consume())
            await asyncio.sleep(0)
            await subscriber.close()
            assert await asyncio.wait_for(task, 60) <= 1, "at most the first resync"

    asyncio.run(main())


def test_a_coroutine_that_does_not_keep_up_gets_a_resync_and_memory_stays_bounded() -> None:
    async def main() -> None:
        small = {"receive_queue_bytes_max": 20_000, "pending_bytes_max": 20_000}
        conf = fast_conf("memory://aio-slow", batch_events_max=10, **small)
        async with aio.open(conf=conf) as session:
            publisher = await session.publisher()
            subscriber = session.subscriber(["#"])
            await subscriber.wait_ready(timeout_s=60)

            def flood() -> None:
                number = 0
                while not subscriber.statistics().discarded:
                    number += 1
                    publisher.send_event(event(number, value="x" * 500))

            await asyncio.wait_for(asyncio.to_thread(flood), 60)
            async for item in subscriber:
                if isinstance(item, pubsub_api.Resync) and item.reason is pubsub_api.Reason.SLOW_CONSUMER:
                    break
            await subscriber.close()

    asyncio.run(main())


def test_errors_are_the_same() -> None:
    async def main() -> None:
        async with aio.open("memory://aio-errors") as session:
            publisher = await session.publisher()
            with pytest.raises(errors.InvalidTopic):
                publisher.send_event(event(1, "a/#"))
            await publisher.close()
            with pytest.raises(errors.Closed):
                publisher.send_event(event(1))

    before = threading.active_count()
    asyncio.run(main())
    wait_until(lambda: threading.active_count() <= before, 60, "all threads to end")


def test_the_next_item_within_a_time_and_nothing_is_left_out_by_who_stops_reading() -> None:
    async def main() -> list[int]:
        versions: list[int] = []
        async with aio.open("memory://aio-get") as session, session.subscriber(["#"]) as subscriber:
            publisher = await session.publisher()
            await subscriber.wait_ready(timeout_s=60)
            assert isinstance(await subscriber.get(timeout_s=60), pubsub_api.Resync)
            assert await subscriber.get(timeout_s=0.01) is None
            waiting = asyncio.create_task(subscriber.get())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            publisher.send_events(event(number) for number in range(1, 101))
            while len(versions) < 100:
                async for item in subscriber:
                    assert isinstance(item, pubsub_api.Event)
                    versions.append(item.version)
                    if item.version % 7 == 0 or item.version == 100:
                        break
                if len(versions) < 100:
                    got = await subscriber.get(timeout_s=60)
                    assert isinstance(got, pubsub_api.Event)
                    versions.append(got.version)
        with pytest.raises(errors.Closed):
            await subscriber.get()
        return versions

    assert asyncio.run(asyncio.wait_for(main(), 120)) == list(range(1, 101))


def test_a_loop_that_is_closed_early_holds_up_nobody_and_another_one_reads_on() -> None:
    with pubsub_api.open("memory://aio-early") as blocking:
        session = aio.AsyncSession(blocking)
        loop = asyncio.new_event_loop()
        subscriber = session.subscriber(["#"])
        loop.run_until_complete(subscriber.wait_ready(timeout_s=60))
        waiting = loop.create_task(subscriber.get())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]  asyncio would tell that we did this
        publisher = blocking.publisher()
        publisher.send_events([event(1), event(2)])

        async def read_on() -> list[int]:
            versions: list[int] = []
            while versions[-1:] != [2]:
                found = await subscriber.get(timeout_s=60)
                assert found is not None
                versions += [found.version] if isinstance(found, pubsub_api.Event) else []
            assert subscriber.statistics().callback_errors == 0
            await subscriber.close()
            return versions

        assert asyncio.run(read_on()) == [1, 2]
