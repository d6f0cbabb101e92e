"""A short sample of what `tests/chaos/test_log_storm_long.py` does at length."""

from __future__ import annotations

import pathlib
import uuid

import pytest

from tests.helpers.log_storm import storm
from tests.helpers.servers import RedisServer, free_port


@pytest.mark.timeout(600)
@pytest.mark.parametrize("driver", ["sqlite", "redis"])
def test_nothing_is_lost_whoever_is_killed(tmp_path: pathlib.Path, driver: str) -> None:
    if driver == "sqlite":
        storm(f"zmq://127.0.0.1:{free_port()}", f"sqlite://{tmp_path}/log.db", seed=3, kills=2)
        return
    with RedisServer(config={"appendonly": "yes", "appendfsync": "always"}) as server:
        bus_url = f"{server.address}?channel_prefix=t{uuid.uuid4().hex[:8]}:"
        storm(bus_url, f"{server.address}?segment_directory={tmp_path}/segments", seed=4, kills=2)
