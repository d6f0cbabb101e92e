"""The buses that session-level tests run on: every driver, against the real thing; and the logs that groups read."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import durable_log
import pubsub_api
from durable_log.log_api import LogApi
from pubsub_api.driver import PubSubApi
from pubsub_api.testing.fast_conf import fast_conf
from tests.helpers.group_nodes import Source
from tests.helpers.servers import RedisServer

DRIVERS = ("memory", "zmq", "zenoh", "redis", "longpoll")
WAITING = {"zmq": "?send_wait=20", "zenoh": "?send_wait=5"}
"""A sender waits for a subscriber that has no processor for a while: only what a test loses on purpose is lost."""
READY_S = 20.0
"""Publishers have this long to tell their heads, and what they remember, to a subscriber that joins."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test on every `process_bus` runs on every second one in `./run test`, and on the others in `./run chaos`: its
    processes take as long as many tests without."""
    for item in items:
        chosen = getattr(item, "callspec", None)
        if chosen is None or "process_bus" not in chosen.indices:
            continue
        if not any(mark.args[0] == "process_bus" for mark in item.iter_markers("parametrize")):
            name = item.nodeid.partition("[")[0]
            if (zlib.crc32(name.encode()) + sum(chosen.indices.values())) % 2:
                item.add_marker(pytest.mark.chaos)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@dataclasses.dataclass
class Bus:
    """One driver and a private place for it: opens sessions that are closed at the end of the test."""

    driver: str
    url: str
    sessions: list[pubsub_api.Session] = dataclasses.field(default_factory=list)

    def session(
        self, *, wrap_driver: Callable[[PubSubApi], PubSubApi] | None = None, **options: Any
    ) -> pubsub_api.Session:
        """A session; ``options`` are overrides of ``[pubsub]``."""
        conf = fast_conf(self.url, **{"ready_timeout": READY_S, **options})
        session = pubsub_api.open(conf=conf, wrap_driver=wrap_driver)
        self.sessions.append(session)
        return session

    @property
    def is_bind_based(self) -> bool:
        return self.driver in ("zmq", "zenoh", "longpoll")

    def addresses(self, *ends: pubsub_api.Publisher | Any) -> Sequence[str] | None:
        """Where a subscriber has to listen to hear these publishers and caches."""
        return [end.address for end in ends] if self.is_bind_based else None

    def close(self) -> None:
        while self.sessions:
            self.sessions.pop().close()


def _url(driver: str, request: pytest.FixtureRequest) -> str:
    if driver == "redis":
        address: str = request.getfixturevalue("redis_server").address
        return f"{address}?channel_prefix=t{uuid.uuid4().hex[:8]}:"
    return f"memory://{uuid.uuid4().hex}" if driver == "memory" else f"{driver}://127.0.0.1:0"


@pytest.fixture(params=DRIVERS)
def bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    """Each driver in turn."""
    bus = Bus(request.param, _url(request.param, request) + WAITING.get(request.param, ""))
    yield bus
    bus.close()


@pytest.fixture(params=[driver for driver in DRIVERS if driver != "memory"])
def process_bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    """Each driver that connects processes, in turn."""
    bus = Bus(request.param, _url(request.param, request))
    yield bus
    bus.close()


class Consumer:
    """What a user's callbacks saw, in order."""

    def __init__(self) -> None:
        self.log: list[pubsub_api.Event | pubsub_api.Resync] = []

    def on_event(self, event: pubsub_api.Event) -> None:
        self.log.append(event)

    def on_resync(self, resync: pubsub_api.Resync) -> None:
        self.log.append(resync)

    @property
    def events(self) -> list[pubsub_api.Event]:
        return [item for item in self.log if isinstance(item, pubsub_api.Event)]

    @property
    def versions(self) -> list[int]:
        return [event.version for event in self.events]

    @property
    def resyncs(self) -> list[pubsub_api.Resync]:
        return [item for item in self.log if isinstance(item, pubsub_api.Resync)]


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def log(url: str) -> Iterator[LogApi]:
    """The log at the ``url`` that a file of tests names."""
    with contextlib.closing(durable_log.open(url)) as log:
        yield log


@pytest.fixture
def source(log: LogApi) -> Source:
    """Appends to `log` what groups are to be given."""
    return Source(log)


def event(number: int, topic: str = "tenant-7/port", **fields: Any) -> pubsub_api.Event:
    """An event that is told from others by its version."""
    values: dict[str, Any] = {"table": "port", "key": f"p{number % 10}", "action": "set", "value": {"n": number}}
    return pubsub_api.Event(topic=topic, version=number, **{**values, **fields})
