"""Twenty services that start at once, on real drivers: one master, everybody complete, and the data moved once.

One driver is a sample; `./run chaos` has those that services of a site use.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

import pubsub_api
from durability_service import config
from tests.functional.conftest import Bus
from tests.helpers.durability_domain import TIMEOUT_S, Domain

SERVICES = 20
EVENTS = 400
CALM = {
    "expiry_time": 20.0,
    "initial_discovery_period": 30.0,
    "expected_peers": SERVICES - 1,
}
"""Twenty services in one process are slow to answer: discovery ends when all have, and the wait for requests, too."""


@pytest.fixture
def crowd(bus: Bus, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Domain]:
    monkeypatch.setattr(config, "COMBINE_INITIAL_S", 10.0)
    monkeypatch.setattr(config, "ALIGN_TIMEOUT_S", 20.0)
    monkeypatch.setattr(config, "RECONCILE_INTERVAL_S", 60.0)
    made = Domain(bus.url, tmp_path, is_bind_based=bus.is_bind_based)
    yield made
    made.close()


def keep_some(domain: Domain, node: str) -> None:
    """Leave a set in the store of a service that is gone again."""
    publisher = domain.publisher()
    domain.start(node)
    domain.wait_complete()
    publisher.send_events(
        [
            pubsub_api.Event(topic="orders/eu", table="order", key=f"k{number}", action="set", value="v" * 100)
            for number in range(EVENTS)
        ]
    )
    publisher.confirm(caches=1, timeout_s=TIMEOUT_S, addresses=domain.addresses)
    publisher.close()
    domain.publishers.clear()
    domain.stop(node)


@pytest.mark.parametrize(
    "bus", ["zmq", *(pytest.param(driver, marks=pytest.mark.chaos) for driver in ("zenoh", "redis"))], indirect=True
)
def test_twenty_services_that_start_at_once_get_one_master_and_one_stream_of_data(crowd: Domain) -> None:
    keep_some(crowd, "s07")
    for number in range(SERVICES):
        crowd.start(f"s{number:02}", store=number == 7, **CALM)
    crowd.wait_complete(samples=EVENTS)
    found = {node: service.status().name_spaces[0] for node, service in crowd.services.items()}
    assert {space.master for space in found.values()} == {"s07"}
    assert [node for node, space in found.items() if space.counters["injections"]] == ["s07"]
    sent = {node: space.counters["samples_sent"] for node, space in found.items()}
    assert sum(sent.values()) == sent["s07"] == EVENTS
    assert found["s07"].counters["requests_combined"] == SERVICES - 2
