"""What is known of objects that are gone, until a run has dealt with it.  Does no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from nb_api.controller.core.keys import Key
from nb_api.core.copy.differences import Deleted

ELSEWHERE_MAX = 10_000
"""Ends of keys of other processes: none tells whether they have dealt with them.  The oldest are forgotten first."""


class ObjectEnds:
    """Not thread-safe.

    Ends of keys on which another process works are remembered as well, the newest `ELSEWHERE_MAX`: that process may die
    before it has dealt with them, and its successor must not take a deleted object for one that never was.
    """

    def __init__(self) -> None:
        self._known: dict[Key, Deleted] = {}
        self._elsewhere: OrderedDict[Key, Deleted] = OrderedDict()
        self.forgotten = 0
        """Ends of keys of other processes that were too many to be remembered."""

    def tell(self, key: Key, end: Deleted | None, *, is_elsewhere: bool) -> None:
        """The object has ended; None: it is there."""
        if end is not None and is_elsewhere:
            self._remember(key, end)
        elif end is not None:
            self._known[key] = end
        elif self._known or self._elsewhere:
            self._known.pop(key, None)
            self._elsewhere.pop(key, None)

    def of(self, key: Key) -> Deleted | None:
        return self._known.get(key)

    def found(self, key: Key, version: int) -> None:
        """The object is there with this version: an end of a former one counts no longer."""
        known = self._known.get(key)
        if known is not None and known.object.version < version:
            del self._known[key]

    def settle(self, key: Key, version: int | None) -> None:
        """A run has dealt with the end of the object of this version, or of the one that was known when None."""
        end = self._known.get(key)
        if end is not None and version in (None, end.object.version):
            del self._known[key]

    def take_over(self, is_gained: Callable[[Key], bool]) -> list[Key]:
        """The keys that have become ours, of those that have ended elsewhere."""
        keys = [key for key in self._elsewhere if is_gained(key)]
        for key in keys:
            self._known[key] = self._elsewhere.pop(key)
        return keys

    def hand_over(self, is_lost: Callable[[Key], bool]) -> None:
        """Another process has these keys now."""
        for key in [key for key in self._known if is_lost(key)]:
            self._remember(key, self._known.pop(key))

    def _remember(self, key: Key, end: Deleted) -> None:
        self._elsewhere.pop(key, None)
        self._elsewhere[key] = end
        if len(self._elsewhere) > ELSEWHERE_MAX:
            self._elsewhere.popitem(last=False)
            self.forgotten += 1
