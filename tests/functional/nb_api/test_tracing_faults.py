"""OpenTelemetry, or what a program has put into it, raises: that is counted, and hurts nothing that is traced."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import pubsub_api
from nb_api import Controller, LocalCache, Request
from nb_api import aio as nb_aio
from pubsub_api import reporting, tracing
from pubsub_api.core.frame import Kind
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.testing.fast_conf import fast_conf
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub
from tests.helpers.nb_tools import memory_bus, nb_conf, open_nb, sqlite_url
from tests.helpers.waiting import wait_until

PATIENCE_S = 60.0
sdk = pytest.importorskip("opentelemetry.sdk.trace")
sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
trace = pytest.importorskip("opentelemetry.trace")


class Faulty(sdk.SpanProcessor, sampling.Sampler):  # type: ignore[misc,name-defined]
    """Does nothing, but raises where it is told to, while it is armed."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.is_armed = False

    def _reach(self, place: str) -> None:
        if self.is_armed and place == self._place:
            raise ValueError(f"not {place}")

    def should_sample(self, *_: Any, **__: Any) -> Any:
        self._reach("sampled")
        return sampling.SamplingResult(sampling.Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "for tests"

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._reach("started")

    def on_end(self, span: Any) -> None:
        self._reach("ended")


@pytest.fixture(params=["sampled", "started", "ended"])
def faulty(request: pytest.FixtureRequest) -> Iterator[Faulty]:
    made = Faulty(request.param)
    provider = sdk.TracerProvider(sampler=made)
    provider.add_span_processor(made)
    tracing.enable(provider)
    yield made
    tracing.disable()


@pytest.fixture
def before() -> int:
    return tracing.failures()


def event(key: str, **fields: Any) -> pubsub_api.Event:
    return pubsub_api.Event(topic="t", table="port", key=key, action="set", **fields)


def test_events_are_sent_and_delivered(
    faulty: Faulty, before: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_log", RateLimitedLog(tracing.LOG))  # which has written no line in the last minute
    got: list[pubsub_api.Event] = []
    with pubsub_api.open(memory_bus()) as session:
        publisher = session.publisher()
        session.subscriber(["t"], got.append).wait_ready(timeout_s=PATIENCE_S)
        faulty.is_armed = True
        publisher.send_event(event("a"))
        publisher.send_events([event("b"), event("c")])
        wait_until(lambda: len(got) == 3, PATIENCE_S, "all events")
        with pytest.raises(pubsub_api.errors.InvalidTopic):
            publisher.send_event(pubsub_api.Event(topic="", table="port", key="a", action="set"))
    assert [one.key for one in got] == ["a", "b", "c"]
    assert tracing.failures() > before
    assert [one for one in caplog.records if one.name == "pubsub_api.tracing" and "ValueError: not" in one.getMessage()]
    assert not trace.get_current_span().get_span_context().is_valid, "no span is left current"


def test_events_with_a_context_are_delivered(faulty: Faulty, before: int) -> None:
    got: list[pubsub_api.Event] = []
    with pubsub_api.open(memory_bus()) as session:
        publisher = session.publisher()
        subscriber = session.subscriber(["t"], got.append)
        subscriber.wait_ready(timeout_s=PATIENCE_S)
        publisher.send_event(event("a"))
        wait_until(lambda: len(got) == 1, PATIENCE_S, "an event with a context")
        faulty.is_armed = True
        publisher.send_event(event("b", headers=got[0].headers))
        wait_until(lambda: len(got) == 2, PATIENCE_S, "an event")
        wait_until(lambda: tracing.failures() >= before + 2, PATIENCE_S, "one failure to publish, and one to deliver")
        assert subscriber.statistics().callback_errors == 0


def test_a_repair_is_made(faulty: Faulty, before: int) -> None:
    faults, bus = Faults(seed=1), memory_bus()
    got: list[pubsub_api.Event] = []
    with (
        pubsub_api.open(
            conf=fast_conf(bus, max_idle_time=60.0), wrap_driver=lambda one: FaultyPubSub(one, faults)
        ) as s,
        contextlib.ExitStack() as stack,
    ):
        subscriber = s.subscriber(["t"], got.append)
        subscriber.wait_ready(timeout_s=PATIENCE_S)
        tracing.disable()  # the publisher: its spans would count, too
        publisher = stack.enter_context(pubsub_api.open(bus)).publisher()
        publisher.send_event(event("a"))
        wait_until(lambda: len(got) == 1, PATIENCE_S, "the first event")
        faults.set(drop=1.0, kinds={Kind.DATA})
        publisher.send_event(event("b"))
        wait_until(lambda: faults.counts().dropped >= 1, PATIENCE_S, "the loss")
        faults.heal()
        faulty.is_armed = True
        publisher.send_event(event("c"))
        wait_until(lambda: len(got) == 3, PATIENCE_S, "all events")
        wait_until(lambda: tracing.failures() == before + 1, PATIENCE_S, "the span that could not be made")
        assert subscriber.statistics().receiver_errors == 0


def test_a_commit_reaches_the_controller_and_runs_once(faulty: Faulty, before: int, tmp_path: pathlib.Path) -> None:
    runs: list[str] = []

    def reconcile(request: Request) -> None:
        runs.append(request.key)

    with (
        open_nb(sqlite_url(tmp_path), memory_bus()) as nb,
        LocalCache(nb, topics=["t"]) as cache,
        Controller(cache, reconcile) as controller,
    ):
        controller.wait_idle(timeout_s=PATIENCE_S)
        faulty.is_armed = True
        version = nb.put("port", "p1", {"up": True}, topic="t")
        cache.wait_version("port", "p1", version, timeout_s=PATIENCE_S)
        controller.wait_idle(timeout_s=PATIENCE_S)
        assert runs == ["p1"]
        assert nb.statistics().handover.left == 0
    assert tracing.failures() > before


def test_a_coroutine_runs_once(faulty: Faulty, before: int, tmp_path: pathlib.Path) -> None:
    runs: list[str] = []

    async def reconcile(request: nb_aio.Request) -> None:
        runs.append(request.key)

    async def follow() -> None:
        async with (
            nb_aio.NbApi.open(sqlite_url(tmp_path), conf=nb_conf(memory_bus())) as nb,
            nb_aio.LocalCache(nb, topics=["t"]) as cache,
            nb_aio.Controller(cache, reconcile) as controller,
        ):
            await controller.wait_idle(timeout_s=PATIENCE_S)
            faulty.is_armed = True
            version = await nb.put("port", "p1", 1, topic="t")
            await cache.wait_version("port", "p1", version, timeout_s=PATIENCE_S)
            await controller.wait_idle(timeout_s=PATIENCE_S)

    asyncio.run(follow())
    assert runs == ["p1"]
    assert tracing.failures() > before


def test_failures_are_among_the_numbers_of_the_process(faulty: Faulty) -> None:
    with pubsub_api.open(memory_bus()) as session:
        publisher = session.publisher()
        faulty.is_armed = True
        publisher.send_event(event("a"))
    [own] = [one for one in reporting.ProcessReport().readings() if one.role == "process"]
    assert isinstance(own.statistics, dict)
    assert own.statistics["trace_failures"] == tracing.failures() > 0
