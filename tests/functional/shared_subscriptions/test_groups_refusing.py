"""What a program says of an event counts for that delivery of it, and what reaches no program goes back."""

from __future__ import annotations

import asyncio
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import pubsub_api
from pubsub_api import Event, GroupEvent, aio
from pubsub_api.errors import UsageError
from tests.helpers.waiting import WAIT_S, wait_until

FILTER, TOPIC = "jobs/#", "jobs/print"


@pytest.fixture
def open_arguments(tmp_path: pathlib.Path) -> dict[str, Any]:
    return {"url": f"memory://{tmp_path.name}", "log": f"sqlite://{tmp_path}/log.db?shards=1"}


def job(key: str, value: int = 1) -> Event:
    return Event(topic=TOPIC, table="job", key=key, action="set", value=value)


class Handler:
    """Refuses the first delivery of the key ``guilty``, and says no more of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.refuse: Callable[[GroupEvent], None]

    def on_event(self, event: GroupEvent) -> None:
        self.seen.append((event.key, event.value, event.attempt))
        if event.key == "guilty" and event.attempt == 1 and event.value == 1:
            self.refuse(event)

    def on_events(self, events: Sequence[GroupEvent]) -> None:
        for event in events:
            self.on_event(event)


@pytest.mark.parametrize("way", ["on_event", "on_events", "get"])
def test_a_refused_event_comes_again_although_others_are_acknowledged(open_arguments: dict[str, Any], way: str) -> None:
    handler = Handler()
    callback = {} if way == "get" else {way: getattr(handler, way)}
    with pubsub_api.open(**open_arguments) as session, session.group("work", FILTER, **callback) as member:
        handler.refuse = lambda event: member.refuse(event, delay_s=0)
        member.wait_ready(timeout_s=WAIT_S)
        publisher = session.publisher()
        for event in (job("a"), job("guilty", 1), job("guilty", 2), job("z")):
            publisher.send_event(event)
        wanted = {("a", 1, 1), ("guilty", 1, 1), ("guilty", 1, 2), ("z", 1, 1)}
        if way == "get":
            while not wanted <= set(handler.seen) or ("guilty", 2) not in [
                (key, value) for key, value, _ in handler.seen
            ]:
                got = member.get(timeout_s=WAIT_S)
                assert got is not None
                handler.on_event(got)
        wait_until(lambda: wanted <= set(handler.seen))
        wait_until(lambda: ("guilty", 2) in [(key, value) for key, value, _ in handler.seen])
        if way != "on_events":  # there the program has had both before it refused one
            guilty = [(value, attempt) for key, value, attempt in handler.seen if key == "guilty"]
            assert guilty == [(1, 1), (1, 2), (2, 1)]


def test_what_is_said_of_a_refused_delivery_does_not_count_for_the_next(open_arguments: dict[str, Any]) -> None:
    with (
        pubsub_api.open(**open_arguments) as session,
        session.group("work", FILTER, auto_ack=False) as member,
    ):
        member.wait_ready(timeout_s=WAIT_S)
        session.publisher().send_event(job("a"))
        first = member.get(timeout_s=WAIT_S)
        assert first is not None
        member.refuse(first, delay_s=0)
        second = member.get(timeout_s=WAIT_S)
        assert second is not None
        assert (first.attempt, second.attempt) == (1, 2)
        assert not member.acknowledge(first)
        assert not member.extend(first)
        member.refuse(first)
        assert member.acknowledge(second)


@pytest.mark.parametrize("delay_s", [float("nan"), float("inf"), -1.0])
def test_a_delay_that_is_none_is_refused(open_arguments: dict[str, Any], delay_s: float) -> None:
    with (
        pubsub_api.open(**open_arguments) as session,
        session.group("work", FILTER, auto_ack=False) as member,
    ):
        member.wait_ready(timeout_s=WAIT_S)
        session.publisher().send_event(job("a"))
        event = member.get(timeout_s=WAIT_S)
        assert event is not None
        with pytest.raises(UsageError):
            member.refuse(event, delay_s=delay_s)
        assert member.acknowledge(event)


def test_a_second_thread_in_get_is_refused_and_takes_nothing_from_the_first(open_arguments: dict[str, Any]) -> None:
    got: list[GroupEvent | None] = []
    refused = threading.Event()
    with pubsub_api.open(**open_arguments) as session, session.group("work", FILTER) as member:
        member.wait_ready(timeout_s=WAIT_S)

        def get() -> None:
            try:
                got.append(member.get(timeout_s=WAIT_S))
            except UsageError:
                refused.set()

        threads = [threading.Thread(target=get) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert refused.wait(WAIT_S)
        session.publisher().send_event(job("a"))
        for thread in threads:
            thread.join()
        assert [event and event.key for event in got] == ["a"]
        session.publisher().send_event(job("b"))
        following = member.get(timeout_s=WAIT_S)
        assert following is not None
        assert (following.key, following.attempt) == ("b", 1)


def test_what_a_cancelled_iteration_would_have_got_comes_to_the_next(open_arguments: dict[str, Any]) -> None:
    """The program settles by itself, so nobody would have settled it."""

    async def main() -> None:
        async with (
            aio.open(**open_arguments) as session,
            await session.group("work", FILTER, auto_ack=False) as member,
        ):
            await member.wait_ready(timeout_s=WAIT_S)
            waiting = asyncio.ensure_future(anext(member.__aiter__()))
            done, _ = await asyncio.wait((waiting,), timeout=0.05)
            assert not done
            waiting.cancel()
            publisher = await session.publisher()
            publisher.send_event(job("a"))
            event = await member.get(timeout_s=WAIT_S)
            assert event is not None
            assert (event.key, event.attempt) == ("a", 1)
            assert member.acknowledge(event)

    asyncio.run(main())


def test_a_second_task_in_get_is_refused(open_arguments: dict[str, Any]) -> None:
    async def main() -> None:
        async with aio.open(**open_arguments) as session, await session.group("work", FILTER) as member:
            await member.wait_ready(timeout_s=WAIT_S)
            first = asyncio.create_task(member.get(timeout_s=WAIT_S))
            await asyncio.sleep(0)
            with pytest.raises(UsageError):
                await member.get(timeout_s=WAIT_S)
            (await session.publisher()).send_event(job("a"))
            event = await first
            assert event is not None
            assert event.key == "a"

    asyncio.run(main())
