"""The sign of life of a process that leads groups: one record, renewed for all of them.

The registration of each group names it, and stays as it is while nothing happens to the group.  So a process that leads
a thousand idle groups writes one record.  A process that takes a group over from one that has given no sign of life for
the claim time deletes the record in the same write: should the process only have stood still, its next renewal is
refused, and it leads nothing any more.  A name is never used again.

All groups that refer to one such record have the same claim time.
"""

from __future__ import annotations

import msgspec

from pubsub_api.core.leases import LeaseWrites
from shared_subscriptions.core.coding import decoder, encode


class SignOfLife(msgspec.Struct, frozen=True):
    beat: int
    renewed_ns: int = 0
    """When it was written, by the process's clock: for people to read.  Nothing is decided by it."""


decode = decoder(SignOfLife, "a sign of life")


class ProcessLease:
    """Sans-IO: the owner writes what `renewal` says, and reports what came of it with `written`, `refused` or
    `unknown`; after that it reads the record, and tells `observed`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_lost = False
        """Another process has taken a group over: nothing can be led under this lease any more."""
        self._beat = 0
        self._writes = LeaseWrites()

    @property
    def version(self) -> int:
        """Of the record; 0 before it was written."""
        return self._writes.version

    @property
    def renewed_at(self) -> float:
        """When the last write that is known to have succeeded began."""
        return self._writes.renewed_at

    @property
    def is_uncertain(self) -> bool:
        """Whether a write may have happened or not."""
        return self._writes.is_uncertain

    def renewal(self, now: float, renewed_ns: int = 0) -> tuple[str, bytes, int]:
        """The name of the record, what to write, and the version that it must still have."""
        self._beat += 1
        value = encode(SignOfLife(self._beat, renewed_ns))
        self._writes.begin(value, now)
        return self.name, value, self.version

    def written(self, version: int) -> None:
        self._writes.done(version)

    def refused(self) -> None:
        self.is_lost = True

    def unknown(self) -> None:
        self._writes.unknown()

    def observed(self, value: bytes | None, version: int) -> None:
        """The record was read, after the outcome of a write was not known; version 0 and None when there is none."""
        if self._writes.settle(value, version) == "overtaken":
            self.is_lost = True
