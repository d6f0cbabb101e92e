"""Services in processes of their own, killed at any time: what was confirmed is never lost, and sets become equal."""

from __future__ import annotations

import contextlib
import pathlib
import random

import pytest

import pubsub_api
from durability_service.storage.store import SampleStore
from pubsub_api.testing.fast_conf import fast_conf
from tests.functional.conftest import Bus
from tests.helpers.durability_domain import TIMEOUT_S, ServiceProcess, durability_conf, is_settled, read_history
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until

ROUNDS = 2
EVENTS = 30


class Cluster:
    """Two services and a publisher, with the addresses that a bind-based driver needs."""

    def __init__(self, bus: Bus, directory: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.bus = bus
        self.directory = directory
        self.stack = stack
        self.services: dict[str, ServiceProcess] = {}
        self._urls: dict[str, str] = {}
        self.publisher = stack.enter_context(pubsub_api.open(conf=fast_conf(bus.url))).publisher(name="source")

    @property
    def addresses(self) -> list[str] | None:
        return [one.address for one in self.services.values()] if self.bus.is_bind_based else None

    def start(self, node: str) -> None:
        is_bind_based = self.bus.is_bind_based
        started = ServiceProcess(
            self._url(node),
            node,
            self.directory / f"{node}.db",
            publishers=[self.publisher.address] if is_bind_based else None,
            peers=[one.address for one in self.services.values()] if is_bind_based else None,
        )
        self.stack.enter_context(started)
        for other in self.services.values():
            if is_bind_based:
                other.listen_to(peer=started.address)
        self.services[node] = started

    def _url(self, node: str) -> str:
        """Where a service binds an address, it is the same in every life, so that everybody finds it again."""
        if not self.bus.is_bind_based:
            return self.bus.url
        return self._urls.setdefault(node, f"{self.bus.driver}://127.0.0.1:{free_port()}")

    def kill(self, node: str) -> None:
        self.services.pop(node).kill()

    def wait_settled(self) -> None:
        wait_until(
            lambda: is_settled([one.status() for one in self.services.values()]), TIMEOUT_S, "the services to agree"
        )

    def history(self) -> dict[str, object]:
        with pubsub_api.open(conf=durability_conf(self.bus.url)) as session:
            return read_history(session, self.addresses, ["orders/#"])


@pytest.mark.parametrize("process_bus", ["zmq", pytest.param("redis", marks=pytest.mark.chaos)], indirect=True)
@pytest.mark.parametrize("seed", [1])
def test_confirmed_data_survives_any_kill(process_bus: Bus, tmp_path: pathlib.Path, seed: int) -> None:
    chance = random.Random(seed)
    expected: dict[str, object] = {}
    with contextlib.ExitStack() as stack:
        cluster = Cluster(process_bus, tmp_path, stack)
        cluster.start("a")
        cluster.start("b")
        cluster.wait_settled()
        for round_number in range(ROUNDS):
            for number in range(EVENTS):
                key, value = f"k{chance.randrange(EVENTS)}", [round_number, number]
                cluster.publisher.send_event(
                    pubsub_api.Event(topic="orders/eu", table="order", key=key, action="set", value=value)
                )
                expected[key] = value
            cluster.publisher.confirm(caches=1, timeout_s=TIMEOUT_S, addresses=cluster.addresses)
            victim = chance.choice(sorted(cluster.services))
            cluster.kill(victim)
            cluster.start(victim)
            cluster.wait_settled()
            assert cluster.history() == expected
        cluster.publisher.close()
        for node in ("a", "b"):  # everybody dies, and nobody who published is left
            cluster.kill(node)
        cluster.start("b")
        cluster.start("a")
        cluster.wait_settled()
        assert cluster.history() == expected


def kill_while_aligning(process_bus: Bus, directory: pathlib.Path, seed: int, *, samples: int, kills: int) -> None:
    """What is on disk of a service that is killed at any time is the whole set, or nothing, never a part of it."""
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        cluster = Cluster(process_bus, directory, stack)
        cluster.start("a")
        cluster.wait_settled()
        cluster.publisher.send_events(
            [
                pubsub_api.Event(topic="orders/eu", table="order", key=f"k{number}", action="set", value=number)
                for number in range(samples)
            ]
        )
        cluster.publisher.confirm(services=1, timeout_s=TIMEOUT_S, addresses=cluster.addresses)
        cluster.publisher.close()  # else who finds itself alone at first would read what it had sent, bit by bit
        whole = cluster.services["a"].status().name_spaces[0].samples
        assert whole == samples
        for _ in range(kills):
            cluster.start("b")
            for _ in range(chance.randrange(1, 60)):  # each is a moment, and does not disturb it much
                if cluster.services["b"].status().name_spaces[0].is_complete:
                    break
            cluster.kill("b")
            with SampleStore(directory / "b.db") as store:
                found = store.restored()
            # It may have found itself alone at first: then its set was empty, and what comes is added to that.
            fetched = [one for one in found.values() if one.marks.epoch.master != "b"]
            assert {sum(bucket.samples for bucket in one.buckets.values()) for one in fetched} <= {0, samples}
        cluster.start("b")
        cluster.wait_settled()
        cluster.kill("a")
        assert len(cluster.history()) == samples


@pytest.mark.parametrize("process_bus", ["zmq"], indirect=True)
def test_an_alignment_that_was_interrupted_is_never_used(process_bus: Bus, tmp_path: pathlib.Path) -> None:
    kill_while_aligning(process_bus, tmp_path, seed=1, samples=2_000, kills=2)
