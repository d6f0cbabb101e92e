"""How long data is kept for subscribers that come later, and how a wait for it can end."""

from __future__ import annotations

import enum


class Durability(enum.IntEnum):
    """How long data of a topic is kept.  A larger value is a stronger promise."""

    VOLATILE = 0
    """Not at all."""
    TRANSIENT_LOCAL = 1
    """By its publisher, until the publisher ends."""
    TRANSIENT = 2
    """By durability services, until all of them have ended."""
    PERSISTENT = 3
    """On disk: it outlives a restart of all processes."""


class HistoryOutcome(enum.Enum):
    """How a wait for history ended."""

    COMPLETE = "complete"
    TIMED_OUT = "timed out"
    """There are durability services, but none is complete yet, or reading took too long.  Waiting again may help."""
    NO_SERVICE = "no service"
    """No durability service has answered."""
