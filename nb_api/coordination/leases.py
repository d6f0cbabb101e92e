"""What all leases in a database have in common; `pubsub_api.core.leases` says how a lease is held and judged."""

from __future__ import annotations

import time

from nb_api.errors import ObjectExists, ObjectNotFound, VersionConflict

TOPIC = "heliograph/leases"
"""Objects need a topic; no cache follows this one."""

REFUSED = (ObjectExists, ObjectNotFound, VersionConflict)
"""What a write raises when another process has changed the object meanwhile."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Seconds that have passed, those in which the machine was suspended included: other processes ran meanwhile."""
    return time.clock_gettime(_CLOCK)
