"""Which key is worked on next.  Sans-IO: every call takes the time, and nothing happens between calls.

Theory of operation
-------------------
A key that has to be worked on is *wanted*.  It is in one of these states, or unknown:

READY    it waits for a worker, in one of two lanes: changes, and the bulk of a first or complete reading.  Changes go
         first, but of ``BULK_SHARE`` keys taken one is of the bulk, so that neither waits for ever.
RUNNING  a worker has it.  No other gets it.  Changes that come meanwhile are merged into one more run.
WAITING  it becomes READY when its time comes: after a failure, when the last run asked for it, or because its last run
         ended less than ``interval_min_s`` ago.
RESTING  nothing is wanted of it; remembered only because of that interval.

A key that changes again before that interval is over has the double one after its next run, and so on up to
``INTERVAL_GROWTH_MAX`` times the first; one quiet interval, and it is the first again.  So a burst of changes is a few
runs, and a run that changes its own key does not make a busy loop.

A change makes a key READY at once, or when that interval is over, also when it WAITs for something later: the earliest
time wins, and the later one is forgotten.  A success forgets the failures.  A key of which nothing is wanted leaves no
trace after the interval.  Times that are put off stay in the heap until they come up or are too many.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from nb_api.controller.core.keys import Key, RetryPauses

BULK_SHARE = 4
"""One of so many keys is taken from the bulk while there are changes, too."""
INTERVAL_GROWTH_MAX = 10
"""How many times longer the interval of a key becomes that changes all the time."""
_TIMES_MIN = 64
"""Fewer times than this are not worth tidying."""

_ROUNDING = 1e-6
"""Of sums of times."""

_READY, _RUNNING, _WAITING, _RESTING = range(4)


@dataclasses.dataclass(frozen=True)
class QueueSettings:
    retries: RetryPauses = dataclasses.field(default_factory=RetryPauses)
    interval_min_s: float = 0.1
    """Between the end of a run of a key and the begin of its next; longer for one that changes all the time."""
    runs_per_s_max: float = math.inf
    """Of all keys together; as many may begin at once after a quiet second."""


@dataclasses.dataclass
class QueueCounters:
    runs: int = 0
    """How often a key was given to a worker."""
    retries: int = 0
    """Of these, runs after a failure."""
    failures: int = 0
    given_up: int = 0
    """Failures after which a key was left alone until it changes."""
    requeues: int = 0
    """Runs that asked for another one after a time."""
    merged: int = 0
    """Changes of a key that was wanted already, so that they caused no run of their own."""


class Taken(NamedTuple):
    """A key for a worker."""

    key: Key
    attempt: int
    """1, and one more for each failure before."""
    waited_s: float


class _Entry:
    __slots__ = (
        "again", "due", "failures", "growth", "is_bulk", "is_early", "is_later", "key", "rest_until", "since", "state",
        "time",
    )  # fmt: skip

    def __init__(self, key: Key, now: float) -> None:
        self.key = key
        self.state = _RESTING
        self.failures = 0
        self.due = math.inf
        """When it becomes READY."""
        self.time = 0
        """The number of that in the heap, which may have older ones."""
        self.is_later = False
        """The time was asked for: neither a failure nor a change."""
        self.is_bulk = False
        self.again = False
        """Wanted again while it is RUNNING."""
        self.since = now
        """When it became wanted."""
        self.rest_until = -math.inf
        self.is_early = False
        """It changed before it had rested."""
        self.growth = 1
        """How many times longer its interval is."""


class WorkQueue:
    """Not thread-safe: the owner serialises calls.  ``jitter`` gives numbers from 0 to 1.  Time never goes back.

    Gives nothing out before `open`, nor after `close`; what is wanted before `open` is kept.
    """

    def __init__(self, settings: QueueSettings, *, jitter: Callable[[], float]) -> None:
        self._settings = settings
        self._jitter = jitter
        self._entries: dict[Key, _Entry] = {}
        self._changed: deque[_Entry] = deque()
        self._bulk: deque[_Entry] = deque()
        self._turn = 0
        self._times: list[tuple[float, int, _Entry]] = []
        self._times_made = 0
        self._resting: deque[tuple[float, _Entry]] = deque()
        self._states = [0, 0, 0, 0]
        """How many keys are in each state."""
        self._later = 0
        self._tokens = self._tokens_max = max(settings.runs_per_s_max, 1.0)
        self._refilled_at = -math.inf
        self._is_open = self._is_closed = False
        self.counters = QueueCounters()

    # -- what is wanted

    def add(self, key: Key, now: float, *, is_bulk: bool = False) -> None:
        """The key has changed, or may have: it is to be worked on as soon as it may."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, now)
            self._states[_RESTING] += 1
        state = entry.state
        if state == _RUNNING:
            self.counters.merged += entry.again
            entry.since = entry.since if entry.again else now
            entry.is_bulk = is_bulk and (entry.is_bulk or not entry.again)
            entry.again = entry.is_early = True
            self._set_due(entry, math.inf)
        elif state == _READY:
            self.counters.merged += 1
            if entry.is_bulk and not is_bulk:
                entry.is_bulk = False
                self._changed.append(entry)
        else:
            is_new = state == _RESTING or entry.is_later or entry.failures > 0
            self.counters.merged += not is_new
            entry.since = now if is_new else entry.since
            entry.is_bulk = is_bulk and (is_new or entry.is_bulk)
            entry.is_early |= now < entry.rest_until
            self._want(entry, now, now)

    def add_after(self, key: Key, after_s: float, now: float) -> None:
        """The key is to be worked on at that time, unless that happens before for another reason."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, now)
            self._states[_RESTING] += 1
        if entry.state == _RUNNING:
            if not entry.again and now + after_s < entry.due:
                self._set_due(entry, now + after_s)
        elif entry.state == _RESTING:
            self._want(entry, now + after_s, now, is_later=True)
        elif entry.state == _WAITING and now + after_s < entry.due:
            # A failed attempt stays one: it is only tried earlier.
            self._want(entry, now + after_s, now, is_later=entry.is_later)

    # -- workers

    def take(self, now: float) -> Taken | None:
        """A key that no other worker has; None when there is none now."""
        self._advance(now)
        if not self._is_open or self._is_closed or not self._states[_READY] or not self._has_token(now):
            return None
        entry = self._next_ready()
        self._set_state(entry, _RUNNING)
        entry.again = False
        self._tokens -= 1.0
        self.counters.runs += 1
        self.counters.retries += entry.failures > 0
        return Taken(entry.key, entry.failures + 1, now - entry.since)

    def done(self, key: Key, now: float, *, again_after_s: float | None = None) -> None:
        """The run has succeeded."""
        entry = self._entries[key]
        entry.failures = 0
        self.counters.requeues += again_after_s is not None
        self._end(entry, now, math.inf if again_after_s is None else now + again_after_s, is_later=True)

    def fail(self, key: Key, now: float) -> float:
        """The run has failed.  Returns after how many seconds it is tried again, unless a change causes that before."""
        entry = self._entries[key]
        retries = self._settings.retries
        pause_s = min(retries.first_s * 2.0 ** min(entry.failures, 64), retries.max_s)
        pause_s *= 0.5 + 0.5 * self._jitter()
        entry.failures += 1
        self.counters.failures += 1
        self._end(entry, now, now + pause_s, is_later=False)
        return pause_s

    def give_up(self, key: Key, now: float) -> None:
        """The run has failed, and another makes no sense before the key changes."""
        entry = self._entries[key]
        entry.failures = 0
        self.counters.failures += 1
        self.counters.given_up += 1
        self._end(entry, now, math.inf, is_later=True)

    def put_back(self, key: Key, now: float) -> None:
        """The run has not begun, and does not count.  The key WAITs until `resume`, or until it is wanted once more."""
        entry = self._entries[key]
        self._tokens = min(self._tokens_max, self._tokens + 1.0)
        self.counters.runs -= 1
        self.counters.retries -= entry.failures > 0
        if entry.again:
            entry.again = False
            self._want(entry, now, now)
        else:
            self._set_state(entry, _WAITING)

    def resume(self, key: Key, now: float) -> bool:
        """What was put back may run.  False when it was wanted meanwhile, and has begun already."""
        entry = self._entries.get(key)
        if entry is not None and entry.state == _WAITING:
            self._want(entry, now, now)
        return entry is not None and entry.state in (_WAITING, _READY)

    def drop(self, is_dropped: Callable[[Key], bool]) -> None:
        """Forget these keys, but those that are RUNNING, whatever is wanted of them."""
        gone = [one for one in self._entries.values() if one.state != _RUNNING and is_dropped(one.key)]
        for entry in gone:
            self._set_due(entry, math.inf)
            self._set_state(entry, _RESTING)
            entry.rest_until = -math.inf  # it may still stand among those that rest
            self._forget(entry)

    def merge(self, key: Key) -> None:
        """The run begins only now, so that it is the one for what was wanted since the key was taken."""
        entry = self._entries[key]
        self.counters.merged += entry.again
        entry.again = False

    def _end(self, entry: _Entry, now: float, due: float, *, is_later: bool) -> None:
        asked = entry.due  # by add_after, while it ran
        self._set_due(entry, math.inf)
        interval_s = self._settings.interval_min_s
        entry.growth = min(2 * entry.growth, INTERVAL_GROWTH_MAX) if entry.is_early else 1
        entry.is_early = False
        entry.rest_until = now + interval_s * entry.growth
        if entry.again:
            entry.again = False
            self._want(entry, now, now)
        elif min(due, asked) < math.inf:
            entry.is_bulk = False
            self._want(entry, min(due, asked), now, is_later=is_later)
        elif interval_s > 0:
            self._set_state(entry, _RESTING)
            self._resting.append((entry.rest_until, entry))
        else:
            self._forget(entry)

    # -- the owner

    def open(self) -> None:
        """The copy is complete: work may begin."""
        self._is_open = True

    def close(self) -> None:
        """Give nothing out any more.  Keys that are RUNNING may still be reported."""
        self._is_closed = True

    @property
    def is_open(self) -> bool:
        return self._is_open

    def next_at(self, now: float) -> float:
        """When `take` has something, if nothing else is called before: not after ``now`` when it has something now."""
        if not self._is_open or self._is_closed:
            return math.inf
        if self._states[_READY]:
            return now if self._has_token(now) else now + (1.0 - self._tokens) / self._settings.runs_per_s_max
        return self._times[0][0] if self._times else math.inf

    @property
    def ready(self) -> int:
        """Keys that wait for a worker."""
        return self._states[_READY]

    @property
    def running(self) -> int:
        return self._states[_RUNNING]

    @property
    def waiting(self) -> int:
        """Keys whose time has not come."""
        return self._states[_WAITING]

    @property
    def is_idle(self) -> bool:
        """Nothing is wanted now, and no failure is to be tried again: keys that asked for a time do not count."""
        return not self._states[_READY] and not self._states[_RUNNING] and self._states[_WAITING] == self._later

    def oldest_ready_s(self, now: float) -> float:
        """How long the longest waits for a worker, about."""
        firsts = (next((one for one in lane if _is_in(one, lane is self._bulk)), None)
                  for lane in (self._changed, self._bulk))  # fmt: skip
        return max((now - entry.since for entry in firsts if entry is not None), default=0.0)

    def tidy(self, now: float) -> int:
        """Forget what need not be remembered; returns of how many keys something is known still."""
        self._advance(now)
        return len(self._entries)

    # -- inside

    def _want(self, entry: _Entry, due: float, now: float, *, is_later: bool = False) -> None:
        """READY at ``due``, and not before the key has rested."""
        due = max(due, entry.rest_until)
        if due <= now:
            self._set_due(entry, math.inf)
            self._make_ready(entry)
            return
        self._set_state(entry, _WAITING)
        self._later += is_later - entry.is_later
        entry.is_later = is_later
        self._set_due(entry, due)

    def _make_ready(self, entry: _Entry) -> None:
        self._set_state(entry, _READY)
        (self._bulk if entry.is_bulk else self._changed).append(entry)

    def _set_state(self, entry: _Entry, state: int) -> None:
        if entry.is_later and state != _WAITING:
            entry.is_later = False
            self._later -= 1
        self._states[entry.state] -= 1
        self._states[state] += 1
        entry.state = state

    def _set_due(self, entry: _Entry, due: float) -> None:
        if entry.due == due:
            return
        entry.due = due
        self._times_made += 1
        entry.time = self._times_made
        if due < math.inf:
            heapq.heappush(self._times, (due, entry.time, entry))
            if len(self._times) > _TIMES_MIN + 2 * (self._states[_WAITING] + self._states[_RUNNING]):
                self._times = [one for one in self._times if one[2].time == one[1]]
                heapq.heapify(self._times)

    def _advance(self, now: float) -> None:
        times = self._times
        while times and times[0][0] <= now:
            due, number, entry = heapq.heappop(times)
            if entry.time != number:
                continue  # put off, or run since
            entry.due = math.inf
            if entry.state == _RUNNING:
                entry.again, entry.since = True, due
            else:
                if entry.is_later or entry.failures:
                    entry.since = due
                self._make_ready(entry)
        resting = self._resting
        while resting and resting[0][0] <= now:
            until, entry = resting.popleft()
            if entry.state == _RESTING and entry.rest_until == until:
                self._forget(entry)

    def _next_ready(self) -> _Entry:
        """Call only when one is READY."""
        while True:
            is_bulk = not self._changed or (self._turn % BULK_SHARE == BULK_SHARE - 1 and bool(self._bulk))
            entry = (self._bulk if is_bulk else self._changed).popleft()
            if _is_in(entry, is_bulk):
                self._turn += 1
                return entry

    def _has_token(self, now: float) -> bool:
        rate = self._settings.runs_per_s_max
        if rate == math.inf:
            self._tokens = math.inf
            return True
        if now > self._refilled_at:
            gained = math.inf if self._refilled_at == -math.inf else (now - self._refilled_at) * rate
            self._tokens = min(self._tokens_max, self._tokens + gained)
            self._refilled_at = now
        return self._tokens >= 1.0 - _ROUNDING

    def _forget(self, entry: _Entry) -> None:
        self._states[entry.state] -= 1
        del self._entries[entry.key]


def _is_in(entry: _Entry, is_bulk: bool) -> bool:
    """Whether an entry that stands in a lane belongs there: it may have been moved, or taken from the other one."""
    return entry.state == _READY and entry.is_bulk == is_bulk
