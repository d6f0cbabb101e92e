"""Virtual time, the one source of chance, and the record of what happened.

Everything in a simulation happens because something was scheduled here, and everything that is left to chance is drawn
from the one generator here: so a seed decides the whole run.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from typing import Any

STEPS_MAX = 2_000_000


class SimulationFailure(AssertionError):
    """A guarantee was broken.  ``str()`` names the seed that replays it and shows the last lines of the trace."""

    def __init__(self, seed: int, what: str, trace: list[str], profile: str = "") -> None:
        self.seed = seed
        self.what = what
        self.trace = trace
        self.profile = profile
        super().__init__(f"seed {seed}, profile {profile or 'unknown'}: {what}")

    def __str__(self) -> str:
        return "\n".join((f"seed {self.seed}, profile {self.profile}: {self.what}", *self.trace))


class Violation(Exception):
    """What an oracle raises; the runner adds the seed and the trace."""


class World:
    """The clock, the dice and the trace."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._trace: list[tuple[Any, ...]] = []

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` when ``delay_s`` have passed.  What is scheduled for one moment happens in that order."""
        self.at(self.now + delay_s, action, *arguments)

    def at(self, moment: float, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (moment, self._count, action, arguments))

    def run_until(self, end: float) -> None:
        """Let everything happen that is due up to ``end``.  Raises what the actions raise."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(agenda)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise Violation(f"no end after {STEPS_MAX} steps")
            action(*arguments)
        self.now = end

    # -- chance

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random.random()

    # -- the record

    def note(self, who: str, what: str, *details: Any) -> None:
        """Remember a line of the trace; it is only formatted when it is read."""
        self._trace.append((self.now, who, what, *details))

    def digest(self) -> str:
        """A hash of the whole trace: equal for equal runs."""
        return hashlib.blake2b(repr(self._trace).encode(), digest_size=16).hexdigest()

    def lines(self, count: int) -> list[str]:
        """The last lines of the trace, readable."""
        return [
            f"{moment:10.4f}  {who:<14} {what} {' '.join(map(str, details))}".rstrip()
            for moment, who, what, *details in self._trace[-count:]
        ]
