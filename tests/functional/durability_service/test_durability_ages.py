"""Real services that were idle, that come back with an old set, and that hear a publisher whose clock was ahead."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator

import pytest

import pubsub_api
from durability_service.service import DurabilityService
from pubsub_api.publishing import batching
from pubsub_api.publishing import publisher as publishing
from pubsub_api.testing.fast_conf import fast_conf
from tests.helpers.durability_domain import TIMEOUT_S, Domain, ServiceProcess, durability_conf, read_history
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until

AHEAD_NS = 300 * 10**9


@pytest.fixture
def domain(tmp_path: pathlib.Path) -> Iterator[Domain]:
    made = Domain(f"memory://{tmp_path.name}", tmp_path, is_bind_based=False)
    yield made
    made.close()


def warnings(service: DurabilityService) -> str:
    return "; ".join(service.status().name_spaces[0].warnings)


def publish(publisher: pubsub_api.Publisher, key: str) -> None:
    publisher.send_event(pubsub_api.Event(topic="orders/eu", table="order", key=key, action="set", value=key))
    publisher.flush(timeout_s=TIMEOUT_S)


def test_a_service_that_is_idle_goes_on_noting_that_it_is_there(domain: Domain) -> None:
    service = domain.start("a", cleanup_delay=1.0)
    domain.wait_complete()
    before = service.status().counters["transactions"]
    wait_until(lambda: service.status().counters["transactions"] >= before + 3, TIMEOUT_S, "it to be noted")


def test_an_old_set_says_its_age_and_waits_for_others_where_that_is_asked_for(domain: Domain) -> None:
    domain.start("a")
    domain.wait_complete()
    publisher = domain.publisher()
    publish(publisher, "k")
    publisher.confirm(services=1, timeout_s=TIMEOUT_S)
    publisher.close()
    domain.stop("a")
    stopped_at = time.monotonic()
    wait_until(lambda: time.monotonic() - stopped_at > 1.1, TIMEOUT_S, "the set to be old")
    waiting = domain.start("a", cleanup_delay=1.0, injection_peers_min=1)
    wait_until(lambda: "injection_peers_min" in warnings(waiting), TIMEOUT_S, "it to say what it waits for")
    assert not waiting.status().name_spaces[0].is_complete
    domain.stop("a")
    alone = domain.start("a", cleanup_delay=1.0)
    domain.wait_complete(samples=1)
    assert "s ago, longer than cleanup_delay, was injected" in warnings(alone)


def test_a_publisher_whose_clock_was_ahead_for_a_moment_is_kept_and_confirmed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pubsub_api.open(conf=fast_conf("zmq://127.0.0.1:0")) as session:
        publisher = session.publisher(name="p")
        url = f"zmq://127.0.0.1:{free_port()}"
        with ServiceProcess(url, "a", tmp_path / "a.db", publishers=[publisher.address], peers=[]) as service:
            with monkeypatch.context() as context:
                for module in (publishing, batching):
                    context.setattr(module, "time_ns", lambda: time.time_ns() + AHEAD_NS)
                publish(publisher, "k1")
            publish(publisher, "k2")
            publish(publisher, "k3")
            publisher.confirm(services=1, timeout_s=TIMEOUT_S, addresses=[service.address])
            status = service.status()
            assert any("ahead of our clock" in trouble for trouble in status.trouble)
            assert status.name_spaces[0].counters["from_the_future"] >= 3
            with pubsub_api.open(conf=durability_conf(url)) as reading:
                found = read_history(reading, [service.address], ["#"])
            assert found == {"k1": "k1", "k2": "k2", "k3": "k3"}
