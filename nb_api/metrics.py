"""Statistics of writers, local caches and controllers as metrics of `prometheus_client`.

They are read when the registry is scraped; nothing is counted twice and nothing is added to the hot path.  Any number
of them may be registered.  Needs the extra ``heliograph[metrics]``.  The session on the bus has metrics
of its own, `pubsub_api.metrics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nb_api.aio.api import AsyncNbApi
from nb_api.aio.cache import AsyncLocalCache
from nb_api.aio.controller import AsyncController
from nb_api.api import NbApi
from nb_api.cache.local_cache import LocalCache
from nb_api.controller.controller import Controller
from pubsub_api import metrics
from pubsub_api.reporting.report import ReportRegistration

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Source = NbApi | LocalCache | Controller | AsyncNbApi | AsyncLocalCache | AsyncController


def register(source: Source, *, name: str = "", registry: CollectorRegistry | None = None) -> ReportRegistration:
    """Let ``registry``, or the one of the process, expose the statistics, with the label ``name``.

    Close what is returned before the source.
    """
    if isinstance(source, Controller | AsyncController):
        role = "controller"
    else:
        role = "nb" if isinstance(source, NbApi | AsyncNbApi) else "local_cache"
    report = metrics.report_of() if registry is None else metrics.report_of(registry)
    return report.add(role, source.statistics, name=name)
