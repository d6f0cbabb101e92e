"""A ``conf`` for tests with short times, as a pytest fixture: import `pubsub_conf` where the tests are::

    from pubsub_api.testing.conf_fixture import pubsub_conf  # noqa: F401

    def test_it(pubsub_conf):
        conf = pubsub_conf("zmq://127.0.0.1:0")

`fast_conf` is the same as a function, for programs without pytest in `pubsub_api.testing.fast_conf`.
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
    """`fast_conf`, whose results are reset at the end of the test."""
    made: list[cfg.ConfigOpts] = []

    def make(url: str = "memory://default", **overrides: Any) -> cfg.ConfigOpts:
        made.append(fast_conf(url, **overrides))
        return made[-1]

    yield make
    for conf in made:
        conf.reset()
        conf.clear()
