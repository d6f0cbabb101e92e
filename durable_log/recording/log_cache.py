"""Repair for ranges far older than memory holds: a cache on the bus that looks into a log.

`LogStore` is what `Session.cache` takes as ``store``: when a subscriber asks for numbers that the cache does not hold
in memory, the log is asked.  Frames are handed out as they were recorded, signatures included.
"""

from __future__ import annotations

from durable_log.log_api import LogApi
from pubsub_api.core import frame as frames
from pubsub_api.core.messages import Want

_ANSWER_BYTES_MAX = 8 << 20


class LogStore:
    """A log as the memory of a reliability cache.  ``bytes_max`` bounds what one range is answered with; a
    subscriber that needs more asks again for the rest."""

    def __init__(self, log: LogApi, *, bytes_max: int = _ANSWER_BYTES_MAX) -> None:
        self._log = log
        self._bytes_max = bytes_max

    def find(self, want: Want) -> list[bytes]:
        """Frames that hold numbers of the range, oldest first, as far as they are there.  Raises LogError."""
        return self._log.read_stream(want.guid, want.topic, want.first, want.last, bytes_max=self._bytes_max)

    def holds(self, want: Want) -> bool:
        """Whether every number of the range can be read.  False also when that would take too many bytes to tell."""
        expected = want.first
        for frame in self.find(want):
            header = frames.unpack(frame, bytes_max=len(frame))
            if header.first > expected and header.after >= expected:
                return False
            expected = max(expected, header.last + 1)
        return expected > want.last
