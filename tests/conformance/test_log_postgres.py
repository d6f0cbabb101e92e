"""The log in PostgreSQL, against the suite that defines a correct driver, on a real server."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from durable_log.testing.log_conformance import LogConformance
from durable_log.testing.log_conformance.base import SHARDS, NewUrl
from tests.helpers.servers_db import PostgresServer


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class TestPostgresLog(LogConformance):
    @pytest.fixture
    def new_url(self, postgres_server: PostgresServer, tmp_path: pathlib.Path) -> NewUrl:
        def new() -> str:
            url = postgres_server.new_schema()
            return f"{url}&shards={SHARDS}&segment_directory={tmp_path / url.rpartition('=')[2]}"

        return new
