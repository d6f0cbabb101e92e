"""Which tests of a suite are a sample in `./run test`, and whole in `./run chaos`."""

from __future__ import annotations

import zlib

import pytest

_SAMPLED = {
    "test_db_etcd_cluster.py::TestEtcdCluster": 4,
    "test_drivers.py::TestFaultyWithLatency": 3,
    "test_drivers.py::TestFaultyWithoutFaults": 3,
    "test_longpoll.py::TestMutualTls": 3,
    "test_zenoh.py::TestClients": 3,
    "test_zenoh.py::TestMutualTls": 3,
    "test_zenoh.py::TestRouter": 3,
    "test_zenoh.py::TestUndeclaredPeers": 3,
    "test_zmq.py::TestZmqEncrypted": 3,
    "test_zmq.py::TestZmqOnSocketFile": 3,
}
"""Class -> how many tests there are for one of the sample: another way to set up a driver that passes the whole suite
in every run."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        class_ = item.nodeid.rpartition("/")[2].rpartition("::")[0]
        if zlib.crc32(item.nodeid.encode()) % _SAMPLED.get(class_, 1):
            item.add_marker(pytest.mark.chaos)
