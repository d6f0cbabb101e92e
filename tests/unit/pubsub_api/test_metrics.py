"""Statistics as Prometheus metrics: every number is exposed, under a name that says what it counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

import pubsub_api
from pubsub_api import metrics
from tests.functional.conftest import Consumer, event
from tests.helpers.waiting import wait_until


def test_the_statistics_of_a_session_are_exposed() -> None:
    registry = CollectorRegistry()
    consumer = Consumer()
    with pubsub_api.open("memory://metrics") as session:
        metrics.register(session, registry)
        publisher = session.publisher(name="api")
        subscriber = session.subscriber(["#"], consumer.on_event)
        session.cache(["#"])
        subscriber.wait_ready(timeout_s=20)
        publisher.send_events([event(1), event(2)])
        wait_until(lambda: len(consumer.events) == 2, 20, "the events")
        subscriber.on_frames([b"garbage"])
        text = generate_latest(registry).decode()
    assert 'heliograph_publisher_events_total{name="api",number="0",session="0"} 2.0' in text
    assert 'heliograph_subscriber_received_total{name="",number="1",session="0"} 2.0' in text
    assert 'heliograph_subscriber_bad_frames_total{kind="NotAFrame",name="",number="1",session="0"} 1.0' in text
    assert 'heliograph_subscriber_driver_total{kind="frames_dropped",name="",number="1",session="0"} 0.0' in text
    assert 'heliograph_publisher_driver_total{kind="queries_dropped",name="api",number="0",session="0"} 0.0' in text
    assert 'heliograph_publisher_handler_errors_total{name="api",number="0",session="0"} 0.0' in text
    assert "heliograph_cache_bytes{" in text
    assert "# TYPE heliograph_subscriber_lag gauge" in text
    # Nested statistics, whose names of metrics are older than the nesting.
    for name in ("gaps", "duplicates", "restarts", "historical", "history_reads"):
        assert f"# TYPE heliograph_subscriber_{name}_total counter" in text
    for name in ("streams", "publishers", "parked_bytes"):
        assert f"# TYPE heliograph_subscriber_{name} gauge" in text
