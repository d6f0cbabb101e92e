"""A ``conf`` for tests with short times, as a pytest fixture: import `pubsub_conf` where the tests are::

    from pubsub_api.testing.conf_fixture import pubsub_conf  # noqa: F401

    def test_it(pubsub_conf):
        conf = pubsub_conf("zmq://127.0.0.1:0")

For programs without pytest, `pubsub_api.testing.fast_conf` has the same as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oslo_config import cfg

from pubsub_api.testing.fast_conf import fast_conf

__all__ = ["ConfMaker", "fast_conf", "pubsub_conf"]

ConfMaker = Callable[..., cfg.ConfigOpts]


@pytest.fixture
def pubsub_conf() -> Iterator[ConfMaker]:
    """`fast_conf`.  What it returned is reset at the end of the test."""
    confs: list[cfg.ConfigOpts] = []

    def make(url: str = "memory://default", **overrides: Any) -> cfg.ConfigOpts:
        confs.append(fast_conf(url, **overrides))
        return confs[-1]

    yield make
    for conf in confs:
        conf.reset()
        conf.clear()
