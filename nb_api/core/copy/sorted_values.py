"""Values in order, for an index that is asked for ranges.  Does no I/O.

They are kept in portions, so that adding and removing one moves a few thousand others at the most, not a million.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

_PORTION = 1000
_ORDERED = frozenset({str, int, bool, bytes})
"""Types whose values have an order, all of them."""


def check_sortable(value: Any) -> None:
    """Raises TypeError for what has no place in any order: sets, None, floats that are no number, tuples with these."""
    if type(value) in _ORDERED:
        return
    if isinstance(value, tuple):
        for part in value:
            check_sortable(part)
    elif value != value or isinstance(value, AbstractSet):  # noqa: PLR0124  as a float that is no number
        raise TypeError(f"{value!r} has no place in an order")
    else:
        value < value  # noqa: B015, PLR0124  raises when it has no order at all


class SortedValues:
    """Not thread-safe.  Each value is there once, and less than the one after it, as far as they do not change."""

    __slots__ = ("_lasts", "_portions")

    def __init__(self) -> None:
        self._portions: list[list[Any]] = []
        self._lasts: list[Any] = []
        """The last value of each portion."""

    def add(self, value: Any) -> None:
        """A value that is not there.  Raises TypeError, and changes nothing then, when the order has no place for it:
        between its neighbours is the only one, so each of them is asked."""
        check_sortable(value)
        lasts = self._lasts
        if not lasts:
            self._portions.append([value])
            lasts.append(value)
            return
        position = min(bisect_left(lasts, value), len(lasts) - 1)
        portion = self._portions[position]
        place = bisect_left(portion, value)
        lower = portion[place - 1 : place] if place else lasts[position - 1 : position] if position else []
        if not all(one < value for one in lower) or not all(value < one for one in portion[place : place + 1]):
            raise TypeError(f"{value!r} is neither less nor greater than another value")
        portion.insert(place, value)
        lasts[position] = portion[-1]
        if len(portion) > 2 * _PORTION:
            self._portions[position : position + 1] = portion[:_PORTION], portion[_PORTION:]
            lasts[position : position + 1] = portion[_PORTION - 1], portion[-1]

    def remove(self, value: Any) -> None:
        """A value that is there, whatever has become of its order.

        Raises LookupError when it is not, and what comparing raises.
        """
        position, place = self._find(value)
        portion = self._portions[position]
        del portion[place]
        if portion:
            self._lasts[position] = portion[-1]
        else:
            del self._portions[position], self._lasts[position]

    def _find(self, value: Any) -> tuple[int, int]:
        try:
            position = bisect_left(self._lasts, value)
            place = bisect_left(self._portions[position], value)
            if self._portions[position][place] == value:
                return position, place
        except Exception:  # noqa: BLE001  of a type of the program: then the order is of no help
            pass
        for position, portion in enumerate(self._portions):
            for place, one in enumerate(portion):
                if one is value or one == value:
                    return position, place
        raise LookupError(f"{value!r} is not there")

    def between(self, low: Any, high: Any) -> Iterator[Any]:
        """The values from ``low`` on and below ``high``, in order; None: without that bound.

        Raises TypeError when a bound cannot be compared with them, or has no place in any order.
        """
        for bound in (low, high):
            if bound is not None:
                check_sortable(bound)
        position = 0 if low is None else bisect_left(self._lasts, low)
        start = 0 if low is None or position == len(self._lasts) else bisect_left(self._portions[position], low)
        for portion in self._portions[position:]:
            if high is not None and portion[-1] >= high:
                yield from portion[start : bisect_left(portion, high)]
                return
            yield from portion[start:]
            start = 0
