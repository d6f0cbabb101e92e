"""Numbers that a driver keeps.

`Tally` counts what it dropped, refused or repeated: ``counters`` of both ends return it, so it is a part of the
statistics and metrics of the session.  `UseCounts` counts how many filters need a name.
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
        """Add to a number.  Raises KeyError for a name that the constructor was not given."""
        with self._lock:
            self._counts[name] += count

    def counts(self) -> dict[str, int]:
        """Name -> number, now.  Takes no lock: in a forked child it might never be released."""
        return self._counts.copy()


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Name -> the sum of all numbers of that name."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return sums


class UseCounts(Generic[_Name]):
    """How many filters need each name that the transport subscribes to: overlapping filters may need the same name.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._counts: Counter[_Name] = Counter()

    def __iter__(self) -> Iterator[_Name]:
        """The names that are needed."""
        return iter(self._counts)

    def add(self, names: Iterable[_Name]) -> list[_Name]:
        """Count one more use of each name.  Returns the names that were not needed before."""
        fresh = []
        for name in names:
            self._counts[name] += 1
            if self._counts[name] == 1:
                fresh.append(name)
        return fresh

    def remove(self, names: Iterable[_Name]) -> list[_Name]:
        """Count one use less of each name.  Returns the names that are not needed any more."""
        unused = []
        for name in names:
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]
                unused.append(name)
        return unused

    def forget(self, name: _Name) -> None:
        """Remove the name, however often it is used."""
        self._counts.pop(name, None)
