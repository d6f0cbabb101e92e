"""The server of logs in Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.servers import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server
