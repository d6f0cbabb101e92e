"""Recorders, standbys, sealers and compactions killed again and again while publishers come and go."""

from __future__ import annotations

import pathlib
import uuid

import pytest

from tests.helpers.log_storm import storm
from tests.helpers.s3_server import S3Server
from tests.helpers.servers import RedisServer, free_port

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

KILLS = 25
"""Of a test: so 200 for each log driver."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bus", ["zmq", "longpoll"])
def test_nothing_is_lost_in_sqlite(tmp_path: pathlib.Path, bus: str, seed: int) -> None:
    storm(f"{bus}://127.0.0.1:{free_port()}", f"sqlite://{tmp_path}/log.db", seed=100 + seed, kills=KILLS)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_in_redis(tmp_path: pathlib.Path, seed: int) -> None:
    with RedisServer(config={"appendonly": "yes", "appendfsync": "always"}) as server:
        bus_url = f"{server.address}?channel_prefix=t{uuid.uuid4().hex[:8]}:"
        storm(bus_url, f"{server.address}?segment_directory={tmp_path}/segments", seed=200 + seed, kills=KILLS)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_on_object_storage(tmp_path: pathlib.Path, seed: int) -> None:
    with S3Server() as s3:
        log_url = f"sqlite://{tmp_path}/log.db?{s3.options(s3.new_prefix())}"
        storm(f"zmq://127.0.0.1:{free_port()}", log_url, seed=300 + seed, kills=KILLS)
