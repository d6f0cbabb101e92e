"""Makes the spans of OpenTelemetry and connects them.  Imported only by `pubsub_api.tracing`.

The headers of an event have the context of the span in which the event was made, as the W3C defines it, if that trace
is sampled.  Receivers make spans only for such events.  A span has links to the contexts of all its events; if there is
only one context, the span is its child.  So the trace of a lone change goes from the commit to the controller, and a
batch belongs to no single trace.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from opentelemetry import context, trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pubsub_api import tracing
from pubsub_api.core.events import Event
from pubsub_api.core.headers import NO_HEADERS, write_headers
from pubsub_api.core.messages import Query
from pubsub_api.core.receiving.statistics import SubscriberCounters
from pubsub_api.runtime.shared_threads import run_soon
from pubsub_api.subscribing.decoding import decode
from pubsub_api.subscribing.items import Item

E = TypeVar("E", bound=Event)

LINKS_MAX = 64
"""Links of one span: half of what OpenTelemetry keeps by default."""
CAUSES_MAX = 10_000
"""Objects for which a controller remembers the events that caused its next run; the oldest are forgotten."""
_TRACEPARENT = "traceparent"
_SYSTEM = {"messaging.system": "heliograph"}
_W3C = TraceContextTextMapPropagator()


class Spans:
    """Makes the spans of a process.  Thread-safe."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer = trace.get_tracer("heliograph", tracer_provider=provider)
        self._causes: tuple[weakref.ref[Causes], ...] = ()
        """One for each controller.  Replaced and never changed: every callback reads it without a lock."""

    # -- sending

    @contextlib.contextmanager
    def commit(self, writes: int, headers: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
        """A span around a commit.  Yields the headers for the events of the commit."""
        attributes: dict[str, Any] = {"db.system.name": "heliograph", "db.operation.batch.size": writes}
        with _in_span(lambda: self._tracer.start_as_current_span("commit", None, SpanKind.CLIENT, attributes)):
            yield _with_current(headers)

    def trace_publisher(self, publisher: Any, *, has_batches: bool) -> None:
        """Make a publisher's calls spans.  Its methods are replaced: a publisher that is not traced has no cost.

        ``has_batches``: ``send_events`` does not call ``send_event`` for each event.
        """
        send_event, send_events = publisher.send_event, publisher.send_events

        def traced_event(event: Event, **options: Any) -> Any:
            with self._publish((event,)) as (traced,):
                return send_event(traced, **options)

        def traced_events(events: Iterable[Event], **options: Any) -> Any:
            if not has_batches or not events or not isinstance(events, list | tuple):
                return send_events(events, **options)  # it calls `traced_event` for each of them
            with self._publish(events) as traced:
                return send_events(traced, **options)

        vars(publisher).update(send_event=traced_event, send_events=traced_events)

    @contextlib.contextmanager
    def _publish(self, events: Sequence[Event]) -> Iterator[list[Event]]:
        """A span.  Yields the events with its context; an event that has a context keeps that one."""
        attributes: dict[str, Any] = {**_SYSTEM, "messaging.batch.message_count": len(events)}
        topic = getattr(events[0], "topic", None)
        if isinstance(topic, str) and all(getattr(event, "topic", None) == topic for event in events):
            attributes["messaging.destination.name"] = topic
        with self._span("publish", SpanKind.PRODUCER, contexts_of(events), attributes):
            new_headers = _with_current(NO_HEADERS)
            yield [_traced(event, new_headers) for event in events]

    # -- receiving

    def callbacks(
        self, on_event: Callable[[E], None] | None, on_events: Callable[[Sequence[E]], None] | None
    ) -> tuple[Callable[[E], None] | None, Callable[[Sequence[E]], None] | None]:
        """Callbacks that call the given ones, in a span if any of their events is traced."""

        def tell_one(event: E) -> None:
            assert on_event is not None
            with self._deliver((event,)):
                on_event(event)

        def tell_all(events: Sequence[E]) -> None:
            assert on_events is not None
            with self._deliver(events):
                on_events(events)

        return tell_one if on_event else None, tell_all if on_events else None

    @contextlib.contextmanager
    def _deliver(self, events: Sequence[Event]) -> Iterator[None]:
        contexts = contexts_of(events)
        if not contexts:
            yield
            return
        for reference in self._causes:
            if (causes := reference()) is not None:
                causes.note(events)
        attributes = {**_SYSTEM, "messaging.batch.message_count": len(events)}
        with self._span("deliver", SpanKind.CONSUMER, contexts, attributes):
            yield

    def repairs(self) -> RepairWatch:
        return RepairWatch(self._repaired)

    def _repaired(self, began_ns: int, ended_ns: int, items: Sequence[Item], lost: int) -> None:
        events = [event for item in items if isinstance(item, tuple) for event in decode(item)[0]]
        attributes: dict[str, Any] = {**_SYSTEM, "heliograph.lost": lost}
        links = [Link(one) for one in contexts_of(events)[:LINKS_MAX]]
        try:
            span = self._tracer.start_span(
                "repair", context.Context(), SpanKind.CLIENT, attributes, links, start_time=began_ns
            )
            if lost:
                span.set_status(Status(StatusCode.ERROR, "events were given up: a resync follows"))
            span.end(ended_ns)
        except Exception as error:  # noqa: BLE001  counted and logged
            tracing.note_failure(error)

    # -- controllers

    def reconcile(self, call: Callable[[Any], Any], name: str, owners: Any) -> Callable[[Any], Any]:
        """A function that calls that of a controller, in a span if a traced event caused the run.

        ``owners`` is the `nb_api.controller.core.owners.OwnerMap` of the controller.  Its methods are replaced, to pass
        causes from an object to the keys that run because of it.
        """
        run = self._runs_of(name, owners)

        def traced(request: Any) -> Any:
            with run(request):
                return call(request)

        return traced

    def reconcile_coroutine(self, call: Callable[[Any], Any], name: str, owners: Any) -> Callable[[Any], Any]:
        """The same for a coroutine function."""
        run = self._runs_of(name, owners)

        async def traced(request: Any) -> Any:
            with run(request):
                return await call(request)

        return traced

    def _runs_of(self, name: str, owners: Any) -> Callable[[Any], contextlib.AbstractContextManager[None]]:
        causes = Causes()
        self._causes = (*(one for one in self._causes if one() is not None), weakref.ref(causes))
        vars(owners).update(put=causes.passing_on(owners.put), remove=causes.passing_on(owners.remove))

        @contextlib.contextmanager
        def run(request: Any) -> Iterator[None]:
            contexts = causes.take(request.table, request.key)
            if not contexts:
                yield
                return
            attributes = {
                "heliograph.controller": name, "heliograph.table": request.table, "heliograph.key": request.key,
                "heliograph.attempt": request.attempt,
            }  # fmt: skip
            try:
                with self._span("reconcile", SpanKind.INTERNAL, contexts, attributes):
                    yield
            except BaseException:
                causes.put(request.table, request.key, contexts)  # the controller will run it again
                raise

        return run

    @contextlib.contextmanager
    def _span(
        self, name: str, kind: SpanKind, contexts: Sequence[SpanContext], attributes: dict[str, Any]
    ) -> Iterator[None]:
        """A span with links to the contexts; if there is only one, the span is its child."""
        parent = None
        if len(contexts) == 1:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(contexts[0]), context.Context())
        links = [Link(one) for one in contexts[:LINKS_MAX]]
        with _in_span(lambda: self._tracer.start_as_current_span(name, parent, kind, attributes, links)):
            yield


@contextlib.contextmanager
def _in_span(make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """The span that ``make`` returns, or none if OpenTelemetry raises.  What the block raises is raised."""
    span: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    try:
        made = make()
        made.__enter__()
        span = made
    except Exception as error:  # noqa: BLE001  counted and logged
        tracing.note_failure(error)
    try:
        yield
    except BaseException as error:
        _end(span, error)
        raise
    _end(span, None)


def _end(span: contextlib.AbstractContextManager[Any], raised: BaseException | None) -> None:
    try:
        span.__exit__(type(raised) if raised else None, raised, raised.__traceback__ if raised else None)
    except Exception as error:  # noqa: BLE001  counted and logged
        tracing.note_failure(error)


class Causes:
    """The contexts of the events that cause the next run of each key.

    Thread-safe without a lock, which a fork could leave held: when two threads change the same key, a link may be lost.
    """

    def __init__(self) -> None:
        self._contexts: OrderedDict[tuple[str, str], tuple[SpanContext, ...]] = OrderedDict()

    def note(self, events: Iterable[Event]) -> None:
        for event in events:
            if contexts := contexts_of((event,)):
                self.put(event.table, event.key, contexts)

    def passing_on(self, keys_of: Callable[..., Sequence[tuple[str, str]]]) -> Callable[..., Any]:
        """A function that calls ``keys_of``, which returns the keys that run because of an object, and passes the
        causes of the object to these keys."""

        def traced(table: str, key: str, *rest: Any) -> Sequence[tuple[str, str]]:
            keys = keys_of(table, key, *rest)
            if contexts := self.take(table, key):
                for one in keys:
                    self.put(*one, contexts)
            return keys

        return traced

    def take(self, table: str, key: str) -> Sequence[SpanContext]:
        return self._contexts.pop((table, key), ())

    def put(self, table: str, key: str, contexts: Iterable[SpanContext]) -> None:
        known = self._contexts.get((table, key), ())
        self._contexts[table, key] = (*known, *(one for one in contexts if one not in known))[:LINKS_MAX]
        if len(self._contexts) > CAUSES_MAX:
            with contextlib.suppress(KeyError):
                self._contexts.popitem(last=False)


class RepairWatch:
    """Notices when a subscriber asks caches for missing frames, and when they arrive or are given up.

    It reports the repair to ``report``: begin, end, items that were delivered, number of lost events.
    """

    def __init__(self, report: Callable[[int, int, Sequence[Item], int], None]) -> None:
        self._report = report
        self._began_ns = 0
        self._is_asking = False
        self._repaired = self._lost = 0

    def look(self, items: Sequence[Item], queries: Sequence[Query], counters: SubscriberCounters) -> None:
        """Call this after each call of the core, with its results.  Reports are made in another thread."""
        if not self._is_asking and any(query.wants and not query.confirm for query in queries):
            self._is_asking = True
            self._began_ns = time.time_ns()
        lost = counters.lost - self._lost
        if self._began_ns and (lost or counters.repair.closed_by_repair > self._repaired):
            self._is_asking = False
            run_soon(functools.partial(self._report, self._began_ns, time.time_ns(), items, lost))
        self._repaired, self._lost = counters.repair.closed_by_repair, counters.lost


def contexts_of(events: Iterable[Event]) -> list[SpanContext]:
    """The different contexts of sampled traces in the headers of events, in their order."""
    contexts: dict[str, SpanContext] = {}
    for event in events:
        headers = getattr(event, "headers", None) or NO_HEADERS
        text = headers.get(_TRACEPARENT) if isinstance(headers, Mapping) else None
        if text is not None and text not in contexts:
            found = trace.get_current_span(_W3C.extract(headers, context.Context())).get_span_context()
            if found.is_valid and found.trace_flags.sampled:
                contexts[text] = found
    return list(contexts.values())


def _traced(event: Event, new_headers: Mapping[str, str]) -> Event:
    """The event with the context of the current span; ``new_headers`` has it for events without headers.

    Anything that is no event is returned unchanged: the publisher refuses it.
    """
    if not new_headers or not isinstance(event, Event):
        return event
    headers = event.headers
    if headers is not NO_HEADERS and (not isinstance(headers, Mapping) or _TRACEPARENT in headers):
        return event
    traced = new_headers if headers is NO_HEADERS else _with_current(headers)
    return event if traced is headers else msgspec.structs.replace(event, headers=traced)


def _with_current(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Headers with the context of the current span; unchanged if the span is not sampled, or has no room there."""
    try:
        if not trace.get_current_span().get_span_context().trace_flags.sampled:
            return headers
        traced = dict(headers)
        _W3C.inject(traced)
    except Exception as error:  # noqa: BLE001  counted and logged
        tracing.note_failure(error)
        return headers
    try:
        write_headers(traced)
    except ValueError:  # the headers are full, or the program has made them wrongly, which the publisher refuses
        return headers
    return traced
