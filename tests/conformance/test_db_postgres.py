"""The PostgreSQL driver against the suite that defines a correct one, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nb_api.testing.db_conformance import DbConformance
from nb_api.testing.db_conformance.base import NewUrl
from tests.helpers.servers_db import PostgresServer


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class TestPostgres(DbConformance):
    @pytest.fixture
    def new_url(self, postgres_server: PostgresServer) -> NewUrl:
        """A schema each: what one of them writes must be invisible in the others."""
        return postgres_server.new_schema
