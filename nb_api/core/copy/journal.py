"""What a copy was as of a revision, while it moves on.  Does no I/O.

A journal begins at some moment and notes every change of the copy from then on.  Whatever revision the database is read
at later: everything that the copy had at the beginning was committed before, so the objects as of that revision are
those of the beginning, and of each that was changed since the newest state that is not above it.
"""

from __future__ import annotations

from collections.abc import Mapping

from nb_api.core.copy.differences import CachedObject
from nb_api.core.digests import NO_OBJECTS, TableDigest

_State = tuple[int, CachedObject | None]
"""A version, and what was held from then on; None: nothing."""


class ChangeJournal:
    """The owner of the copy notes in turn; any thread may read meanwhile."""

    def __init__(self, digests: Mapping[str, TableDigest]) -> None:
        """``digests`` of the copy as it is now."""
        self._digests = dict(digests)
        self._states: dict[tuple[str, str], list[_State]] = {}
        self.broken = ""
        """Why the notes do not tell the whole story; empty while they do."""

    def note(self, table: str, key: str, held: CachedObject | None, entry: CachedObject | None, version: int) -> None:
        """From ``version`` on ``entry`` is held, and until then ``held`` was."""
        states = self._states.get((table, key))
        if states is None:
            states = self._states[table, key] = [(0, held)]
        states.append((version, entry))

    def newest(self, table: str, key: str) -> int:
        """The version of the newest change of an object; 0 when there was none."""
        return self._states.get((table, key), ((0, None),))[-1][0]

    def names(self) -> set[tuple[str, str]]:
        """The objects that have changed, by table and key."""
        return set(self._states)

    def as_of(self, table: str, key: str, revision: int) -> CachedObject | None:
        """An object that has changed, as it was."""
        return next(entry for version, entry in reversed(self._states[table, key]) if version <= revision)

    def digests(self, revision: int) -> dict[str, TableDigest]:
        """Of the copy, as it was."""
        digests = dict(self._digests)
        for (table, key), states in list(self._states.items()):
            before, then = states[0][1], self.as_of(table, key, revision)
            objects, total = digests.get(table, NO_OBJECTS)
            if before is not None:
                objects, total = objects - 1, total - before.version
            if then is not None:
                objects, total = objects + 1, total + then.version
            digests[table] = TableDigest(objects, total)
        return digests
