"""The etcd driver against the suite that defines a correct one, on a cluster with TLS, client certificates and users.

The first endpoint is killed after some of the tests, and comes back after some more.  `./run test` runs a sample of the
suite, `./run chaos` all of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from nb_api.testing.db_conformance import DbConformance
from nb_api.testing.db_conformance.base import NewUrl
from tests.helpers.etcd_cluster import FILES, EtcdCluster

TURN = 15
"""Tests between two changes of the first endpoint."""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    with pytest.MonkeyPatch.context() as patch, EtcdCluster(3, has_tls=True) as cluster:
        for name, path in FILES.items():  # processes that the suite starts know nothing but a URL
            patch.setenv(f"OS_DB__{name.upper()}", path)
        cluster.add_users("heliograph", "p@ss:w/rd", b"test-")
        yield cluster


class TestEtcdCluster(DbConformance):
    snapshot_objects = 4000  # as many as make more than one portion

    @pytest.fixture
    def new_url(self, cluster: EtcdCluster) -> NewUrl:
        number, first = next(_numbers), cluster.members[0]
        if number % (2 * TURN) == TURN:
            first.kill()
        elif number % (2 * TURN) == 0:
            first.restart()
        return cluster.new_prefix
