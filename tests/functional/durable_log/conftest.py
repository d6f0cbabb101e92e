"""The servers of logs in Redis and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server
