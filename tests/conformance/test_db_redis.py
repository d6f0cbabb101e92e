"""The Redis driver against the suite that defines a correct one, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nb_api.testing.db_conformance import DbConformance
from tests.servers import RedisServer


@pytest.fixture(scope="module", autouse=True)
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        TestRedis.url = f"{server.address}?prefix={{name}}"
        yield server


class TestRedis(DbConformance):
    pass
