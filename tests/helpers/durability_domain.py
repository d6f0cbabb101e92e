"""Durability services for tests: in this process on any driver, or in processes of their own that can be killed."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

import pubsub_api
from durability_service import config
from durability_service.client import DurabilityClient
from durability_service.clients.history import DurableHistory
from durability_service.core.sets.batches import unpack
from durability_service.core.sets.samples import Sample
from durability_service.protocol import ServiceStatus
from durability_service.service import DurabilityService
from durability_service.storage.store import SampleStore
from pubsub_api.core.durability import Durability, HistoryOutcome
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.fast_conf import fast_conf
from tests.helpers.waiting import wait_until

TIMEOUT_S = 60.0
FAST = {
    "expiry_time": 6.0,
    "no_service_time": 30.0,
    "initial_discovery_period": 0.3,
    "admin_key": "only-for-tests-of-durability",
    "hot_bytes_max": 4096,
}
"""Options of ``[durability]``: nobody waits, a loaded machine does not look like a dead one, and sets on disk are
larger than memory."""
# Of every service of this process and of those that it starts, which import this module, too.
config.HEARTBEAT_FACTOR = 0.1
config.COMBINE_INITIAL_S = 0.02
config.ALIGN_TIMEOUT_S = 1.0
config.RECONCILE_INTERVAL_S = 0.5

HASTY = {"expiry_time": 3.0}
"""For services that are killed or cut off: the others must notice soon.  Nothing may depend on who was thought dead."""


def durability_conf(url: str, **options: Any) -> Any:
    conf = fast_conf(url)
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    for name, value in {**FAST, **options}.items():
        conf.set_override(name, value, group=config.GROUP)
    for name in options.get("name_spaces", ()):
        group = f"{config.NAME_SPACE_GROUP}:{name}"
        conf.register_opts(config.NAME_SPACE_OPTIONS, group=group)
        conf.set_override("topics", ["#"], group=group)
    config.register(conf)
    return conf


class Domain:
    """Services and publishers that know each other's addresses, on one driver."""

    def __init__(self, url: str, directory: pathlib.Path, *, is_bind_based: bool) -> None:
        self.url = url
        self.directory = directory
        self.is_bind_based = is_bind_based
        self.services: dict[str, DurabilityService] = {}
        self.publishers: list[str] = []
        self.session = pubsub_api.open(conf=durability_conf(url))

    def publisher(self) -> pubsub_api.Publisher:
        publisher = pubsub_api.open(conf=fast_conf(self.url)).publisher(name=f"p{len(self.publishers)}")
        self.publishers.append(publisher.address)
        for service in self.services.values():
            if self.is_bind_based:
                service.listen_to(publisher=publisher.address)
        return publisher

    def start(self, node: str, *, store: bool = True, **options: Any) -> DurabilityService:
        path = str(self.directory / f"{node}.db") if store else ""
        service = DurabilityService(
            durability_conf(self.url, node=node, store=path, **options),
            publishers=self.publishers if self.is_bind_based else None,
            peers=self.addresses,
        )
        for other in self.services.values():
            if self.is_bind_based:
                other.listen_to(peer=service.address)
        self.services[node] = service
        return service

    def stop(self, node: str) -> None:
        self.services.pop(node).close()

    @property
    def addresses(self) -> list[str] | None:
        return [service.address for service in self.services.values()] if self.is_bind_based else None

    def client(self) -> DurabilityClient:
        return DurabilityClient(self.session, addresses=self.addresses)

    def reader(
        self,
        topics: Sequence[str],
        seen: list[pubsub_api.Event] | None = None,
        *,
        kind: Durability = Durability.PERSISTENT,
        session: pubsub_api.Session | None = None,
        **options: Any,
    ) -> pubsub_api.Subscriber:
        """A subscriber that asks for history; without ``seen``, to be iterated over."""
        session = session or self.session
        return session.subscriber(
            topics,
            None if seen is None else seen.append,
            past=DurableHistory(session, topics, kind, services=self.addresses),
            addresses=self.publishers if self.is_bind_based else None,
            **options,
        )

    def wait_complete(self, *nodes: str, samples: int | None = None) -> None:
        """Until these services are complete, agree on a master and hold equal sets."""
        wait_until(
            lambda: is_settled([self.services[node].status() for node in nodes or self.services], samples),
            TIMEOUT_S,
            "the services to agree",
        )

    def close(self) -> None:
        for node in list(self.services):
            self.stop(node)
        self.session.close()


def is_settled(found: Sequence[ServiceStatus], samples: int | None = None) -> bool:
    """Whether every name-space is complete everywhere, with one master and one set."""
    spaces = [space for status in found for space in status.name_spaces]
    return (
        all(space.is_complete and space.is_agreed for space in spaces)
        and len({(space.name, space.master, space.digest) for space in spaces}) == len({one.name for one in spaces})
        and (samples is None or all(space.samples == samples for space in spaces))
    )


def read_history(session: pubsub_api.Session, services: Sequence[str] | None, topics: Sequence[str]) -> dict[str, Any]:
    """Key -> value of everything that services keep of these topics."""
    from durability_service.serving.sampling import event_of

    with DurabilityClient(session, addresses=services) as client:
        outcome, samples = client.history(topics, timeout_s=TIMEOUT_S)
    assert outcome is HistoryOutcome.COMPLETE, outcome
    return {event.key: event.value for event in map(event_of, samples) if event.action != "delete"}


def stored_samples(store: SampleStore, name_space: str = "all") -> list[Sample]:
    """What is on disk of a name-space."""
    found = store.restored()[name_space]
    return [sample for number in sorted(found.buckets) for sample in unpack(store.read(name_space, number))]


class ServiceProcess(ChildProcess):
    """A service in a process of its own."""

    def __init__(
        self,
        url: str,
        node: str,
        store: pathlib.Path,
        *,
        publishers: Sequence[str] | None,
        peers: Sequence[str] | None,
        hot_bytes_max: int = FAST["hot_bytes_max"],  # type: ignore[assignment]
    ) -> None:
        settings = {
            "node": node, "store": str(store), "publishers": publishers, "peers": peers, "hot_bytes_max": hot_bytes_max,
            **HASTY,
        }  # fmt: skip
        super().__init__("service", url, json.dumps(settings), module="tests.helpers.durability_domain")
        self.node = node
        self.address: str = self.receive()["address"]

    def status(self) -> ServiceStatus:
        return msgspec.convert(self.ask(do="status"), ServiceStatus)

    def listen_to(self, *, publisher: str = "", peer: str = "") -> None:
        self.ask(do="listen", publisher=publisher, peer=peer)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _serve(url: str, settings: dict[str, Any]) -> None:
    publishers, peers = settings.pop("publishers"), settings.pop("peers")
    with DurabilityService(durability_conf(url, **settings), publishers=publishers, peers=peers) as service:
        _say({"address": service.address})
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "status":
                _say(msgspec.to_builtins(service.status()))
            elif command["do"] == "listen":
                service.listen_to(publisher=command["publisher"], peer=command["peer"])
                _say({"ok": True})


if __name__ == "__main__":
    _serve(sys.argv[2], json.loads(sys.argv[3]))
