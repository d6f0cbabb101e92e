"""Statistics as metrics of `prometheus_client`.

After `register(session)` a registry exposes the statistics of the publishers, subscribers and caches of a session.
They are read at each scrape, so the hot path does no more work than before.  One collector per registry merges all
registered objects, because Prometheus accepts each metric name once.  Needs the extra ``heliograph[metrics]``; the
endpoint of `pubsub_api.reporting` exposes the same without it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

from pubsub_api.core.errors import DriverDependencyMissing
from pubsub_api.reporting.families import buckets
from pubsub_api.reporting.report import ProcessReport, ReportRegistration
from pubsub_api.runtime.durations import DurationHistogram
from pubsub_api.session import Session

try:
    from prometheus_client.core import (
        CollectorRegistry,
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import REGISTRY, Collector
except ImportError as error:
    raise DriverDependencyMissing(
        "metrics need the package prometheus-client: pip install 'heliograph[metrics]'"
    ) from error


_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily,
}  # fmt: skip


class ReportCollector(Collector):
    """Reads a `ProcessReport` at each scrape."""

    def __init__(self, report: ProcessReport) -> None:
        self.report = report

    def collect(self) -> Iterator[Metric]:
        for family in self.report.families():
            names = list(dict.fromkeys(name for sample in family.samples for name in sample.labels))
            metric = _FAMILIES[family.kind](family.name, family.help, labels=names)
            for sample in family.samples:
                values = [sample.labels.get(name, "") for name in names]
                if isinstance(sample.value, DurationHistogram):
                    metric.add_metric(values, buckets(sample.value), sample.value.sum_s)
                else:
                    metric.add_metric(values, sample.value)
            yield metric


_lock = threading.Lock()
_collectors: weakref.WeakKeyDictionary[CollectorRegistry, ReportCollector] = weakref.WeakKeyDictionary()


def report_of(registry: CollectorRegistry = REGISTRY) -> ProcessReport:
    """The report of this process that the registry exposes.  Made and registered by the first call."""
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = ReportCollector(ProcessReport())
            registry.register(collector)
            _collectors[registry] = collector
        return collector.report


def register(session: Session, registry: CollectorRegistry = REGISTRY, *, name: str = "") -> ReportRegistration:
    """Expose the session's statistics in ``registry``, with ``name``, or a number, as the label ``session``.

    It ends when the result or the session is closed.
    """
    return report_of(registry).add_session(session, name=name)
