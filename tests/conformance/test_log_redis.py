"""The log in Redis, against the suite that defines a correct driver, on a real server."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator

import pytest

from durable_log.testing.log_conformance import LogConformance
from durable_log.testing.log_conformance.base import SHARDS, NewUrl
from tests.helpers.servers import RedisServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class TestRedisLog(LogConformance):
    @pytest.fixture
    def new_url(self, redis_server: RedisServer, tmp_path: pathlib.Path) -> NewUrl:
        def new() -> str:
            name = f"test{next(_numbers)}"
            options = f"key_prefix={name}:&shards={SHARDS}&segment_directory={tmp_path / name}"
            return f"{redis_server.address}?{options}"

        return new
