"""Leases in a store that can be read and written by compare-and-set.

Theory of operation
-------------------
A lease is a record whose version rises with every write.  No clock is compared with another.  The holder measures the
lease on its own clock, from the time before each write.  A process that watches the record measures on its own clock
how long the version has not changed, from the time after it read that version.  The write was carried out between these
two times.  So the lease of the holder ends first, whatever the clocks show and however long calls to the store take.

A write is carried out, refused, or its outcome is unknown.  To learn an unknown outcome the process reads the record:
it has the mark of a write of this process, or the version that it had before, or a write of another process.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Literal

Outcome = Literal["done", "not done", "overtaken"]

LEASE_S_MAX = 3600.0
"""The bound of the options: when a holder dies, other processes must wait for the end of its lease."""


def longer_lease_s(own_s: float, stated: object) -> float:
    """How long a record must not change before its lease is over, for a process whose own lease lasts ``own_s``.

    ``stated`` is the lease in the record, by which its holder measures.  While the option is changed in one process
    after the other, both may differ, so the longer one counts.  A value that no holder can have, or that an earlier
    release did not write, is ignored.
    """
    return max(own_s, stated) if isinstance(stated, int | float) and 0 < stated <= LEASE_S_MAX else own_s


class LeaseWrites:
    """The writes of one process to one record, each under the condition that the record still has `version`.

    Call `begin` before each write, and `done` or `unknown` after it; a refused write needs no call.  After `unknown`
    read the record and call `settle`, which recognises the last ``remembered_max`` writes: more than one where an
    unanswered write may be carried out after a later read.
    """

    def __init__(self, *, remembered_max: int = 1) -> None:
        self.version = 0
        """The last known version of the record, 0 when it does not exist."""
        self.renewed_at = -math.inf
        """When the last write that was certainly carried out began: the lease is measured from then."""
        self.is_uncertain = False
        """The outcome of a write is unknown."""
        self._remembered_max = remembered_max
        self._began: dict[Hashable, float] = {}
        """Mark of a write -> when it began."""

    def begin(self, mark: Hashable, now: float) -> None:
        """``mark`` is in the record after this write, and after no other that is remembered."""
        self._began[mark] = now
        if len(self._began) > self._remembered_max:
            del self._began[next(iter(self._began))]

    def done(self, version: int) -> None:
        """The last write was carried out, and the record has this version."""
        self.version, self.is_uncertain = version, False
        self.renewed_at = next(reversed(self._began.values()))

    def unknown(self) -> None:
        """The outcome of the last write is unknown."""
        self.is_uncertain = True

    def settle(self, mark: Hashable, version: int) -> Outcome:
        """The record was read; version 0: it does not exist.  "done": one of our writes was carried out."""
        self.is_uncertain = False
        if version and mark in self._began:
            self.version, self.renewed_at = version, self._began[mark]
            return "done"
        return "not done" if version == self.version else "overtaken"


class LeaseProgress:
    """How long the versions of records have not changed, for a process that reads them now and then.

    Time between two reads counts for at most ``gap_max_s``: a process that could not read does not know whether the
    holder could write, and an outage that stopped both must not end the lease.
    """

    def __init__(self, *, gap_max_s: float = math.inf) -> None:
        self._gap_max_s = gap_max_s
        self._observed: dict[str, tuple[int, float]] = {}
        """Key -> version, and for how long it has not changed."""
        self._last_read: float | None = None

    def observe(self, versions: Mapping[str, int], now: float) -> None:
        """Key -> version of all records that exist, read before ``now``.  Other records are forgotten."""
        gap_s = 0.0 if self._last_read is None else min(max(0.0, now - self._last_read), self._gap_max_s)
        self._last_read = now
        before, self._observed = self._observed, {}
        for key, version in versions.items():
            known, idle_s = before.get(key, (None, 0.0))
            self._observed[key] = (version, idle_s + gap_s if known == version else 0.0)

    def idle_s(self, key: str) -> float:
        """How long the version had not changed when it was last read; 0 for a record that did not exist."""
        return self._observed.get(key, (0, 0.0))[1]
