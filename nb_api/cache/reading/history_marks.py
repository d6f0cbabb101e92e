"""Which revisions a copy asks its database for, to know that both have the same history.

A copy that follows the bus hears versions, and each is a revision of the database (`nb_api.revisions`).  All of them
are asked for, unless they are too many.  Then the time between two checks is cut into intervals, and of each interval
the newest version is kept that was heard by its end, and the one that came furthest behind a higher one, with that.

A database that loses its history gives lower numbers again.  When it is away for longer than an interval, what was
heard last before that is the newest of its interval, and lost.  When it is away for less, the first version of the
new history comes behind the newest of the lost one, and as far behind as changes were lost; what comes late in the
ordinary way, because several publish, comes from nearer.  So on a busy bus one case may go unnoticed: of a backup
made after the last check, put back within an interval, the copy hears nothing before the new history has overtaken
all that it had heard of the lost one, or in the same interval something else comes late from still further behind.
"""

from __future__ import annotations

import dataclasses
import math
import threading

from nb_api.revisions import HistoryCheck

_INTERVALS = 64
"""Between two checks."""
_HEARD_MAX = 256
"""What is kept, and so asked for at once: each costs one or two look-ups."""
_INTERVAL_S_MAX = 1.0


@dataclasses.dataclass(slots=True)
class _Heard:
    interval: int
    newest: int
    others: tuple[int, ...]


def _distance(others: tuple[int, ...]) -> int:
    """By how much a version came late."""
    return others[1] - others[0] if others else -1


class HistoryMarks:
    """Every method may be called from any thread.  ``interval_s``: how often the database is asked, 0 for seldom."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = min(interval_s / _INTERVALS or _INTERVAL_S_MAX, _INTERVAL_S_MAX)
        self._lock = threading.Lock()
        self._anchor = 0
        self._heard: list[_Heard] = []
        self._last: _Heard | None = None
        """The last of them, while it may be that of the present interval and has no more than two others."""
        self._ends = 0.0
        """When that interval does."""
        self._kept = 0
        """About how many versions that are."""
        self._told = 0
        """The highest version that was heard and told, or proved."""
        self.silent_until = -math.inf
        """Until then `heard` need not be called for changes that come in order: the next call tells of them."""

    def has_room(self, count: int) -> bool:
        """Whether so many further versions can be kept."""
        return self._kept + count <= _HEARD_MAX

    def heard(self, before: int, newest: int, others: tuple[int, ...], now: float) -> None:
        """``newest`` is the highest version so far, and ``before`` was it before; of ``others`` the first two are the
        one that came furthest behind a higher one and that, or 0."""
        with self._lock:
            interval = int(now / self._interval_s)
            last = self._last
            if before > self._told:  # it was heard in silence
                if last is None:
                    self._heard.append(_Heard(interval, before, (0, 0)))
                else:
                    last.newest = before
            self._told = newest
            if last is not None and now < self._ends and len(others) == 2:
                last.newest = newest
                if others[1] and _distance(others) >= _distance(last.others):
                    last.others = others
                return
            last = _Heard(interval, newest, others)
            self._heard.append(last)
            self._last = last if len(others) == 2 else None
            self._ends = (interval + 1) * self._interval_s
            self._kept += len(others) - 1
            if self._kept > _HEARD_MAX + _INTERVALS:
                self._thin_out()
            self.silent_until = -math.inf if self._last is None or self.has_room(1) else self._ends

    def _thin_out(self) -> None:
        width, intervals = 1, self._in_intervals(1)
        while len(intervals) > _HEARD_MAX // 4:  # the database could not be asked for long
            width *= 2
            intervals = self._in_intervals(width)
        self._heard = intervals
        self._last = None
        self._kept = 2 * len(intervals)

    def _in_intervals(self, width: int) -> list[_Heard]:
        """What is kept when that many intervals are one."""
        intervals: dict[int, _Heard] = {}
        for one in self._heard:
            before = intervals.get(one.interval // width)
            others = max(one.others[:2], before.others if before else (), key=_distance)
            intervals[one.interval // width] = dataclasses.replace(one, others=others)
        return list(intervals.values())

    def read(self, revision: int) -> None:
        """The copy has followed the feed up to this revision: it stands for all before it."""
        with self._lock:
            self._anchor = revision

    def pending(self, newest: int) -> list[int]:
        """What to ask for."""
        with self._lock:
            heard = {version for one in self._heard for version in (one.newest, *one.others)}
            return sorted((heard | {self._anchor, newest}) - {0})

    def is_unproven(self, check: HistoryCheck) -> bool:
        """Whether the last revision that was known to be right is compacted away, so that nothing can be said."""
        return 0 < self._anchor < check.compacted

    def proved(self, asked: list[int], newest: int) -> None:
        """The history has all of ``asked``, and its newest revision is this one."""
        with self._lock:
            known = frozenset((0, *asked))
            self._heard = [one for one in self._heard if not known.issuperset((one.newest, *one.others))]
            self._last = None
            self.silent_until = -math.inf
            self._kept = sum(len(one.others) - 1 for one in self._heard)
            self._told = max([self._told, *asked])
            self._anchor = newest

    def forget(self) -> None:
        """The copy begins a new history."""
        with self._lock:
            self._heard.clear()
            self._last = None
            self.silent_until = -math.inf
            self._kept = self._told = self._anchor = 0
