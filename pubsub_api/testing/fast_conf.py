"""A ``conf`` for tests, with times so short that a test does not wait.  Needs no pytest."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from pubsub_api import config, loading

FAST = {
    "max_idle_time": 0.2,
    "message_delay_window": 0.05,
    "resync_jitter": 0.05,
    "ready_timeout": 1.0,
    "repair_timeout": 0.2,
}
"""Options of ``[pubsub]``, times in seconds: short where a test waits for them, and long where a pause of the process
by seconds, on a loaded machine, would be taken for a fault."""
SILENCE_S = 20.0
"""A publisher is suspected after this long, unless a test gives ``missed_hellos_max``."""
_MISSED_HELLOS = range(3, 1001)


def fast_conf(url: str = "memory://default", **overrides: Any) -> cfg.ConfigOpts:
    """A new ``conf`` for the driver of ``url``.  ``overrides`` are options of ``[pubsub]``, before those of `FAST`."""
    conf = loading.conf_from_url(url)
    values = {**FAST, **overrides}
    missed = min(max(int(SILENCE_S / values["max_idle_time"]), _MISSED_HELLOS[0]), _MISSED_HELLOS[-1])
    for name, value in {"missed_hellos_max": missed, **values}.items():
        conf.set_override(name, value, group=config.GROUP)
    return conf
