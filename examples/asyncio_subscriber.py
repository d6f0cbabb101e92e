"""Receives events in a coroutine.  ``asyncio_subscriber.py [URL]``.

A resync is an item of the iteration, in its place between the events, so no second callback is needed.
"""

from __future__ import annotations

import asyncio
import sys

from pubsub_api import Event, Resync, aio

CHANGES = 5


async def publish(publisher: aio.AsyncPublisher) -> None:
    for version in range(1, CHANGES + 1):
        publisher.send_event(Event(topic="tenant-7/port", table="port", key="p1", action="set", version=version))
        await asyncio.sleep(0.01)
    await publisher.flush(timeout_s=60)


async def follow(subscriber: aio.AsyncSubscriber) -> None:
    async for item in subscriber:
        if isinstance(item, Resync):
            print(f"read {', '.join(item.topics)} again: {item.reason.value}")
        else:
            print(f"{item.topic}: {item.table}/{item.key} has version {item.version}")
            if item.version == CHANGES:
                return


async def main(url: str) -> None:
    async with aio.open(url) as session:
        publisher = await session.publisher(name="example")
        async with session.subscriber(["tenant-7/#"]) as subscriber:
            await subscriber.wait_ready(timeout_s=60)
            await asyncio.gather(publish(publisher), asyncio.wait_for(follow(subscriber), timeout=60))


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["zmq://127.0.0.1:8866"])))
