"""Applying what a publisher has told: to the copy and its indexes, and noting which versions were heard."""

from __future__ import annotations

from collections.abc import Sequence

from nb_api.cache.index import CacheIndexes
from nb_api.cache.reading.history_marks import HistoryMarks
from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import Difference
from pubsub_api import Event


class LiveChanges:
    """Used in turn."""

    __slots__ = ("_core", "_indexes", "_marks")

    def __init__(self, core: CacheCore, indexes: CacheIndexes, marks: HistoryMarks) -> None:
        self._core = core
        self._indexes = indexes
        self._marks = marks

    def apply(self, events: Sequence[Event], now: float) -> list[Difference]:
        """The events of a frame.  The ordinary case is a lone update, in the order in which the database changed."""
        core, marks = self._core, self._marks
        before = core.newest
        change = core.update(events[0]) if len(events) == 1 else None
        if change is None:
            return self._apply(events, before, now)
        if now >= marks.silent_until:
            marks.heard(before, core.newest, (0, 0, core.newest) if marks.has_room(1) else (0, 0), now)
        return [change]

    def _apply(self, events: Sequence[Event], before: int, now: float) -> list[Difference]:
        core = self._core
        core.heard = [] if self._marks.has_room(len(events)) else None
        differences = self._indexes.apply(events)
        self._marks.heard(before, core.newest, (core.late, core.peak, *(core.heard or ())), now)
        core.late = core.peak = 0
        core.heard = None
        return differences
