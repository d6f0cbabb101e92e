"""Shared subscriptions for coroutines: members of several groups.  One group is `pubsub_api.aio.AsyncSession.group`.

async with pubsub_api.aio.open(config_files=["etc/heliograph.conf"]) as session:
    async with await shared_subscriptions.aio.subscribe(session, ["$shared/billing/tenant-7/#"]) as subscriber:
        async for event in subscriber:
            ...
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pubsub_api import Session
from pubsub_api.aio import AsyncSession
from pubsub_api.runtime.coroutines import run_in_new_thread
from pubsub_api.subscribing.group_aio import AsyncGroupMember
from shared_subscriptions import scheme
from shared_subscriptions.consuming.statistics import GroupSubscriberStatistics
from shared_subscriptions.consuming.subscriber import GroupSubscriber

_THREAD = "heliograph-group-aio"


class AsyncGroupSubscriber(AsyncGroupMember):
    """`GroupSubscriber` for coroutines.  Made by `subscribe`."""

    def __init__(self, subscriber: GroupSubscriber) -> None:
        """Takes over the subscriber, which must have no callback."""
        super().__init__(subscriber)
        self._subscriber = subscriber

    @property
    def blocking(self) -> GroupSubscriber:
        """The subscriber behind this face."""
        return self._subscriber

    async def subscribe(self, topic_filter: str) -> bool:
        """As `GroupSubscriber.subscribe`."""
        return await run_in_new_thread(functools.partial(self._subscriber.subscribe, topic_filter), _THREAD)

    async def unsubscribe(self, topic_filter: str) -> bool:
        """As `GroupSubscriber.unsubscribe`."""
        return await run_in_new_thread(functools.partial(self._subscriber.unsubscribe, topic_filter), _THREAD)

    async def wait_streams(self, count: int = 1, *, timeout_s: float) -> None:
        """As `GroupSubscriber.wait_streams`."""
        wait = functools.partial(self._subscriber.wait_streams, count, timeout_s=timeout_s)
        await run_in_new_thread(wait, _THREAD)

    def statistics(self) -> GroupSubscriberStatistics:
        return self._subscriber.statistics()


async def subscribe(
    session: AsyncSession | Session, topics: Sequence[str], *, auto_ack: bool = True, member: str = ""
) -> AsyncGroupSubscriber:
    """As `shared_subscriptions.subscribe`, without callbacks; close it yourself."""
    blocking = session.blocking if isinstance(session, AsyncSession) else session
    join = functools.partial(scheme.subscribe, blocking, topics, auto_ack=auto_ack, member=member)
    return AsyncGroupSubscriber(await run_in_new_thread(join, _THREAD, undo=GroupSubscriber.close))
