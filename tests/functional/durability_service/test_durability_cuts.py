"""Services in processes of their own on a network that is cut: what was confirmed on either side survives, also when a
service is killed meanwhile, and what was deleted stays deleted."""

from __future__ import annotations

import contextlib
import pathlib
import random
import re

import pytest

import pubsub_api
from durability_service.client import DurabilityClient
from pubsub_api.errors import WaitTimeout
from pubsub_api.testing.fast_conf import fast_conf
from tests.functional.conftest import Bus
from tests.helpers.durability_domain import TIMEOUT_S, ServiceProcess, durability_conf, is_settled, read_history
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until
from tests.helpers.wires import Wire

EVENTS = 20
TRY_S = 2.0
"""How long somebody on the wrong side of a cut tries."""


class CutNetwork:
    """Two sides, each a service and a publisher; everything between the sides goes over wires."""

    def __init__(self, bus: Bus, directory: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.bus = bus
        self.directory = directory
        self.stack = stack
        self.wires: list[Wire] = []
        self._urls = {"b": self._wired(bus.url)} if not bus.is_bind_based else {}
        self.publishers = {side: self._publisher(side) for side in "ab"}
        self._ports = {side: free_port() for side in "ab"}
        self._far: dict[str, dict[str, str]] = {"a": {}, "b": {}}
        """Side -> how it reaches the service and the publisher of the other side."""
        if bus.is_bind_based:
            for side, other in (("a", "b"), ("b", "a")):
                publisher = self.publishers[other].address
                self._far[side] = {
                    "publisher": self._wired(publisher),
                    "peer": self._wired(_with_port(publisher, self._ports[other])),
                }
        self.services: dict[str, ServiceProcess] = {}
        self.expected: dict[str, object] = {}
        self._round = 0

    def _wired(self, address: str) -> str:
        """The same address, by way of a wire."""
        found = re.search(r":(\d+)", address)
        assert found is not None
        wire = self.stack.enter_context(Wire(int(found[1])))
        self.wires.append(wire)
        return _with_port(address, wire.port)

    def _publisher(self, side: str) -> pubsub_api.Publisher:
        session = self.stack.enter_context(pubsub_api.open(conf=fast_conf(self._urls.get(side, self.bus.url))))
        return session.publisher(name=side)

    def start(self, side: str) -> None:
        far = self._far[side]
        is_bind_based = self.bus.is_bind_based
        url = f"{self.bus.driver}://127.0.0.1:{self._ports[side]}" if is_bind_based else self.bus.url
        self.services[side] = self.stack.enter_context(
            ServiceProcess(
                self._urls.get(side, url),
                side,
                self.directory / f"{side}.db",
                publishers=[self.publishers[side].address, far["publisher"]] if is_bind_based else None,
                peers=[far["peer"]] if is_bind_based else None,
            )
        )

    def kill(self, side: str) -> None:
        self.services.pop(side).kill()

    def near(self, side: str) -> list[str] | None:
        """Where somebody on this side finds its service."""
        return [self.services[side].address] if self.bus.is_bind_based else None

    def publish(self, side: str, *, is_sure: bool) -> bool:
        """Publish, and have it confirmed by the service of this side.  False when that was not possible."""
        self._round += 1
        publisher = self.publishers[side]
        for number in range(EVENTS):
            key, value = f"{side}{number}", [self._round, number]
            publisher.send_event(
                pubsub_api.Event(topic=f"orders/{side}", table="order", key=key, action="set", value=value)
            )
            self.expected[key] = value
        return self.confirm(side, timeout_s=TIMEOUT_S if is_sure else TRY_S)

    def confirm(self, side: str, *, timeout_s: float) -> bool:
        try:
            self.publishers[side].confirm(services=1, timeout_s=timeout_s, addresses=self.near(side))
        except WaitTimeout:
            return False
        return True

    def cut(self, *, is_silent: bool) -> None:
        """Until both services have noticed."""
        for wire in self.wires:
            wire.cut(is_silent=is_silent)
        for side, service in self.services.items():
            wait_until(
                lambda service=service: not any(one.is_connected for one in service.status().peers),  # type: ignore[misc]
                TIMEOUT_S,
                f"{side} to be alone",
            )

    def mend(self) -> None:
        for wire in self.wires:
            wire.mend()

    def wait_settled(self) -> None:
        def is_joined() -> bool:
            found = [one.status() for one in self.services.values()]
            return is_settled(found) and all(any(peer.is_connected for peer in one.peers) for one in found)

        wait_until(is_joined, TIMEOUT_S, "the sides to be joined")

    def session(self, side: str) -> pubsub_api.Session:
        return pubsub_api.open(conf=durability_conf(self._urls.get(side, self.bus.url)))

    def delete(self, side: str, topic: str) -> None:
        with self.session(side) as session, DurabilityClient(session, addresses=self.near(side)) as client:
            client.delete_historical_data([topic], timeout_s=TIMEOUT_S)

    def history(self, side: str) -> dict[str, object]:
        """What the service of that side alone keeps."""
        with self.session(side) as session:
            return read_history(session, self.near(side), ["orders/#"])


def _with_port(address: str, port: int) -> str:
    return re.sub(r":\d+", f":{port}", address, count=1)


def survive_a_cut(process_bus: Bus, tmp_path: pathlib.Path, seed: int) -> None:
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        network = CutNetwork(process_bus, tmp_path, stack)
        network.start("a")
        network.start("b")
        network.wait_settled()
        for side in "ab":
            assert network.publish(side, is_sure=True)
        network.cut(is_silent=chance.random() < 0.5)
        # With a broker the side that is cut from it has nobody to confirm anything; and then nothing is confirmed.
        is_sure = {"a": True, "b": process_bus.is_bind_based}
        confirmed = {side: network.publish(side, is_sure=is_sure[side]) for side in "ab"}
        assert confirmed == is_sure
        victim = chance.choice("ab")
        network.kill(victim)
        network.start(victim)
        network.mend()
        network.wait_settled()
        for side in "ab":
            assert network.confirm(side, timeout_s=TIMEOUT_S)
        network.wait_settled()
        network.kill("a")  # what is left is what the other one has
        assert network.history("b") == network.expected


def delete_beyond_a_cut(process_bus: Bus, tmp_path: pathlib.Path) -> None:
    with contextlib.ExitStack() as stack:
        network = CutNetwork(process_bus, tmp_path, stack)
        network.start("a")
        network.start("b")
        network.wait_settled()
        for side in "ab":
            assert network.publish(side, is_sure=True)
        network.wait_settled()
        network.cut(is_silent=False)
        network.delete("a", "orders/b")
        network.kill("a")
        network.start("a")
        network.mend()
        network.wait_settled()
        kept = {key: value for key, value in network.expected.items() if key.startswith("a")}
        assert network.history("b") == network.history("a") == kept


# The chaos tests do both on every driver, many times.


@pytest.mark.parametrize("process_bus", [pytest.param("zmq", marks=pytest.mark.chaos), "redis"], indirect=True)
def test_what_was_confirmed_on_either_side_of_a_cut_survives(process_bus: Bus, tmp_path: pathlib.Path) -> None:
    survive_a_cut(process_bus, tmp_path, seed=1)


@pytest.mark.parametrize("process_bus", ["zmq"], indirect=True)
def test_history_that_was_deleted_on_one_side_of_a_cut_is_gone_on_the_other(
    process_bus: Bus, tmp_path: pathlib.Path
) -> None:
    delete_beyond_a_cut(process_bus, tmp_path)
