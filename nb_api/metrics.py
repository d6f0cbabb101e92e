"""Statistics of writers, local caches and controllers as Prometheus metrics.

`register` adds a collector that reads them when it is scraped; nothing is counted twice and nothing is added to the hot
path.  Needs the extra ``heliograph[metrics]``.  The session on the bus has metrics of its own, `pubsub_api.metrics`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from nb_api.api import NbApi
from nb_api.cache.local_cache import LocalCache
from nb_api.controller.aio import AsyncController
from nb_api.controller.controller import Controller
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
_CONTROLLER_GAUGES = frozenset({
    "has_begun", "ready", "running", "waiting", "unmapped", "oldest_ready_s", "oldest_running_s", "waited_max_s",
    "run_max_s",
})  # fmt: skip
_ELSEWHERE = frozenset({"bus"})

Source = NbApi | LocalCache | Controller | AsyncController


class NbCollector(Collector):
    """Reads the statistics of an `NbApi`, a `LocalCache` or a controller at every scrape.  ``name`` tells which."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._name = name
        self._gauges = _GAUGES
        if isinstance(source, Controller | AsyncController):
            self._prefix, self._gauges = "heliograph_controller", _CONTROLLER_GAUGES
        else:
            self._prefix = "heliograph_nb" if isinstance(source, NbApi) else "heliograph_local_cache"

    def collect(self) -> Iterable[Metric]:
        for path, value in _numbers(self._source.statistics(), self._prefix):
            is_gauge = path.rpartition(f"{self._prefix}_")[2] in self._gauges
            kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
            family = kind(path, path, labels=["name"])
            family.add_metric([self._name], value)
            yield family


def _numbers(statistics: Any, prefix: str) -> Iterator[tuple[str, float]]:
    """The numbers in nested statistics, each with its name."""
    for field in dataclasses.fields(statistics):
        value = getattr(statistics, field.name)
        path = f"{prefix}_{field.name}"
        if dataclasses.is_dataclass(value) and field.name not in _ELSEWHERE:
            yield from _numbers(value, path)
        elif isinstance(value, int | float):
            yield path, float(value)


def register(source: Source, *, name: str = "", registry: CollectorRegistry = REGISTRY) -> NbCollector:
    """Let ``registry`` expose the statistics.  Unregister the collector it returns before closing the source.

    One writer, one cache and one controller per registry: Prometheus has one collector for each metric.
    """
    collector = NbCollector(source, name)
    registry.register(collector)
    return collector
