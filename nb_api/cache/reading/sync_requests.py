"""What a local cache has asked its thread to read, how far that is, and whether the copy is complete.

`nb_api.core.copy.resync_schedule` decides when; this makes it safe for all threads of a cache, and wakes those
that wait.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

from oslo_config import cfg

from nb_api.config import GROUP
from nb_api.coordination.snapshot_limit import TURN_S
from nb_api.core.copy.resync_schedule import SyncScheduler, SyncSettings, SyncTask
from nb_api.notify_config import CACHE_GROUP, retry_interval
from pubsub_api.runtime.coroutines import AwaitableCondition

_FEED = SyncTask("feed")


class SyncRequests:
    """Every method may be called from any thread.  ``changed`` is notified when `is_read` may have changed."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.changed = AwaitableCondition()
        """Guards everything here."""
        self._scheduler = SyncScheduler(_settings(conf), now=time.monotonic(), jitter=random.Random().random)
        self.is_loaded = False
        """All objects were read once."""
        self._is_syncing = False
        self._is_loading = False
        """All objects are being read."""
        self.count = 0
        """Requests so far."""
        self._stood_in_for = -1
        """As many requests had been made when the resync source stood in for the database."""
        self._is_standing_in = False
        """It has, and the callback does not know yet."""

    # -- asking

    def need_snapshot(self, reason: str, *, is_awaited: bool, is_replacing: bool) -> None:
        now = time.monotonic()
        with self.changed:
            self.count += 1
            if self._is_loading and is_awaited and not is_replacing:  # what came since it began is all that is missing
                self._scheduler.request_delta(reason, now)
            else:
                self._scheduler.request_snapshot(reason, now, is_awaited=is_awaited, is_replacing=is_replacing)

    def need_delta(self, reason: str) -> None:
        with self.changed:
            self.count += 1
            self._scheduler.request_delta(reason, time.monotonic())

    def need_topics(self, topics: Iterable[str]) -> None:
        with self.changed:
            self.count += 1
            self._scheduler.request_topics(topics, time.monotonic())

    def forget_topic(self, topic_filter: str) -> None:
        with self.changed:
            self._scheduler.forget_topic(topic_filter)

    # -- the state

    def is_read(self) -> bool:
        """Everything was read from the database that had to be."""
        with self.changed:
            return self.is_loaded and self._scheduler.is_idle and not self._is_syncing

    @property
    def is_provisional(self) -> bool:
        """The resync source has stood in for the database, and nothing was missed since."""
        return self._stood_in_for == self.count

    def is_stood_in_for(self) -> bool:
        """The same, and it was told."""
        with self.changed:
            return self.is_provisional and not self._is_standing_in

    # -- the thread that reads

    def take(self, due: float) -> tuple[SyncTask | None, float]:
        """What to do now, and how long there is nothing to do, at the most until ``due``.  `ended` has to follow."""
        with self.changed:
            task = self._scheduler.take(time.monotonic())
            self._is_syncing = task is not None and task.is_reading
            self._is_loading = task is not None and task.is_snapshot
            return task, max(min(self._scheduler.next_deadline(), due) - time.monotonic(), 0.0)

    def ended(self) -> None:
        with self.changed:
            self._is_syncing = self._is_loading = False
            self.changed.notify_all()

    def done(self, task: SyncTask | None = None) -> None:
        """It succeeded; None: following the feed did."""
        with self.changed:
            self._scheduler.done()
            if task is not None:
                self.is_loaded |= task.is_snapshot
                if task.is_reading:
                    self._stood_in_for = -1

    def failed(self, task: SyncTask | None) -> float:
        """It is due again.  Returns the pause."""
        with self.changed:
            return self._scheduler.failed(task or _FEED, time.monotonic())

    def put_off(self, task: SyncTask | None) -> float:
        """It was not its turn, and is due again.  Returns when to ask for the turn again, unless woken before."""
        if task is not None:
            with self.changed:
                self._scheduler.put_off(task, time.monotonic())
        return TURN_S

    def standing_in(self, requests: int) -> None:
        """The source stands in for the database, for what was asked for then; `stood_in` follows when that is told."""
        with self.changed:
            self._stood_in_for, self._is_standing_in = requests, True

    def stood_in(self) -> None:
        with self.changed:
            self._is_standing_in = False
            self.changed.notify_all()


def _settings(conf: cfg.ConfigOpts) -> SyncSettings:
    options = conf[CACHE_GROUP]
    return SyncSettings(
        snapshot_jitter_s=options.snapshot_jitter,
        snapshot_interval_min_s=2 * options.snapshot_jitter,
        retry_interval_s=retry_interval(conf),
        retry_interval_max_s=conf[GROUP].retry_interval_max,
        verify_interval_s=options.verify_interval,
        resync_interval_s=options.resync_interval,
    )
