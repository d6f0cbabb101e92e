"""Values in order, for an index that is asked for ranges.  Does no I/O.

They are kept in portions, so that adding and removing one moves a few thousand others at the most, not a million.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

_PORTION = 1000


class SortedValues:
    """Not thread-safe.  Values are comparable with each other, and each is there once."""

    __slots__ = ("_lasts", "_portions")

    def __init__(self) -> None:
        self._portions: list[list[Any]] = []
        self._lasts: list[Any] = []
        """The last value of each portion."""

    def add(self, value: Any) -> None:
        """A value that is not there.  Raises TypeError, and changes nothing then, when it cannot be compared."""
        if value != value:  # noqa: PLR0124  as a float that is no number
            raise TypeError(f"{value!r} has no place in an order")
        lasts = self._lasts
        if not lasts:
            value < value  # noqa: B015, PLR0124  raises when it has no order at all
            self._portions.append([value])
            lasts.append(value)
            return
        position = min(bisect_left(lasts, value), len(lasts) - 1)
        portion = self._portions[position]
        insort(portion, value)
        lasts[position] = portion[-1]
        if len(portion) > 2 * _PORTION:
            self._portions[position : position + 1] = portion[:_PORTION], portion[_PORTION:]
            lasts[position : position + 1] = portion[_PORTION - 1], portion[-1]

    def remove(self, value: Any) -> None:
        """A value that is there."""
        position = bisect_left(self._lasts, value)
        portion = self._portions[position]
        del portion[bisect_left(portion, value)]
        if portion:
            self._lasts[position] = portion[-1]
        else:
            del self._portions[position], self._lasts[position]

    def between(self, low: Any, high: Any) -> Iterator[Any]:
        """The values from ``low`` on and below ``high``, in order; None: without that bound.

        Raises TypeError when a bound cannot be compared with them.
        """
        position = 0 if low is None else bisect_left(self._lasts, low)
        start = 0 if low is None or position == len(self._lasts) else bisect_left(self._portions[position], low)
        for portion in self._portions[position:]:
            if high is not None and portion[-1] >= high:
                yield from portion[start : bisect_left(portion, high)]
                return
            yield from portion[start:]
            start = 0
