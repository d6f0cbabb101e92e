"""How long data is kept for those who come late, and how waiting for it can end."""

from __future__ import annotations

import enum


class Durability(enum.IntEnum):
    """How long data of a topic is kept.  The order is that of strength."""

    VOLATILE = 0
    """Not at all."""
    TRANSIENT_LOCAL = 1
    """As long as its publisher lives, by the publisher itself."""
    TRANSIENT = 2
    """As long as a service that keeps history lives."""
    PERSISTENT = 3
    """On disk: when everything was down, too."""


class HistoryOutcome(enum.Enum):
    """How a wait for history ended."""

    COMPLETE = "complete"
    TIMED_OUT = "timed out"
    """There are services that keep history, and none is complete yet, or reading took too long.  Waiting again is
    fine."""
    NO_SERVICE = "no service"
    """No service that keeps history answered."""
