"""Zenoh as a stranger to Heliograph uses it, with nothing on that a test did not ask for."""

from __future__ import annotations

import json
from collections.abc import Sequence

import zenoh


def plain_session(
    mode: str, *, listen: Sequence[str] = (), connect: Sequence[str] = (), **settings: object
) -> zenoh.Session:
    """Open a session.  ``settings``: keys of Zenoh's configuration."""
    config = zenoh.Config()
    values: dict[str, object] = {
        "mode": mode,
        "listen/endpoints": list(listen),
        "connect/endpoints": list(connect),
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "scouting/delay": 0,
        **settings,
    }
    for key, value in values.items():
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)
