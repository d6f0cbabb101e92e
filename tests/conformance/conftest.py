"""Which tests of a suite are a sample in `./run test`, and whole in `./run chaos`."""

from __future__ import annotations

import zlib

import pytest

_SAMPLED = {"test_db_etcd_cluster.py": 4}
"""File -> how many tests there are for one of the sample: three members of a cluster write each commit to the disk, and
the driver passes the whole suite on one member in every run."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if zlib.crc32(item.name.encode()) % _SAMPLED.get(item.path.name, 1):
            item.add_marker(pytest.mark.chaos)
