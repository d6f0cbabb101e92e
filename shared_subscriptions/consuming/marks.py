"""Whether the log still is the one that this process has read, or went back to an older state of it.

An older copy of a store that was put back has the identity of the log, and gives its offsets again, to other events.
So of each shard it is noted how far it was read and when the event before that was appended (`LogApi.appended_at`).  In
a log that went back, and also in one that has grown since, that event is another one, or is not there.
"""

from __future__ import annotations

import time
from typing import Final

from durable_log.log_api import LogApi
from pubsub_api.errors import UsageError

CHECK_S: Final = 0.1
"""How often a shard that is read is compared.  What was read since, in a log that went back and grew beyond that before
the next look, is not found."""
_NOT_THERE = -1


class ReadMarks:
    """Used by one thread.  Methods that look at the log raise LogError."""

    def __init__(self, log: LogApi) -> None:
        self.went_back = 0
        """Shards that were found in an older state than they had been read in, each time."""
        self.log = log
        self._marks: dict[int, list[tuple[int, int]]] = {}
        """Shard -> where it was read to at the last look, and now, each with when the event before was appended."""
        self._due: dict[int, float] = {}

    def note(self, shard: int, end: int, appended_ns: int) -> None:
        """The shard was read up to an offset."""
        if end > self.end(shard):
            self._marks.setdefault(shard, [])[1:] = [(end, appended_ns)]

    def end(self, shard: int) -> int:
        """How far the shard was read."""
        marks = self._marks.get(shard)
        return marks[-1][0] if marks else 0

    def is_due(self, shard: int) -> bool:
        """Whether it is time to look."""
        return time.monotonic() >= self._due.get(shard, 0.0)

    def proven(self, shard: int) -> int | None:
        """Compare: up to which offset the shard is the one that was read, as far as can be told; None when it is not.
        Then it begins anew."""
        marks, proven = self._marks.get(shard, []), 0
        for end, appended_ns in marks:
            found = self._appended_at(shard, end - 1)
            if found is not None and found != appended_ns:
                del self._marks[shard]
                self.went_back += 1
                return None
            proven = end if found is not None else proven
        del marks[:-1]
        self._due[shard] = time.monotonic() + CHECK_S
        return proven

    def _appended_at(self, shard: int, offset: int) -> int | None:
        """None when retention or compaction has removed the event."""
        try:
            found = self.log.appended_at(shard, offset)
        except UsageError:  # the log had fewer shards then
            found = None
        if found is None:
            states = self.log.state()
            if shard >= len(states) or offset >= states[shard].end:
                return _NOT_THERE
        return found
