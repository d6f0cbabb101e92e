"""How often a process publishes what it has committed.  Decisions only, no I/O.

Each frame wakes every follower, and that costs a follower more than a dozen changes in the frame do.  So lone changes
leave at once, one by one, and in a flood changes leave together, `PAUSE_S` after those before.
"""

from __future__ import annotations

PAUSE_S = 0.002
"""Between two publications of a flood.  A writer that makes fewer changes than this allows never waits for it."""
BURST = 10
"""So many publications may follow each other at once: a writer that was held up catches up without a pause."""
WORTH_IT = 64
"""So many changes do not wait: with them the frame costs little for each."""


class Pace:
    """``now`` is monotonic.  For one thread at a time."""

    def __init__(self) -> None:
        self._paid_at = 0.0
        """When what was published would have been, with a pause after each."""

    @property
    def due(self) -> float:
        """From when on the next few changes may be published."""
        return self._paid_at - (BURST - 1) * PAUSE_S

    def is_due(self, changes: int, now: float) -> bool:
        return now >= self._paid_at - (BURST - 1) * PAUSE_S or changes >= WORTH_IT

    def published(self, now: float) -> None:
        self._paid_at = max(self._paid_at, now) + PAUSE_S
