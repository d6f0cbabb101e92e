"""Whether a thread that has committed may publish itself, because that cannot make it wait.  Decisions only, no I/O.

A commit does not wait for a bus or a publisher service that is away.  So the way has to be proven by a flush, and what
was published since then must be so little that the transport takes it also when the other side has just stopped
reading.  What does not fit is published by the thread that may wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from nb_api.db_api import Change

BYTES_MAX = 64 * 1024
"""Since the last flush.  Less than the buffers of a connection hold."""
CHANGES_MAX = 400
"""Since the last flush.  Each is up to two events, and windows of drivers and of the publisher service hold more."""
_CHANGE_BYTES = 128
"""What a change takes beyond its value, about."""
SLOW_S = 0.05
SLOW_PAUSE_S = 2.0
"""After a publication that took as long as that, as one does that waits for a slow subscriber, no writer publishes for
a while."""


class Load(NamedTuple):
    """An amount of changes."""

    changes: int
    bytes: int

    def plus(self, other: Load) -> Load:
        return Load(self.changes + other.changes, self.bytes + other.bytes)

    def minus(self, other: Load) -> Load:
        return Load(self.changes - other.changes, self.bytes - other.bytes)


def load_of(changes: Sequence[Change]) -> Load:
    """Of changes whose values are encoded, as `nb_api.core.writes.committed_changes` returns them."""
    count = len(changes)
    size = count * _CHANGE_BYTES
    for change in changes:
        if type(change.value) is msgspec.Raw:
            size += len(change.value)
    return Load(count, size)


class DirectWay:
    """What is known of the way to the bus.  ``now`` is monotonic.  For one thread at a time."""

    def __init__(self) -> None:
        self.is_proven = False
        self._published = Load(0, 0)
        """In all."""
        self._flushed = Load(0, 0)
        """Of these, when the last flush began."""
        self._slow_until = 0.0

    def is_free(self, load: Load, now: float) -> bool:
        """Whether so much can be published without waiting."""
        return self.is_proven and now >= self._slow_until and self._has_room(load)

    @property
    def is_full(self) -> bool:
        """Too much is under way for even a small change."""
        return not self._has_room(Load(1, 2 * _CHANGE_BYTES))

    def _has_room(self, load: Load) -> bool:
        changes = self._published.changes - self._flushed.changes + load.changes
        return changes <= CHANGES_MAX and self._published.bytes - self._flushed.bytes + load.bytes <= BYTES_MAX

    def published(self, load: Load, *, begun: float, now: float) -> None:
        """So much was published, from then till now."""
        self._published = self._published.plus(load)
        if self.is_proven and now - begun > SLOW_S:  # what opens the publisher takes its time
            self._slow_until = now + SLOW_PAUSE_S

    def mark(self) -> Load:
        """For `flushed`: what a flush that begins now will prove."""
        return self._published

    def flushed(self, mark: Load, *, is_proven: bool) -> None:
        """A flush has ended, or has failed."""
        self.is_proven = is_proven
        if is_proven:
            self._flushed = mark

    def lost(self) -> None:
        """Publishing has failed: only a flush proves the way again."""
        self.is_proven = False
