"""Writers, local caches and controllers as Prometheus sees them."""

from __future__ import annotations

import pathlib

import pytest

from nb_api import Controller, LocalCache
from tests.helpers.nb_tools import PATIENT_DB, memory_bus, open_nb, sqlite_url


def test_statistics_are_metrics(tmp_path: pathlib.Path) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from nb_api import metrics

    registry = prometheus.CollectorRegistry()
    calm = {"db": PATIENT_DB, "cache": {"verify_interval": 0.0}}  # nothing is done a second time
    with open_nb(sqlite_url(tmp_path), memory_bus(), **calm) as nb, LocalCache(nb) as cache:
        nb.create("port", "p1", 1, topic="t")
        nb.flush(timeout_s=30)
        cache.wait_synced(timeout_s=30)
        metrics.register(nb, name="writer", registry=registry)
        metrics.register(cache, name="copy", registry=registry)
        with Controller(cache, lambda _: None) as controller:
            controller.wait_idle(timeout_s=30)
            metrics.register(controller, name="flows", registry=registry)
            text = prometheus.generate_latest(registry).decode()
    for line in (
        'heliograph_nb_writes_total{name="writer",number="0"} 1.0',
        'heliograph_nb_handover_confirmed_total{name="writer",number="0"} 1.0',
        'heliograph_local_cache_objects{name="copy",number="1"} 1.0',
        'heliograph_local_cache_is_synced{name="copy",number="1"} 1.0',
        'heliograph_controller_runs_total{name="flows",number="2"} 1.0',
        'heliograph_controller_ready{name="flows",number="2"} 0.0',
        'heliograph_controller_oldest_running_s{name="flows",number="2"} 0.0',
        'heliograph_local_cache_syncs_slots_held_total{name="copy",number="1"} 1.0',
    ):
        assert line in text
    assert "heliograph_local_cache_bus" not in text
