"""Events that a service gave up, because whoever has them could not be reached, become durable after all."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

import pubsub_api
from durability_service.service import DurabilityService
from pubsub_api import loading
from pubsub_api.config import GROUP
from pubsub_api.core.frame import Kind
from pubsub_api.testing.fast_conf import fast_conf
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub
from tests.helpers.durability_domain import TIMEOUT_S, durability_conf, is_settled
from tests.helpers.waiting import wait_until

EVENTS = 5
CUT = (Kind.DATA, Kind.REPLY)
"""What is lost while the service is cut off; it goes on hearing that something exists."""


class Rig:
    """A service on a line of its own, and a publisher."""

    def __init__(self, url: str, store: pathlib.Path) -> None:
        self.faults = Faults()
        conf = durability_conf(url, node="a", store=str(store))
        conf.set_override("repair_timeout", 0.05, group=GROUP)
        conf.set_override("repair_attempts_max", 1, group=GROUP)
        self.service = DurabilityService(conf, driver=FaultyPubSub(loading.build_driver(conf), self.faults))
        self._session = pubsub_api.open(conf=fast_conf(url))
        self.publisher = self._session.publisher(name="p")
        wait_until(lambda: is_settled([self.service.status()]), TIMEOUT_S, "the service to be complete")
        self.publish("first")
        self.publisher.confirm(timeout_s=TIMEOUT_S)

    def publish(self, value: str) -> None:
        self.publisher.send_events(
            [
                pubsub_api.Event(topic="orders/eu", table="order", key=f"{value}{number}", action="set", value=value)
                for number in range(EVENTS)
            ]
        )
        self.publisher.flush(timeout_s=TIMEOUT_S)

    def counter(self, name: str) -> int:
        return self.service.status().counters[name]

    @property
    def samples(self) -> int:
        return self.service.status().name_spaces[0].samples

    def have_some_given_up(self) -> None:
        self.faults.set(drop=1.0, kinds=CUT)
        self.publish("missed")
        wait_until(lambda: self.counter("ranges_missing") > 0, TIMEOUT_S, "the service to give up")
        assert self.samples == EVENTS

    def close(self) -> None:
        self.service.close()
        self._session.close()


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr("durability_service.config.ASK_AGAIN_INTERVAL_S", request.param)
    made = Rig(f"memory://{tmp_path.name}", tmp_path / "a.db")
    yield made
    made.close()


@pytest.mark.parametrize("rig", [600.0], indirect=True)
def test_a_publisher_that_wants_to_be_sure_is_confirmed_what_was_given_up_before(rig: Rig) -> None:
    rig.have_some_given_up()
    rig.faults.heal()
    rig.publisher.confirm(timeout_s=TIMEOUT_S)
    assert rig.samples == 2 * EVENTS
    assert rig.counter("undecodable_frames") == 0


@pytest.mark.parametrize("rig", [0.1], indirect=True)
def test_what_was_given_up_is_asked_for_again_until_it_comes(rig: Rig) -> None:
    rig.have_some_given_up()
    rig.faults.heal()
    wait_until(lambda: rig.samples == 2 * EVENTS, TIMEOUT_S, "the events")
    wait_until(lambda: rig.counter("ranges_missing") == 0, TIMEOUT_S, "nothing to be missing")
    assert rig.counter("ranges_recovered") >= 1
    assert rig.counter("ranges_forgotten") == 0
