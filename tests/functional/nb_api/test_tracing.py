"""Traces: which spans there are, how they are connected, and that nothing is done while there are none."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import pubsub_api
from nb_api import Controller, LocalCache, Request
from nb_api import aio as nb_aio
from nb_api.errors import GiveUp
from pubsub_api import tracing
from pubsub_api.core.frame import Kind
from pubsub_api.errors import DriverDependencyMissing, UsageError
from pubsub_api.testing.fast_conf import fast_conf
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub
from tests.helpers.nb_tools import memory_bus, nb_conf, open_nb, sqlite_url
from tests.helpers.waiting import wait_until

PATIENCE_S = 60.0
sdk = pytest.importorskip("opentelemetry.sdk.trace")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")


class Traces:
    """The spans of this test."""

    def __init__(self) -> None:
        self.exporter = in_memory.InMemorySpanExporter()
        self.provider = self._provider(sampling.ALWAYS_ON)

    def _provider(self, sampler: Any) -> Any:
        provider = sdk.TracerProvider(sampler=sampler)
        provider.add_span_processor(export.SimpleSpanProcessor(self.exporter))
        return provider

    def sample_nothing(self) -> None:
        self.provider = self._provider(sampling.ALWAYS_OFF)
        tracing.enable(self.provider)

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[Any]:
        """One of the program."""
        with self.provider.get_tracer("test").start_as_current_span(name) as span:
            yield span

    def named(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def wait(self, name: str, count: int = 1) -> list[Any]:
        wait_until(lambda: len(self.named(name)) >= count, PATIENCE_S, f"{count} spans {name}")
        assert len(self.named(name)) == count
        return self.named(name)


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    tracing.enable(made.provider)
    yield made
    tracing.disable()


def ids(span: Any) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def links(span: Any) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def parent(span: Any) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def event(key: str, **fields: Any) -> pubsub_api.Event:
    return pubsub_api.Event(**{"topic": "t", "table": "port", "key": key, "action": "set", **fields})


def test_a_lone_event_is_one_trace_from_the_program_to_the_callback(traces: Traces) -> None:
    got: list[pubsub_api.Event] = []
    with pubsub_api.open(memory_bus()) as session:
        publisher = session.publisher()
        session.subscriber(["t"], got.append).wait_ready(timeout_s=PATIENCE_S)
        with traces.span("program") as program:
            publisher.send_event(event("a", headers={"mine": "1"}))
        [publish], [deliver] = traces.wait("publish"), traces.wait("deliver")
    assert parent(publish) == ids(program)
    assert (parent(deliver), links(deliver)) == (ids(publish), [ids(publish)])
    assert publish.attributes["messaging.destination.name"] == "t"
    assert sorted(got[0].headers) == ["mine", "traceparent"]


def test_a_batch_is_linked_to_all_its_events(traces: Traces) -> None:
    got: list[pubsub_api.Event] = []
    with pubsub_api.open(memory_bus()) as session:
        session.subscriber(["t"], on_events=got.extend).wait_ready(timeout_s=PATIENCE_S)
        publisher = session.publisher()
        publisher.send_events([event("a"), event("b")])
        publisher.send_events(iter([event("c"), event("d")]))
        publishes = traces.wait("publish", 3)
        wait_until(lambda: len(got) == 4, PATIENCE_S, "all events")
        old = [event(one.key, headers=one.headers) for one in got]
        publisher.send_events(old)
        wait_until(
            lambda: [ids(span) for span in publishes] in map(links, traces.named("deliver")), PATIENCE_S, "a batch"
        )
    assert publishes[0].attributes["messaging.batch.message_count"] == 2
    again = traces.named("publish")[-1]
    assert (parent(again), links(again)) == (None, [ids(span) for span in publishes])
    assert [one.headers for one in got[4:]] == [one.headers for one in got[:4]], "they keep their context"
    assert [parent(span) for span in traces.named("deliver") if len(span.links) == 3] == [None]


def test_what_is_not_sampled_has_neither_headers_nor_spans(traces: Traces) -> None:
    got: list[pubsub_api.Event] = []
    traces.sample_nothing()
    with pubsub_api.open(memory_bus()) as session:
        publisher = session.publisher()
        session.subscriber(["t"], got.append).wait_ready(timeout_s=PATIENCE_S)
        publisher.send_event(event("a"))
        wait_until(lambda: len(got) == 1, PATIENCE_S, "the event")
    assert got[0].headers == {}
    assert traces.exporter.get_finished_spans() == ()


@pytest.mark.parametrize("headers", [{str(number): "" for number in range(16)}, {"a": "x" * 1000}])
def test_an_event_without_room_for_the_context_is_sent_as_it_is(traces: Traces, headers: dict[str, str]) -> None:
    got: list[pubsub_api.Event] = []
    with pubsub_api.open(memory_bus()) as session:
        publisher = session.publisher()
        session.subscriber(["t"], got.append).wait_ready(timeout_s=PATIENCE_S)
        publisher.send_event(event("a", headers=headers))
        with pytest.raises(pubsub_api.errors.InvalidEvent):
            publisher.send_event("no event")
        with pytest.raises(pubsub_api.errors.InvalidTopic):
            publisher.send_event(event("a", topic=["t"]))
        with pytest.raises(pubsub_api.errors.InvalidEvent):
            publisher.send_events([event("a", headers=7)])
        wait_until(lambda: len(got) == 1, PATIENCE_S, "the event")
    assert got[0].headers == headers


def test_a_repair_is_a_span(traces: Traces) -> None:
    faults, bus = Faults(seed=1), memory_bus()
    got: list[pubsub_api.Event] = []
    with (
        pubsub_api.open(
            conf=fast_conf(bus, max_idle_time=60.0),
            wrap_driver=lambda driver: FaultyPubSub(driver, faults),
        ) as lossy,
        pubsub_api.open(bus) as session,
    ):
        publisher = session.publisher()
        lossy.subscriber(["t"], got.append).wait_ready(timeout_s=PATIENCE_S)
        publisher.send_event(event("a"))
        wait_until(lambda: len(got) == 1, PATIENCE_S, "the first event")
        faults.set(drop=1.0, kinds={Kind.DATA})
        publisher.send_event(event("b"))
        wait_until(lambda: faults.counts().dropped >= 1, PATIENCE_S, "the loss")
        faults.heal()
        publisher.send_event(event("c"))
        [repair] = traces.wait("repair")
        wait_until(lambda: len(got) == 3, PATIENCE_S, "all events")
    assert repair.attributes["heliograph.lost"] == 0
    assert ids(traces.named("publish")[1]) in links(repair)
    assert repair.start_time < repair.end_time


def test_the_trace_of_a_commit_reaches_the_controller(traces: Traces, tmp_path: pathlib.Path) -> None:
    failures = [ValueError("not yet")]

    def reconcile(request: Request) -> None:
        if request.object is not None and failures:
            raise failures.pop()

    with (
        open_nb(sqlite_url(tmp_path), memory_bus()) as nb,
        LocalCache(nb, topics=["t"]) as cache,
        Controller(cache, reconcile, name="ports") as controller,
    ):
        controller.wait_idle(timeout_s=PATIENCE_S)
        with traces.span("program") as program, nb.transaction(headers={"mine": "1"}) as txn:
            txn.put("port", "p1", {"up": True}, topic="t")
        first, second = traces.wait("reconcile", 2)
        [commit], [publish], [deliver] = traces.wait("commit"), traces.wait("publish"), traces.wait("deliver")
        controller.enqueue("port", "p1")
        controller.wait_idle(timeout_s=PATIENCE_S)
    assert parent(commit) == ids(program)
    for span in (publish, deliver, first, second):
        assert (parent(span), links(span)) == (ids(commit), [ids(commit)])
    assert [span.status.status_code.name for span in (first, second)] == ["ERROR", "UNSET"]
    assert [span.attributes["heliograph.attempt"] for span in (first, second)] == [1, 2]
    assert len(traces.named("reconcile")) == 2, "a run that no event asked for is none"


def test_a_run_that_a_dependent_object_asks_for_belongs_to_its_trace(traces: Traces, tmp_path: pathlib.Path) -> None:
    with (
        open_nb(sqlite_url(tmp_path), memory_bus()) as nb,
        LocalCache(nb, topics=["t"]) as cache,
        Controller(
            cache, lambda _: None, tables=["port"], owners={"host": lambda _: [("port", "p1"), ("port", "p2")]}
        ) as controller,
    ):
        controller.wait_idle(timeout_s=PATIENCE_S)
        nb.put("host", "h1", 1, topic="t")
        traces.wait("reconcile", 2)
        nb.delete("host", "h1")
        runs = traces.wait("reconcile", 4)
    keys = [span.attributes["heliograph.key"] for span in runs]
    assert sorted(keys[:2]) == sorted(keys[2:]) == ["p1", "p2"]
    made, deleted = traces.named("commit")
    assert [parent(span) for span in runs] == [ids(made)] * 2 + [ids(deleted)] * 2


def test_coroutines_are_traced_too(traces: Traces, tmp_path: pathlib.Path) -> None:
    async def reconcile(request: nb_aio.Request) -> None:
        if request.object is not None:
            raise GiveUp("enough")

    async def follow() -> Any:
        conf = nb_conf(memory_bus())
        async with (
            nb_aio.NbApi.open(sqlite_url(tmp_path), conf=conf) as nb,
            nb_aio.LocalCache(nb, topics=["t"]) as cache,
            nb_aio.Controller(cache, reconcile) as controller,
        ):
            await controller.wait_idle(timeout_s=PATIENCE_S)
            with traces.span("program") as program:
                await nb.put("port", "p1", 1, topic="t")
            await asyncio.to_thread(traces.wait, "reconcile")
            return program

    program = asyncio.run(follow())
    [commit], [reconciled] = traces.named("commit"), traces.named("reconcile")
    assert parent(commit) == ids(program)
    assert parent(reconciled) == ids(commit)


def test_headers_of_a_transaction_must_be_headers(tmp_path: pathlib.Path) -> None:
    with open_nb(sqlite_url(tmp_path)) as nb, pytest.raises(UsageError, match="a name has 1 to 64 bytes"):
        nb.transaction(headers={"": ""})


def test_nothing_is_replaced_while_there_are_no_traces() -> None:
    with pubsub_api.open(memory_bus()) as session:
        assert "send_event" not in vars(session.publisher())


def test_the_error_for_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pubsub_api.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(DriverDependencyMissing, match=r"pip install 'heliograph\[otel\]'"):
        tracing.enable()
    assert tracing.active is None
