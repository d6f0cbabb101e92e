"""When a local cache reads the database again, and how much of it: asked for often, done rarely, never forgotten.

Sans-IO: every call takes the time.  There are three ways, each cheaper than the one before:

===========  ==========================================================  ==============================================
way          when                                                        delay
===========  ==========================================================  ==============================================
snapshot     at the start; when the changes missed are gone or too many  a random part of ``snapshot_jitter`` unless
                                                                         a caller waits for it, and not closer together
                                                                         than twice ``snapshot_jitter``
delta        events may have been lost                                   none: the bus has delayed its resync already
topics       a topic is new                                              none: a caller waits for it
===========  ==========================================================  ==============================================

Requests of one way are joined.  A snapshot covers the others, so they wait for it.  What failed is due again after a
pause that grows, and nothing is dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

from pubsub_api.runtime.backoff import Backoff


@dataclasses.dataclass(frozen=True)
class SyncSettings:
    """Seconds."""

    snapshot_jitter_s: float
    snapshot_interval_min_s: float
    retry_interval_s: float
    retry_interval_max_s: float
    verify_interval_s: float
    """0: never.  So for the next one."""
    resync_interval_s: float


@dataclasses.dataclass(frozen=True)
class SyncTask:
    """What to do now.  Without any of these it is only verified that the database has not lost its history."""

    reason: str
    is_snapshot: bool = False
    is_replacing: bool = False
    """The database has lost its history: what it says now is true, whatever the versions are."""
    is_delta: bool = False
    topics: frozenset[str] = frozenset()

    @property
    def is_reading(self) -> bool:
        return self.is_snapshot or self.is_delta or bool(self.topics)


class SyncScheduler:
    """Not thread-safe: the owner serialises calls."""

    def __init__(self, settings: SyncSettings, *, now: float, jitter: Callable[[], float]) -> None:
        self._settings = settings
        self._jitter = jitter
        self._snapshot_due = self._delta_due = self._topics_due = math.inf
        self._is_replacing = False
        self._topics: set[str] = set()
        self._reasons: dict[str, None] = {}
        self._snapshot_not_before = -math.inf
        self._backoff = Backoff(settings.retry_interval_s, settings.retry_interval_max_s, jitter=jitter)
        self._verify_due = self._periodic(settings.verify_interval_s, now)
        self._resync_due = self._periodic(settings.resync_interval_s, now)

    @property
    def is_idle(self) -> bool:
        """Nothing that was asked for waits."""
        return min(self._snapshot_due, self._delta_due, self._topics_due) == math.inf

    def next_deadline(self) -> float:
        """When `take` has something, at the latest."""
        return min(self._snapshot_due, *self._lesser_dues(), self._verify_due, self._resync_due)

    def _lesser_dues(self) -> tuple[float, float]:
        # A delta would only find again that it cannot be done.
        return (self._topics_due, self._delta_due if self._snapshot_due == math.inf else math.inf)

    def request_snapshot(
        self, reason: str, now: float, *, is_awaited: bool = False, is_replacing: bool = False
    ) -> None:
        """``is_awaited``: a caller waits for it, so it is not delayed."""
        due = now if is_awaited else max(now + self._delay(self._settings.snapshot_jitter_s), self._snapshot_not_before)
        self._snapshot_due = min(self._snapshot_due, due)
        self._is_replacing |= is_replacing
        self._reasons[reason] = None

    def request_delta(self, reason: str, now: float) -> None:
        self._delta_due = min(self._delta_due, now)
        self._reasons[reason] = None

    def request_topics(self, topics: Iterable[str], now: float) -> None:
        self._topics.update(topics)
        self._topics_due = min(self._topics_due, now)
        self._reasons["subscribed"] = None

    def forget_topic(self, topic_filter: str) -> None:
        """It is not followed any more."""
        self._topics.discard(topic_filter)
        if not self._topics:
            self._topics_due = math.inf

    def take(self, now: float) -> SyncTask | None:
        """What is due, joined.  The owner does it and says `done` or `failed`."""
        reason = ", ".join(self._reasons)
        if self._snapshot_due <= now:
            task = SyncTask(reason, True, self._is_replacing, False, frozenset(self._topics))
            self._snapshot_due = self._delta_due = self._topics_due = math.inf
            self._snapshot_not_before = now + self._settings.snapshot_interval_min_s
            self._is_replacing = False
        elif min(self._lesser_dues()) <= now:
            is_delta = self._lesser_dues()[1] <= now
            task = SyncTask(reason, is_delta=is_delta, topics=frozenset(self._topics))
            self._topics_due = math.inf
            if is_delta:
                self._delta_due = math.inf
        elif self._resync_due <= now:
            self._resync_due = self._periodic(self._settings.resync_interval_s, now)
            return SyncTask("periodic", is_delta=True)
        elif self._verify_due <= now:
            self._verify_due = self._periodic(self._settings.verify_interval_s, now)
            return SyncTask("verification")
        else:
            return None
        self._topics.clear()
        if self.is_idle:
            self._reasons.clear()
        return task

    def done(self) -> None:
        """The last task succeeded."""
        self._backoff.reset()

    def failed(self, task: SyncTask, now: float) -> float:
        """The task could not be finished: it is due again.  Returns the pause."""
        pause_s = self._backoff.next_s()
        self.put_off(task, now + pause_s)
        return pause_s

    def put_off(self, task: SyncTask, due: float) -> None:
        """The task was not begun, or could not be finished: it is due then."""
        if task.is_snapshot:
            self._snapshot_due = min(self._snapshot_due, due)
            self._is_replacing |= task.is_replacing
        if task.is_delta:
            self._delta_due = min(self._delta_due, due)
        if task.topics:
            self._topics |= task.topics
            self._topics_due = min(self._topics_due, due)
        if not task.is_reading:
            self._verify_due = min(self._verify_due, due)
        if not self.is_idle:
            self._reasons.update(dict.fromkeys(task.reason.split(", ")))

    def _delay(self, most_s: float) -> float:
        return self._jitter() * most_s

    def _periodic(self, interval_s: float, now: float) -> float:
        """The next time, by chance between three quarters and five quarters of the interval, so that a thousand caches
        started together do not stay together."""
        return now + interval_s * (0.75 + 0.5 * self._jitter()) if interval_s else math.inf
