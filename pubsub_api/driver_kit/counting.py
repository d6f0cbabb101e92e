"""Numbers that a driver keeps of what it dropped, refused or did again.  For drivers to use.

They are what ``counters`` of the two ends returns, and so part of the statistics and metrics of the session.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping


class Tally:
    """Named numbers that only grow.  Thread-safe."""

    __slots__ = ("_counts", "_lock")

    def __init__(self, *names: str) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(names, 0)

    def add(self, name: str, count: int = 1) -> None:
        """Count something.  Raises KeyError when the name is not among those that the tally was made with."""
        with self._lock:
            self._counts[name] += count

    def counts(self) -> dict[str, int]:
        """All of them as they are now.  Takes no lock, which after a fork might never be free again."""
        return self._counts.copy()


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of numbers that have the same name."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return sums
