"""The etcd driver against the suite that defines a correct one, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nb_api.testing.db_conformance import DbConformance
from nb_api.testing.db_conformance.base import NewUrl
from tests.helpers.servers_db import EtcdServer


@pytest.fixture(scope="module")
def etcd_server() -> Iterator[EtcdServer]:
    with EtcdServer("--unsafe-no-fsync") as server:  # for speed; a kill of the process loses nothing by it
        yield server


class TestEtcd(DbConformance):
    @pytest.fixture
    def new_url(self, etcd_server: EtcdServer) -> NewUrl:
        return etcd_server.new_prefix
