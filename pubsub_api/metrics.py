"""Statistics as Prometheus metrics.

`register(session)` adds a collector that reads the statistics of a session's publishers, subscribers and caches when it
is scraped; nothing is counted twice and nothing is added to the hot path.  Needs the extra ``heliograph[metrics]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pubsub_api.core.errors import DriverDependencyMissing
from pubsub_api.session import Session

try:
    from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import REGISTRY, Collector
except ImportError as error:
    raise DriverDependencyMissing(
        "metrics need the package prometheus-client: pip install 'heliograph[metrics]'"
    ) from error

# What may go down.  Everything else only ever grows.
_GAUGES = frozenset(
    {
        "streams", "backlog_bytes", "cached_frames", "cached_bytes", "publishers", "links_up", "links_down", "lag",
        "queue_bytes", "parked_bytes", "bytes",
    }
)  # fmt: skip
_CACHE_GAUGES = _GAUGES | {"frames"}


class SessionCollector(Collector):
    """Reads a session's statistics at every scrape."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for role, number, statistics in self._session.statistics():
            labels = [str(number), getattr(statistics, "name", "")]
            gauges = _CACHE_GAUGES if role == "cache" else _GAUGES
            for field in dataclasses.fields(statistics):
                value = getattr(statistics, field.name)
                name = f"heliograph_{role}_{field.name}"
                if isinstance(value, dict):
                    self._add_by_kind(families, name, labels, value)
                elif isinstance(value, int):
                    self._add(families, name, labels, value, is_gauge=field.name in gauges)
        return families.values()

    @staticmethod
    def _add(families: dict[str, Metric], name: str, labels: list[str], value: int, *, is_gauge: bool) -> None:
        kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
        family = families.setdefault(name, kind(name, name, labels=["number", "name"]))
        assert isinstance(family, (GaugeMetricFamily, CounterMetricFamily))
        family.add_metric(labels, value)

    @staticmethod
    def _add_by_kind(families: dict[str, Metric], name: str, labels: list[str], values: dict[str, int]) -> None:
        family = families.setdefault(name, CounterMetricFamily(name, name, labels=["number", "name", "kind"]))
        assert isinstance(family, CounterMetricFamily)
        for kind, value in values.items():
            family.add_metric([*labels, kind], value)


def register(session: Session, registry: CollectorRegistry = REGISTRY) -> SessionCollector:
    """Let ``registry`` expose the session's statistics.  Unregister the collector it returns before closing."""
    collector = SessionCollector(session)
    registry.register(collector)
    return collector
