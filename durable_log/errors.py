"""Errors of the durable log, in the same tree as all others (`pubsub_api.errors`)."""

from __future__ import annotations

from typing import ClassVar

from pubsub_api.core.errors import Fault
from pubsub_api.errors import HeliographError

__all__ = [
    "LeaseLost",
    "LogCorrupt",
    "LogError",
    "LogNotFound",
    "LogReplaced",
    "LogUnavailable",
    "OffsetTooOld",
    "RecordConflict",
    "SealingBusy",
    "SegmentsRefused",
]


class LogError(HeliographError):
    """A log could not do what was asked."""

    fault: ClassVar[Fault] = "environment"


class LogUnavailable(LogError):
    """The store cannot be reached, or did not answer in time.  Whether a write happened is not known; appending the
    same frames again is safe."""

    retriable = True


class SealingBusy(LogUnavailable):
    """Another process has the right to change the segments of the log now."""


class LeaseLost(SealingBusy):
    """Another process has taken that right over meanwhile.  Nothing was changed."""


class LogNotFound(LogError):
    """There is no log at the place that was named, and the caller does not want one to be made."""

    fault = "caller"


class LogCorrupt(LogError):
    """Something in the log cannot be read.  The message names the shard, the range and the file."""

    def __init__(
        self, message: str, *, shard: int | None = None, first: int | None = None, end: int | None = None
    ) -> None:
        super().__init__(message)
        self.shard = shard
        self.first = first
        self.end = end
        """The offsets concerned, from ``first`` up to but without ``end``; None when it is not about offsets.  A reader
        that can do without them reads on at ``end``."""


class LogReplaced(LogError):
    """In the place of the log that was opened there is another one, or none: the store was emptied or exchanged.

    Nothing was written.  Open the log again to use what is there now; offsets of the old one mean nothing in it.
    """

    def __init__(self, message: str, *, opened: str, found: str) -> None:
        super().__init__(message)
        self.opened = opened
        """Identity of the log that was opened."""
        self.found = found
        """Identity of what is there now, empty when there is nothing."""


class SegmentsRefused(LogError):
    """The directory of sealed segments belongs to another log, or to a later state of this one, or is empty although
    the log has sealed segments.  Nothing was changed.

    The message says what can be done.
    """

    def __init__(self, message: str, *, identity: str, found: str) -> None:
        super().__init__(message)
        self.identity = identity
        """Identity of the log that was to be opened."""
        self.found = found
        """Identity to which the directory belongs; empty when it is empty."""


class OffsetTooOld(LogError):
    """Retention has dropped the offset.  Go on at ``start``, and know that what lies before it is gone."""

    def __init__(self, message: str, *, start: int) -> None:
        super().__init__(message)
        self.start = start
        """The oldest offset that can be read."""


class RecordConflict(LogError):
    """A record has another version than the caller expected: another process wrote it.  Read again, then retry."""

    fault = "caller"
    retriable = True
