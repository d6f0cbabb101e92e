"""Makes correct frames for tests of drivers: a driver may refuse other bytes."""

from __future__ import annotations

import collections
import os

import msgspec

from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Header, Kind

FRAME_BYTES_MAX = 64 * 1024 * 1024


class Frames:
    """The frames of one publisher, numbered per topic as real ones are.  No two of them are equal."""

    def __init__(self) -> None:
        self.guid = os.urandom(frames.GUID_BYTES)
        self._last: collections.Counter[str] = collections.Counter()

    def data(self, topic: str, size: int = 40) -> bytes:
        """The next DATA frame of a topic, with ``size`` bytes of payload."""
        self._last[topic] += 1
        number = self._last[topic]
        body = msgspec.msgpack.encode([bytes(size)])
        return frames.pack(Kind.DATA, self.guid, topic, body, first=number, after=number - 1, count=1)

    def data_of_bytes(self, topic: str, frame_bytes: int) -> bytes:
        """A DATA frame of exactly this size, with its header; at least 100,000 bytes."""
        overhead = len(self.data(topic, 100_000)) - 100_000
        return self.data(topic, frame_bytes - overhead)

    def query(self, number: int, topic: str = "asked") -> bytes:
        """A QUERY with a number, which `reply` copies into the answers."""
        return frames.pack(Kind.QUERY, self.guid, topic, msgspec.msgpack.encode([number]), first=number)

    def reply(self, query: bytes, part: int = 0, size: int = 10) -> bytes:
        """A REPLY to ``query``: its ``first`` is the number of the query, its ``after`` is ``part``."""
        asked = header(query)
        body = msgspec.msgpack.encode([bytes(size)])
        return frames.pack(Kind.REPLY, self.guid, asked.topic, body, first=asked.first, after=part)


def header(frame: bytes) -> Header:
    """The header of a frame of any size."""
    return frames.unpack(frame, bytes_max=FRAME_BYTES_MAX)
