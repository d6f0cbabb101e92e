"""The asyncio face: the same promises, inside an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

import pubsub_api
from pubsub_api import aio, errors
from pubsub_api.testing.conf_fixture import fast_conf
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
