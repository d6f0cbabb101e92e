"""The change event that every case publishes: one port of a virtual network, about 180 bytes as a msgpack map.

Building the event and stamping it is part of what is measured, in each case in its own form.  The value is taken from a
small pool: the program that publishes a change has the changed object at hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from pubsub_api import Event
from pubsub_api.core import frame as frames
from pubsub_api.core.events import encode_event, pack_body
from pubsub_api.core.frame import Kind

TABLE = "port"
POOL = 256
TOPIC_BYTES = len("tenant-00000/port")

VALUES: list[dict[str, Any]] = [
    {
        "mac": f"fa:16:3e:00:00:{number:02x}",
        "ip": f"10.0.0.{number}",
        "network": f"net-{number % 16:02d}",
        "host": f"compute-{number:03d}",
        "up": True,
    }
    for number in range(POOL)
]
KEYS: list[str] = [f"9f3c51a0-5d1e-4c0b-9a3e-7d5b1c2e{number:04x}" for number in range(POOL)]


def topic(number: int = 0) -> str:
    """Topics have one length, so that a raw receiver can cut them off without looking for their end."""
    return f"tenant-{number:05d}/port"


class TunedEvent(msgspec.Struct, array_like=True):
    """What a tuned raw sender would publish: the fields in order, without names."""

    table: str
    key: str
    action: str
    value: Any
    version: int
    timestamp: int


def mapping(number: int) -> dict[str, Any]:
    """The event as most programs write it: a dict with named fields."""
    at = number & (POOL - 1)
    return {
        "table": TABLE,
        "key": KEYS[at],
        "action": "set",
        "value": VALUES[at],
        "version": number,
        "timestamp": time.time_ns(),
    }


def tuned(number: int) -> TunedEvent:
    at = number & (POOL - 1)
    return TunedEvent(TABLE, KEYS[at], "set", VALUES[at], number, time.time_ns())


def frame(guid: bytes, topic: str, events: Sequence[Event], first: int) -> bytes:
    """A frame of these events, numbered from ``first`` on, as a publisher makes it in a flood."""
    body = pack_body([encode_event(one, time.time_ns()) for one in events])
    return frames.pack(Kind.DATA, guid, topic, body, first=first, after=first - 1, count=len(events))


def event(number: int, topic: str) -> Event:
    """The event as a user of Heliograph writes it.  The publisher stamps it."""
    at = number & (POOL - 1)
    return Event(topic=topic, table=TABLE, key=KEYS[at], action="set", value=VALUES[at], version=number)
