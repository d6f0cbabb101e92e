"""Leases in a database: objects whose versions rise as long as their owners live.

Nobody compares a clock with another's.  Who holds a lease counts on its own clock, from before each renewal.  Who
watches counts on its own clock, too, how long the version has been the same, from after it read it.  The renewal was
committed between the two moments, so the holder's lease ends first, whatever the clocks show and however long calls to
the database take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from nb_api.errors import ObjectExists, ObjectNotFound, VersionConflict

TOPIC = "heliograph/leases"
"""Objects need one; nobody follows it."""

REFUSED = (ObjectExists, ObjectNotFound, VersionConflict)
"""What a write raises when somebody else has changed the object meanwhile."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Seconds that have passed, those in which the machine was suspended included: others lived on meanwhile."""
    return time.clock_gettime(_CLOCK)


class LeaseProgress:
    """How long the versions of some objects have been the same, for one who reads them now and then.

    A time without reading counts as ``gap_max_s`` at most: who could not read does not know whether the holder could
    write, and must not punish it for an outage that has stopped both.
    """

    def __init__(self, *, gap_max_s: float = math.inf) -> None:
        self._gap_max_s = gap_max_s
        self._seen: dict[str, tuple[int, float]] = {}
        self._last: float | None = None

    def observe(self, versions: Mapping[str, int], now: float) -> None:
        """All objects there are now, read before ``now``.  Others are forgotten."""
        gap_s = 0.0 if self._last is None else min(max(0.0, now - self._last), self._gap_max_s)
        self._last = now
        before, self._seen = self._seen, {}
        for key, version in versions.items():
            known, idle_s = before.get(key, (None, 0.0))
            self._seen[key] = (version, idle_s + gap_s if known == version else 0.0)

    def idle_s(self, key: str) -> float:
        """How long the version was the same when it was last observed, 0 for what was not there."""
        return self._seen.get(key, (0, 0.0))[1]
