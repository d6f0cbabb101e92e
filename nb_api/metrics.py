"""Statistics of writers and local caches as Prometheus metrics.

`register` adds a collector that reads them when it is scraped; nothing is counted twice and nothing is added to the hot
path.  Needs the extra ``heliograph[metrics]``.  The session on the bus has metrics of its own, `pubsub_api.metrics`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from nb_api.api import NbApi
from nb_api.cache.local_cache import LocalCache
from pubsub_api.core.errors import DriverDependencyMissing

try:
    from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import REGISTRY, Collector
except ImportError as error:
    raise DriverDependencyMissing(
        "metrics need the package prometheus-client: pip install 'heliograph[metrics]'"
    ) from error

# What may go down.  Everything else only ever grows.
_GAUGES = frozenset({"objects", "tombstones", "position", "is_synced", "is_provisional", "untold", "subscriptions"})
_ELSEWHERE = frozenset({"bus"})


class NbCollector(Collector):
    """Reads the statistics of one `NbApi` or `LocalCache` at every scrape.  ``name`` tells it from others."""

    def __init__(self, source: NbApi | LocalCache, name: str) -> None:
        self._source = source
        self._name = name
        self._prefix = "heliograph_nb" if isinstance(source, NbApi) else "heliograph_local_cache"

    def collect(self) -> Iterable[Metric]:
        for path, value in _numbers(self._source.statistics(), self._prefix):
            is_gauge = path.rpartition(f"{self._prefix}_")[2] in _GAUGES
            kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
            family = kind(path, path, labels=["name"])
            family.add_metric([self._name], value)
            yield family


def _numbers(statistics: Any, prefix: str) -> Iterator[tuple[str, int]]:
    """The numbers in nested statistics, each with its name."""
    for field in dataclasses.fields(statistics):
        value = getattr(statistics, field.name)
        path = f"{prefix}_{field.name}"
        if dataclasses.is_dataclass(value) and field.name not in _ELSEWHERE:
            yield from _numbers(value, path)
        elif isinstance(value, int):
            yield path, int(value)


def register(source: NbApi | LocalCache, *, name: str = "", registry: CollectorRegistry = REGISTRY) -> NbCollector:
    """Let ``registry`` expose the statistics.  Unregister the collector it returns before closing the source.

    One writer and one cache per registry: Prometheus has one collector for each metric.
    """
    collector = NbCollector(source, name)
    registry.register(collector)
    return collector
