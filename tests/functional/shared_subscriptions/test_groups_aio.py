"""The asyncio face of shared subscriptions: what is acknowledged has been handled, whatever becomes of a coroutine."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator

import pytest

import durable_log
import pubsub_api
from durable_log import LogApi
from pubsub_api import aio
from pubsub_api.errors import Closed, UsageError
from pubsub_api.testing.fast_conf import fast_conf
from shared_subscriptions import GroupDestroyed, GroupEvent, GroupSubscriber, config, groups
from shared_subscriptions.aio import AsyncGroupSubscriber, subscribe
from tests.helpers.group_nodes import CALM, Source, groups_conf

SHARED = "$shared/billing/tenant-7/#"
TOPIC = "tenant-7/t"
PATIENCE_S = 60.0


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=2"


@contextlib.asynccontextmanager
async def member(url: str, *, auto_ack: bool = True) -> AsyncIterator[AsyncGroupSubscriber]:
    conf = groups_conf(unsubscribe_timeout=5.0)
    made = GroupSubscriber(durable_log.open(url, conf=conf), conf, [SHARED], auto_ack=auto_ack)
    async with AsyncGroupSubscriber(made) as subscriber:
        await subscriber.wait_ready(timeout_s=PATIENCE_S)
        yield subscriber


async def take(subscriber: AsyncGroupSubscriber, count: int) -> list[GroupEvent]:
    """So many events; the loop is left in the middle of the last one."""
    seen: list[GroupEvent] = []
    async with contextlib.aclosing(subscriber.__aiter__()) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == count:
                break
    return seen


def versions(events: list[GroupEvent]) -> list[int]:
    return [event.version for event in events]


def test_an_event_is_acknowledged_when_the_next_one_is_asked_for(url: str, log: LogApi) -> None:
    async def main() -> tuple[list[int], list[int]]:
        async with member(url) as subscriber:
            Source(log).publish(TOPIC, 10)
            first = await take(subscriber, 4)
        async with member(url) as subscriber:
            return versions(first), versions(await take(subscriber, 7))

    first, rest = asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert first == [1, 2, 3, 4]
    assert rest == [4, 5, 6, 7, 8, 9, 10]  # the loop was left while it had 4


def test_a_cancelled_wait_loses_nothing(url: str, log: LogApi) -> None:
    """A thread is left waiting for the event that nobody wants; it comes to the next one who asks."""

    async def main() -> list[int]:
        async with member(url) as subscriber:
            waiting = asyncio.ensure_future(take(subscriber, 1))
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            Source(log).publish(TOPIC, 5)
            return versions(await take(subscriber, 5))

    assert sorted(asyncio.run(asyncio.wait_for(main(), PATIENCE_S))) == [1, 2, 3, 4, 5]


def test_several_coroutines_share_what_there_is(url: str, log: LogApi) -> None:
    """Nobody goes on before each of them has an event, also when one had everything to itself at first."""

    async def main() -> list[list[int]]:
        taken: list[list[int]] = [[], [], []]
        everybody_has_one, all_seen = asyncio.Event(), asyncio.Event()

        async def consume(subscriber: AsyncGroupSubscriber, place: int) -> None:
            async for event in subscriber:
                taken[place].append(event.version)
                if all(taken):
                    everybody_has_one.set()
                if sum(map(len, taken)) >= 30:
                    all_seen.set()
                await everybody_has_one.wait()

        async with member(url) as subscriber:
            Source(log).publish(TOPIC, 30, keys=30)
            consumers = [asyncio.ensure_future(consume(subscriber, 0))]
            while not taken[0]:
                await asyncio.sleep(0.01)
            consumers += [asyncio.ensure_future(consume(subscriber, place)) for place in (1, 2)]
            await all_seen.wait()
        await asyncio.gather(*consumers)
        return taken

    taken = asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert sorted(number for numbers in taken for number in numbers) == list(range(1, 31))


def test_events_are_settled_by_hand(url: str, log: LogApi) -> None:
    async def main() -> list[tuple[int, int]]:
        seen = []
        async with member(url, auto_ack=False) as subscriber:
            Source(log).publish(TOPIC, 3, keys=1)
            async for event in subscriber:
                seen.append((event.version, event.attempt))
                if event.version == 2 and event.attempt == 1:
                    await subscriber.refuse(event, delay_s=0.0)
                    continue
                assert subscriber.acknowledge(event)
                if event.version == 3:
                    break
            assert subscriber.statistics().acknowledged == 3
        return seen

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [(1, 1), (2, 1), (2, 2), (3, 1)]


def test_closing_ends_an_iteration_that_waits(url: str, log: LogApi) -> None:
    async def main() -> list[GroupEvent]:
        async with member(url) as subscriber:
            waiting = asyncio.ensure_future(take(subscriber, 1))
            await asyncio.sleep(0)
        with pytest.raises(Closed):
            await subscriber.subscribe("$shared/other/#")
        return await waiting

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == []


def test_a_group_that_is_destroyed_ends_an_iteration(url: str, log: LogApi) -> None:
    async def main() -> None:
        async with member(url) as subscriber:
            waiting = asyncio.ensure_future(take(subscriber, 1))
            await asyncio.to_thread(groups.destroy, log, "billing")
            with pytest.raises(GroupDestroyed):
                await waiting

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_session_of_coroutines_has_groups_of_its_own_face(url: str) -> None:
    conf = fast_conf("memory://groups-aio")
    config.register(conf)
    conf.register_opts(durable_log.config.OPTIONS, group="log")
    conf.set_override("url", url, group="log")
    for name, value in CALM.items():
        conf.set_override(name, value, group=config.GROUP)

    async def main() -> list[int]:
        async with aio.open(conf=conf) as session:
            with pytest.raises(UsageError):  # it would count as handled what only waits in a buffer
                session.subscriber([SHARED])
            async with await subscribe(session, [SHARED]) as subscriber:
                await subscriber.wait_ready(timeout_s=PATIENCE_S)
                with contextlib.closing(durable_log.open(url)) as log:
                    Source(log).publish(TOPIC, 3)
                found = versions(await take(subscriber, 3))
                assert await subscriber.subscribe("$shared/other/tenant-8/#")
                assert await subscriber.unsubscribe("$shared/other/tenant-8/#")
                return found

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [1, 2, 3]


def test_a_session_joins_a_group_and_a_cancelled_get_takes_nothing_away(url: str, tmp_path: pathlib.Path) -> None:
    async def main() -> list[int]:
        async with (
            aio.open(f"memory://{tmp_path.name}", log=url) as session,
            await session.group("billing", "tenant-7/#", auto_ack=False) as one,
        ):
            await one.wait_ready(timeout_s=PATIENCE_S)
            waiting = asyncio.create_task(one.get())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await one.get(timeout_s=0.01) is None
            publisher = await session.publisher()
            for number in (1, 2, 3):
                publisher.send_event(pubsub_api.Event(topic=TOPIC, table="", key="k", action="set", version=number))
            seen: list[int] = []
            while len(seen) < 3:
                event = await one.get(timeout_s=PATIENCE_S)
                assert event is not None
                assert one.extend(event)
                if event.version == 2 and event.attempt == 1:
                    await one.refuse(event, delay_s=0.0)
                else:
                    assert one.acknowledge(event)
                    seen.append(event.version)
            assert one.statistics().acknowledged == 3
        return seen

    assert asyncio.run(asyncio.wait_for(main(), 120)) == [1, 2, 3]
