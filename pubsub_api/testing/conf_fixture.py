"""A ``conf`` for tests: private, parsed, and with times so short that a test does not wait.

As a function, ``fast_conf("memory://test", history=10)``; as a pytest fixture, by importing `pubsub_conf` where the
tests are::

    from pubsub_api.testing.conf_fixture import pubsub_conf  # noqa: F401

    def test_it(pubsub_conf):
        conf = pubsub_conf("zmq://127.0.0.1:0")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oslo_config import cfg

from pubsub_api import config, loading

FAST = {
    "max_idle_time": 0.2,
    "message_delay_window": 0.05,
    "resync_jitter": 0.05,
    "ready_timeout": 1.0,
    "repair_timeout": 0.2,
}
"""Options of ``[pubsub]``, times in seconds: short where somebody waits for them, and long where a loaded machine, on
which a process may stand still for seconds, would see a fault that is not there."""
SILENCE_S = 20.0
"""A publisher is suspected after this long, unless ``missed_hellos_max`` is given: who tests silence gives it."""
_MISSED_HELLOS = range(3, 1001)

ConfMaker = Callable[..., cfg.ConfigOpts]


def fast_conf(url: str = "memory://default", **overrides: Any) -> cfg.ConfigOpts:
    """A new ``conf`` for the driver of ``url``.  ``overrides`` are options of ``[pubsub]``; they win over `FAST`."""
    conf = loading.conf_from_url(url)
    values = {**FAST, **overrides}
    missed = min(max(int(SILENCE_S / values["max_idle_time"]), _MISSED_HELLOS[0]), _MISSED_HELLOS[-1])
    for name, value in {"missed_hellos_max": missed, **values}.items():
        conf.set_override(name, value, group=config.GROUP)
    return conf


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
