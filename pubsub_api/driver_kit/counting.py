"""Numbers that a driver keeps: of what it dropped, refused or did again, and of how often something is needed.

The former are what ``counters`` of the two ends returns, and so part of the statistics and metrics of the session.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

_Name = TypeVar("_Name", bound=Hashable)


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


class UseCounts(Generic[_Name]):
    """How many filters need each name that the transport subscribes to: filters that overlap may need the same.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._counts: Counter[_Name] = Counter()

    def __iter__(self) -> Iterator[_Name]:
        """Those that are needed."""
        return iter(self._counts)

    def add(self, names: Iterable[_Name]) -> list[_Name]:
        """Count a use of each; returns those that were not needed before."""
        fresh = []
        for name in names:
            self._counts[name] += 1
            if self._counts[name] == 1:
                fresh.append(name)
        return fresh

    def remove(self, names: Iterable[_Name]) -> list[_Name]:
        """Count off a use of each; returns those that are not needed any more."""
        unused = []
        for name in names:
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]
                unused.append(name)
        return unused

    def forget(self, name: _Name) -> None:
        """It has no use any more, whatever was counted."""
        self._counts.pop(name, None)
