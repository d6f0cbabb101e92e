"""Errors of the durable log, in the same tree as all others (`pubsub_api.errors`)."""

from __future__ import annotations

from typing import ClassVar

from pubsub_api.core.errors import Fault
from pubsub_api.errors import HeliographError


class LogError(HeliographError):
    """A log could not do what was asked."""

    fault: ClassVar[Fault] = "environment"


class LogUnavailable(LogError):
    """The store cannot be reached, or did not answer in time.  Whether a write happened is not known; appending the
    same frames again is safe."""

    retriable = True


class LogCorrupt(LogError):
    """Something in the log cannot be read.  The message names the shard, the range and the file."""


class OffsetTooOld(LogError):
    """Retention has dropped the offset.  Go on at ``start``, and know that what lies before it is gone."""

    def __init__(self, message: str, *, start: int) -> None:
        super().__init__(message)
        self.start = start
        """The oldest offset that can be read."""


class RecordConflict(LogError):
    """A record has another version than the caller expected: somebody else wrote it.  Read again, then retry."""

    fault = "caller"
    retriable = True
