"""The Redis driver against the suite that defines a correct one, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pubsub_api.testing.conformance import DriverConformance
from tests.helpers.servers import RedisServer


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class TestRedis(DriverConformance):
    @pytest.fixture
    def driver_url(self, redis_server: RedisServer) -> str:
        return redis_server.address

    def send_foreign(self, address: str, topic: str, payload: bytes) -> None:
        with RedisServer.client_of(address) as client:
            client.publish(f"heliograph:{topic}", payload)
