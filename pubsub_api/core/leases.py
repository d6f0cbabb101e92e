"""Leases in a store that can be read and written by compare-and-set.

Theory of operation
-------------------
A lease is a record whose version rises with every write.  No clock is compared with another.  The holder counts on its
own clock, from before each write.  A process that watches counts on its own clock, too, how long the version has been
the same, from after it read it.  The write was carried out between the two moments, so the holder's lease ends first,
whatever the clocks show and however long calls to the store take.

A write is done, refused, or its outcome is not known.  Then only reading the record tells: it shows the mark of a write
of our own, or the version that it had before, or another process has written it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Literal

Outcome = Literal["done", "not done", "overtaken"]

LEASE_S_MAX = 3600.0
"""As that of the options: what died with a longer one would keep the others away for that long."""


def longer_lease_s(own_s: float, stated: object) -> float:
    """How long a record must show no progress before it is over, for a process whose own lease is ``own_s``.

    The holder counts the lease that its record states.  Processes may have different ones while an option is changed in
    one after the other, so the longer one counts.  What no holder can have is not waited for, nor what a release before
    did not state.
    """
    return max(own_s, stated) if isinstance(stated, int | float) and 0 < stated <= LEASE_S_MAX else own_s


class LeaseWrites:
    """The writes of one process to one record, each under the condition that the record still has `version`.

    Call `begin` before each write and then `done` or `unknown`; a refused write needs no call.  After `unknown` read
    the record and call `settle`.  ``remembered_max`` of the newest writes are recognised when they are read: more than
    one where a write that was not answered may be carried out after a later look.
    """

    def __init__(self, *, remembered_max: int = 1) -> None:
        self.version = 0
        """Of the record when it was last known, 0 for none."""
        self.renewed_at = -math.inf
        """When the newest write that is known to have been carried out began: the lease is counted from there."""
        self.is_uncertain = False
        """Whether the outcome of a write is not known."""
        self._remembered_max = remembered_max
        self._begun: dict[Hashable, float] = {}

    def begin(self, mark: Hashable, now: float) -> None:
        """``mark`` is what the record shows of this write and of no other that is remembered."""
        self._begun[mark] = now
        if len(self._begun) > self._remembered_max:
            del self._begun[next(iter(self._begun))]

    def done(self, version: int) -> None:
        """The newest write was carried out, and the record has this version."""
        self.version, self.is_uncertain = version, False
        self.renewed_at = next(reversed(self._begun.values()))

    def unknown(self) -> None:
        """The newest write was not answered."""
        self.is_uncertain = True

    def settle(self, mark: Hashable, version: int) -> Outcome:
        """The record was read; version 0 for none.  A write of our own counts as done from when it began."""
        self.is_uncertain = False
        if version and mark in self._begun:
            self.version, self.renewed_at = version, self._begun[mark]
            return "done"
        return "not done" if version == self.version else "overtaken"


class LeaseProgress:
    """How long the versions of some records have been the same, for a process that reads them now and then.

    A time without reading counts as ``gap_max_s`` at most: a process that could not read does not know whether the
    holder could write, and an outage that stopped both must not end the lease.
    """

    def __init__(self, *, gap_max_s: float = math.inf) -> None:
        self._gap_max_s = gap_max_s
        self._seen: dict[str, tuple[int, float]] = {}
        self._last: float | None = None

    def observe(self, versions: Mapping[str, int], now: float) -> None:
        """All records there are now, read before ``now``.  Others are forgotten."""
        gap_s = 0.0 if self._last is None else min(max(0.0, now - self._last), self._gap_max_s)
        self._last = now
        before, self._seen = self._seen, {}
        for key, version in versions.items():
            known, idle_s = before.get(key, (None, 0.0))
            self._seen[key] = (version, idle_s + gap_s if known == version else 0.0)

    def idle_s(self, key: str) -> float:
        """How long the version was the same when it was last observed, 0 for what was not there."""
        return self._seen.get(key, (0, 0.0))[1]
