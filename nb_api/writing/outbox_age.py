"""How old the changes in an outbox are, without trusting a clock.

A sweeper looks for old changes again and again.  What was there at one look is, at a later one, at least as old as
the time between, by a clock that is never set.  The time that is written down with a change is believed only when it
says that the change is old: a clock that was ahead when the change was written must not keep it waiting, and one that
is ahead now only leads to a change being told twice.
"""

from __future__ import annotations

import threading
from collections import deque

_LOOKS = 16
"""That are remembered within the age that is asked for: it is known so exactly."""


class OutboxAge:
    """What one process knows of one database.  Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: deque[tuple[float, int]] = deque(maxlen=4 * _LOOKS)

    def old_up_to(self, age_s: float, now: float) -> int:
        """Changes up to this revision are at least that old; 0 when that is known of none.  ``now`` is monotonic."""
        with self._lock:
            return max((newest for at, newest in self._looks if at <= now - age_s), default=0)

    def looked(self, age_s: float, now: float, newest: int) -> None:
        """The newest revision was this one, or a later one, at that time."""
        with self._lock:
            if age_s and (not self._looks or now - self._looks[-1][0] >= age_s / _LOOKS):
                self._looks.append((now, newest))
