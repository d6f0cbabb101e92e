"""The Redis driver against the suite that defines a correct one, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nb_api.testing.db_conformance import DbConformance
from nb_api.testing.db_conformance.base import NewUrl
from tests.helpers.servers import RedisServer


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class TestRedis(DbConformance):
    @pytest.fixture
    def new_url(self, redis_server: RedisServer) -> NewUrl:
        return redis_server.new_prefix
