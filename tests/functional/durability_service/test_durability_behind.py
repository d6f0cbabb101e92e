"""Late joiners where one service lags behind the one that acknowledged: the publisher's link to it stalls."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

import pubsub_api
from durability_service import config
from durability_service.client import DurabilityClient
from durability_service.clients.history import DurableHistory
from durability_service.service import DurabilityService
from pubsub_api import Durability
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.testing.fast_conf import fast_conf
from tests.helpers.durability_domain import TIMEOUT_S, durability_conf, is_settled
from tests.helpers.waiting import wait_until
from tests.helpers.wires import Wire

URL = "zmq://127.0.0.1:0"


class Lagging:
    """Services a and b and a publisher; b hears the publisher over a wire."""

    def __init__(self, directory: pathlib.Path, wire: Wire, publisher: pubsub_api.Publisher, **options: Any) -> None:
        self.wire = wire
        self.publisher = publisher
        self.a, self.b = (
            DurabilityService(
                durability_conf(URL, node=node, store=str(directory / f"{node}.db"), **options),
                publishers=[address],
                peers=[],
            )
            for node, address in (("a", publisher.address), ("b", _over(wire, publisher.address)))
        )
        self.a.listen_to(peer=self.b.address)
        self.b.listen_to(peer=self.a.address)
        wait_until(lambda: is_settled([self.a.status(), self.b.status()]), TIMEOUT_S, "the services to agree")

    def publish(self, key: str) -> None:
        """Acknowledged by a."""
        self.publisher.send_event(pubsub_api.Event(topic="orders/eu", table="order", key=key, action="set", value=1))
        self.publisher.confirm(services=1, timeout_s=TIMEOUT_S, addresses=[self.a.address])

    def samples(self) -> tuple[int, int]:
        return self.a.status().name_spaces[0].samples, self.b.status().name_spaces[0].samples

    def close(self) -> None:
        self.wire.mend()
        self.a.close()
        self.b.close()


def _over(wire: Wire, address: str) -> str:
    return re.sub(r":\d+$", f":{wire.port}", address)


@pytest.fixture
def publisher() -> Iterator[pubsub_api.Publisher]:
    with pubsub_api.open(conf=fast_conf("zmq://127.0.0.1:0")) as session:
        yield session.publisher(name="p")


@pytest.fixture
def wire(publisher: pubsub_api.Publisher) -> Iterator[Wire]:
    with Wire(int(publisher.address.rpartition(":")[2])) as made:
        yield made


def test_a_late_joiner_gets_what_any_service_that_it_reaches_has_acknowledged(
    publisher: pubsub_api.Publisher, wire: Wire, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "RECONCILE_INTERVAL_S", 3600.0)
    # Neither may take the other one for gone, on a machine that stands still: it would look what the other one has.
    domain = Lagging(tmp_path, wire, publisher, expiry_time=30.0)
    domain.publish("k1")
    wait_until(lambda: domain.samples() == (1, 1), TIMEOUT_S, "both to have it")
    wire.cut(is_silent=True)
    domain.publish("k2")
    assert domain.samples() == (2, 1)
    with (
        pubsub_api.open(conf=durability_conf(URL)) as session,
        DurabilityClient(session, addresses=[domain.a.address, domain.b.address]) as client,
    ):
        for _ in range(8):  # whom it asks first is chance
            outcome, samples = client.history(["#"], timeout_s=TIMEOUT_S)
            assert outcome is HistoryOutcome.COMPLETE
            assert sorted(sample.key for sample in samples) == ["k1", "k2"]
    assert domain.samples() == (2, 1)
    domain.close()


def test_who_reached_only_the_one_behind_is_told_when_it_has_reconciled(
    publisher: pubsub_api.Publisher, wire: Wire, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "RECONCILE_INTERVAL_S", 1.0)
    domain = Lagging(tmp_path, wire, publisher)
    domain.publish("k1")
    wait_until(lambda: domain.samples() == (1, 1), TIMEOUT_S, "both to have it")
    wire.cut(is_silent=True)
    domain.publish("k2")
    seen: list[pubsub_api.Event] = []
    # A publisher is not missed for so long that the reader looks once more by itself.
    conf = durability_conf(URL, no_service_time=3.0)
    conf.set_override("missed_hellos_max", 1000, group="pubsub")
    with pubsub_api.open(conf=conf) as session:
        reader = session.subscriber(
            ["orders/#"],
            seen.append,
            past=DurableHistory(session, ["orders/#"], Durability.PERSISTENT, services=[domain.b.address]),
            addresses=[],
        )
        wait_until(  # after a service that answers too late on a loaded machine it goes on looking
            lambda: reader.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE,
            TIMEOUT_S,
            "history to be complete",
        )
        wait_until(lambda: sorted(event.key for event in seen) == ["k1", "k2"], TIMEOUT_S, "the reader to be told")
        reader.close()
    domain.close()
