"""Virtual time, the only source of random numbers, and the trace of a run.

Everything in a simulation happens because it was scheduled here, and every random number comes from the one generator
here: so the seed decides the whole run.
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
    """An oracle found a broken guarantee.  The runner adds the seed and the trace."""


class World:
    """The virtual clock, the random numbers and the trace."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._trace: list[tuple[Any, ...]] = []

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` after ``delay_s``.  Actions of the same time are called in the order of their scheduling."""
        self.at(self.now + delay_s, action, *arguments)

    def at(self, due: float, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (due, self._count, action, arguments))

    def run_until(self, end: float) -> None:
        """Call all actions that are due until ``end``.  Raises what they raise."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(agenda)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise Violation(f"no end after {STEPS_MAX} steps")
            action(*arguments)
        self.now = end

    # -- random numbers

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random.random()

    # -- the trace

    def note(self, node: str, what: str, *details: Any) -> None:
        """Add a line to the trace.  It is formatted only when it is read."""
        self._trace.append((self.now, node, what, *details))

    def digest(self) -> str:
        """A hash of the whole trace: equal for equal runs."""
        return hashlib.blake2b(repr(self._trace).encode(), digest_size=16).hexdigest()

    def lines(self, count: int) -> list[str]:
        """The last lines of the trace, readable."""
        return [
            f"{time_s:10.4f}  {node:<14} {what} {' '.join(map(str, details))}".rstrip()
            for time_s, node, what, *details in self._trace[-count:]
        ]
