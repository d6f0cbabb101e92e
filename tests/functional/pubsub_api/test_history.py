"""History on the subscriber itself: where it comes from, in which order it is delivered, and what is said about it."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import pubsub_api
from durability_service.service import DurabilityService
from pubsub_api import Durability, HistoryOutcome, Mismatch, Reason, aio
from pubsub_api.errors import Closed, DriverNotFound, UsageError
from pubsub_api.testing.fast_conf import fast_conf
from tests.helpers.durability_domain import TIMEOUT_S, Domain, durability_conf
from tests.helpers.waiting import wait_until


@pytest.fixture
def local(tmp_path: pathlib.Path) -> Iterator[Domain]:
    made = Domain(f"memory://{tmp_path.name}", tmp_path, is_bind_based=False)
    yield made
    made.close()


def event(key: str, value: Any, *, topic: str = "orders/eu") -> pubsub_api.Event:
    return pubsub_api.Event(topic=topic, table="order", key=key, action="set", value=value)


def keep(domain: Domain, publisher: pubsub_api.Publisher, *events: pubsub_api.Event) -> None:
    """Publish, and wait until services have it."""
    publisher.send_events(list(events))
    publisher.confirm(caches=len(domain.services), timeout_s=TIMEOUT_S, addresses=domain.addresses)


def open_session(domain: Domain, **options: Any) -> pubsub_api.Session:
    conf = durability_conf(domain.url)
    for name, value in options.items():
        conf.set_override(name, value, group="durability")
    return pubsub_api.open(conf=conf)


def test_the_installed_source_is_used_when_durability_is_asked_for(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a")
    local.wait_complete()
    keep(local, publisher, event("k1", 1), event("k2", 2))
    seen: list[pubsub_api.Event] = []
    with open_session(local) as session:
        with session.subscriber(["orders/#"], seen.append, past=Durability.PERSISTENT) as subscriber:
            assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
            assert sorted(one.key for one in seen) == ["k1", "k2"]
            publisher.send_event(event("k1", "live"))
            wait_until(lambda: seen and seen[-1].value == "live", TIMEOUT_S, "the live event")
            assert subscriber.statistics().history.events == 2
            assert subscriber.durability_mismatches() == []
        with pytest.raises(Closed):
            subscriber.wait_for_historical_data(0)
    assert len(seen) == 3
    publisher.close()


def test_without_durability_there_is_no_history_and_no_wait(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a")
    local.wait_complete()
    keep(local, publisher, event("k1", 1))
    seen: list[pubsub_api.Event] = []
    with local.session.subscriber(["orders/#"], seen.append) as subscriber:
        assert subscriber.wait_for_historical_data(0) is HistoryOutcome.COMPLETE
        subscriber.wait_ready(timeout_s=TIMEOUT_S)
        publisher.send_event(event("k2", 2))
        wait_until(lambda: seen, TIMEOUT_S, "the live event")
    assert [one.key for one in seen] == ["k2"]
    publisher.close()


def test_history_comes_first_for_who_iterates(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a", depths=["orders/#=3"])
    local.wait_complete()
    keep(local, publisher, *(event("k", number) for number in range(5)))
    with local.reader(["orders/#"]) as subscriber:
        assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        publisher.send_event(event("k", 5))
        values = [one.value for one in itertools.islice(subscriber, 4)]
    assert values == [2, 3, 4, 5]
    publisher.close()


def test_a_history_of_many_pages_comes_whole(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a")
    local.wait_complete()
    keep(local, publisher, *(event(f"k{number}", [number, "x" * 1000]) for number in range(3000)))
    seen: list[pubsub_api.Event] = []
    with local.reader(["orders/#"], seen) as subscriber:
        assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
    assert sorted(one.value[0] for one in seen) == list(range(3000))
    publisher.close()


def test_history_of_a_filter_that_is_added_follows(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a")
    local.wait_complete()
    keep(local, publisher, event("k1", 1), event("k2", 2, topic="ports/x"))
    seen: list[pubsub_api.Event] = []
    with local.reader(["orders/#"], seen) as subscriber:
        assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        assert [one.key for one in seen] == ["k1"]
        subscriber.subscribe("ports/#")
        wait_until(lambda: [one.key for one in seen] == ["k1", "k2"], TIMEOUT_S, "history of the new filter")
    publisher.close()


@pytest.mark.parametrize("raised", [ValueError, SystemExit, asyncio.CancelledError])
def test_a_callback_that_raises_on_history_is_counted_and_the_rest_is_delivered(
    local: Domain, raised: type[BaseException]
) -> None:
    publisher = local.publisher()
    local.start("a")
    local.wait_complete()
    keep(local, publisher, event("k1", 1))
    seen: list[str] = []

    def on_event(one: pubsub_api.Event) -> None:
        seen.append(one.key)
        if one.key == "k1":
            raise raised("no")

    with (
        open_session(local) as session,
        session.subscriber(["orders/#"], on_event, past=Durability.TRANSIENT) as subscriber,
    ):
        assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        assert subscriber.statistics().history.errors == 1
        publisher.send_event(event("k2", 2))
        wait_until(lambda: seen == ["k1", "k2"], TIMEOUT_S, "the live event")
    publisher.close()


def test_a_service_that_comes_later_is_read_then(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a")
    local.wait_complete()
    keep(local, publisher, event("k1", 1))
    local.stop("a")
    seen: list[pubsub_api.Event] = []
    with (
        open_session(local, no_service_time=0.5) as session,
        local.reader(["orders/#"], seen, session=session) as subscriber,
    ):
        assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.NO_SERVICE
        local.start("a")
        wait_until(lambda: [one.key for one in seen] == ["k1"], TIMEOUT_S, "history")
        wait_until(
            lambda: subscriber.wait_for_historical_data(0) is HistoryOutcome.COMPLETE, TIMEOUT_S, "the better outcome"
        )
    publisher.close()


def test_closing_does_not_wait_for_history(local: Domain) -> None:
    closed: list[bool] = []
    with local.reader(["orders/#"], []) as subscriber:
        thread = threading.Thread(target=lambda: closed.append(subscriber.close() is None))
        thread.start()
        thread.join(TIMEOUT_S)
    assert closed == [True]


def test_a_callback_may_close_the_subscriber_while_history_is_delivered(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a")
    local.wait_complete()
    keep(local, publisher, event("k1", 1))
    closed = threading.Event()
    subscribers: list[pubsub_api.Subscriber] = []
    made = threading.Event()

    def on_event(_one: pubsub_api.Event) -> None:
        made.wait(TIMEOUT_S)
        subscribers[0].close()
        closed.set()

    with open_session(local) as session:
        subscribers.append(session.subscriber(["orders/#"], on_event, past=Durability.TRANSIENT))
        made.set()
        assert closed.wait(TIMEOUT_S)
    publisher.close()


# -- kinds


def test_kinds_of_the_configuration_decide_where_history_comes_from(local: Domain) -> None:
    kinds = ["local/#=TRANSIENT_LOCAL", "fleeting/#=VOLATILE"]
    publisher = local.publisher()
    local.start("a", kinds=kinds)
    local.wait_complete()
    publisher.send_events([event("k1", 1, topic="local/x"), event("k2", 2), event("k3", 3, topic="fleeting/x")])
    publisher.flush(timeout_s=TIMEOUT_S)
    local.wait_complete(samples=1)
    for topics, expected in ((["local/#"], ["k1"]), (["orders/#"], ["k2"]), (["fleeting/#"], [])):
        seen: list[pubsub_api.Event] = []
        with (
            open_session(local, kinds=kinds) as session,
            session.subscriber(topics, seen.append, past=Durability.PERSISTENT) as subscriber,
        ):
            assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
            wait_until(lambda: [one.key for one in seen] == expected, TIMEOUT_S, "history")  # noqa: B023
    publisher.close()


def test_who_asks_for_more_than_is_kept_is_told_and_gets_what_there_is(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a", store=False, kinds=["orders/eu=VOLATILE"])  # no disk: nothing is PERSISTENT
    local.wait_complete()
    publisher.send_events([event("k1", 1), event("k2", 2, topic="orders/us")])
    local.wait_complete(samples=1)
    seen: list[pubsub_api.Event] = []
    with local.reader(["orders/#"], seen, kind=Durability.PERSISTENT) as subscriber:
        assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        assert subscriber.durability_mismatches() == [
            Mismatch("orders/eu", Durability.PERSISTENT, Durability.VOLATILE),
            Mismatch("orders/#", Durability.PERSISTENT, Durability.TRANSIENT),
        ]
        assert "orders/eu: PERSISTENT is asked for" in str(subscriber.durability_mismatches()[0])
    assert [one.key for one in seen] == ["k2"]
    with local.reader(["orders/us"], seen, kind=Durability.TRANSIENT) as subscriber:
        assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        assert subscriber.durability_mismatches() == []
    publisher.close()


# -- sides of a split


@pytest.fixture
def sides(tmp_path: pathlib.Path) -> Iterator[Callable[..., Sides]]:
    made: list[Sides] = []

    def make(**policy: Any) -> Sides:
        made.append(Sides(tmp_path, policy))
        return made[0]

    yield make
    for one in made:
        one.close()


class Sides:
    """Two services that do not know of each other, each with a publisher of its own."""

    def __init__(self, directory: pathlib.Path, policy: dict[str, Any]) -> None:
        self.services: dict[str, DurabilityService] = {}
        self.publishers: dict[str, pubsub_api.Publisher] = {}
        self.session = pubsub_api.open(conf=durability_conf("zmq://127.0.0.1:0"))
        for node in ("a", "b"):
            self.publishers[node] = pubsub_api.open(conf=fast_conf("zmq://127.0.0.1:0")).publisher(name=node)
            conf = durability_conf("zmq://127.0.0.1:0", node=node, store=str(directory / f"{node}.db"))
            for name, value in policy.items():
                conf.set_override(name, value, group="durability_policy:default")
            self.services[node] = DurabilityService(conf, publishers=[self.publishers[node].address], peers=[])

    def keep(self, node: str, *events: pubsub_api.Event) -> None:
        self.publishers[node].send_events(list(events))
        self.publishers[node].confirm(timeout_s=TIMEOUT_S, addresses=[self.services[node].address])

    def meet(self) -> None:
        for node, other in (("a", "b"), ("b", "a")):
            self.services[node].listen_to(peer=self.services[other].address)

    def reader(
        self, node: str, seen: list[pubsub_api.Event], on_resync: Callable[[pubsub_api.Resync], None] | None = None
    ) -> pubsub_api.Subscriber:
        """On one side only."""
        self.session.conf.set_override("fellows", [self.services[node].address], group="durability")
        return self.session.subscriber(
            ["orders/#"], seen.append, on_resync=on_resync, past=Durability.PERSISTENT,
            addresses=[self.publishers[node].address],
        )  # fmt: skip

    def close(self) -> None:
        self.session.close()
        for node, service in self.services.items():
            service.close()
            self.publishers[node].close()


def test_what_a_merge_brings_is_delivered_to_readers_that_are_there(sides: Callable[..., Sides]) -> None:
    both = sides()
    both.keep("a", event("k1", "a"), event("k2", "a"))
    both.keep("b", event("k2", "b"), event("k3", "b"))
    seen: dict[str, list[pubsub_api.Event]] = {"a": [], "b": []}
    with both.reader("a", seen["a"]) as left, both.reader("b", seen["b"]) as right:
        for subscriber in (left, right):
            assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        both.meet()
        for node in ("a", "b"):
            wait_until(
                lambda node=node: {one.key: one.value for one in seen[node]} == {"k1": "a", "k2": "b", "k3": "b"},  # type: ignore[misc]
                TIMEOUT_S,
                "what the other side had",
            )
    assert [one.value for one in seen["a"] if one.key == "k2"] == ["a", "b"]
    assert [one.value for one in seen["b"] if one.key == "k2"] == ["b"]


def test_readers_of_the_side_that_gives_way_are_told_and_get_what_is_kept_now(sides: Callable[..., Sides]) -> None:
    both = sides(merge=["@same:CATCHUP"])
    both.keep("b", event("k2", "b"), event("k3", "b"))
    both.keep("a", event("k1", "a"), event("k2", "a"))
    seen: list[pubsub_api.Event] = []
    told: list[pubsub_api.Resync] = []
    with both.reader("a", seen, told.append) as subscriber:
        assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        seen.clear()
        both.meet()  # equal priorities, so b, the higher name, leads, and a takes over what b has
        wait_until(
            lambda: any(Reason.HISTORY_REPLACED in one.reasons for one in told), TIMEOUT_S, "the reader to be told"
        )
        wait_until(lambda: {one.key: one.value for one in seen} == {"k2": "b", "k3": "b"}, TIMEOUT_S, "b's set")


# -- asyncio, and what is refused


def test_the_asyncio_face_has_history_too(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a")
    local.wait_complete()
    keep(local, publisher, event("k1", 1))

    async def read() -> list[pubsub_api.Event | pubsub_api.Resync]:
        found: list[pubsub_api.Event | pubsub_api.Resync] = []
        async with (
            aio.open(conf=durability_conf(local.url)) as session,
            session.subscriber(["orders/#"], past=Durability.PERSISTENT) as subscriber,
        ):
            assert await subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
            assert subscriber.durability_mismatches() == []
            publisher.send_event(event("k2", 2))
            async for item in subscriber:
                found.append(item)
                if isinstance(item, pubsub_api.Event) and item.key == "k2":
                    break
        return found

    found = asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))
    assert [item.key for item in found if isinstance(item, pubsub_api.Event)] == ["k1", "k2"]
    publisher.close()


def test_frames_have_no_history(local: Domain) -> None:
    def on_frames(_deliveries: Sequence[Any]) -> None: ...

    with pytest.raises(UsageError, match="groups and kept history have none"):
        local.session.frames(["a"], on_frames, past=Durability.TRANSIENT)  # type: ignore[arg-type]


def test_a_source_that_is_not_installed_is_named(local: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pubsub_api.subscribing.history.SOURCE", "nowhere")
    with (
        pubsub_api.open(conf=fast_conf(local.url)) as session,
        pytest.raises(DriverNotFound, match="no history source .* 'nowhere'"),
    ):
        session.subscriber(["a"], print, past=Durability.TRANSIENT)
