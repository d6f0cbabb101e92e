"""The time that a controller counts its pauses in: the machine's, or one that a test moves."""

from __future__ import annotations

import time
from typing import Protocol


class Timed(Protocol):
    """What a clock that jumps tells of it, and looks at."""

    @property
    def is_resting(self) -> bool:
        """Nothing runs, and nothing will before time has passed."""

    def next_in_s(self) -> float:
        """After how many seconds something is to be done."""

    def time_changed(self) -> None:
        """The time has jumped."""


class Clock(Protocol):
    """Thread-safe."""

    def now(self) -> float:
        """Seconds; they never go back."""

    def attach(self, timed: Timed) -> None:
        """Called once by each that goes by this clock.  A clock that jumps tells it so."""


class MonotonicClock:
    """The machine's, which does not stand still while the machine does, and knows no changes of the date."""

    def now(self) -> float:
        return time.monotonic()

    def attach(self, timed: Timed) -> None:
        """It never jumps, and so has nothing to tell."""
