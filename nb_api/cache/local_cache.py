"""A controller's copy of the objects it is concerned with, kept equal to the database.

Live changes come from the bus or from the database's feed (`nb_api.cache.change_source`) and are applied by version
(`nb_api.core.cache`).  One thread reads the database when that is needed: at the start, for a topic that is new, after
loss (`nb_api.core.resync_schedule`).  Reading never holds up live changes, since their order does not matter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from oslo_config import cfg

from nb_api import notify_config
from nb_api.api import NbApi
from nb_api.cache.callbacks import CallbackQueue, OnChanges
from nb_api.cache.change_queue import ChangeQueue
from nb_api.cache.change_source import BusSource, ChangeSource, FeedSource
from nb_api.cache.history_marks import HistoryMarks
from nb_api.cache.snapshot_source import SnapshotSource, build_source
from nb_api.cache.sync import EVERYTHING, CacheSync, SyncCounters
from nb_api.config import GROUP
from nb_api.core.cache import CacheCore
from nb_api.core.checks import TopicSelection
from nb_api.core.differences import CacheChange, Difference, Resynced
from nb_api.core.held_objects import CacheCounters
from nb_api.core.resync_schedule import SyncScheduler, SyncSettings, SyncTask
from nb_api.db_api import Change, DbObject
from nb_api.errors import DbUnavailable, ObjectNotFound
from nb_api.notify_config import CACHE_GROUP, DELTA_PORTION
from pubsub_api import Event, SubscriberStatistics
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import Closed, Forked, HeliographError, UsageError, WaitTimeout
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

_TURN_S = 0.1
_FEED = SyncTask("feed")


@dataclasses.dataclass(frozen=True)
class LocalCacheStatistics:
    """Counters since the cache was made."""

    objects: int
    tombstones: int
    position: int
    """Up to this revision of the database everything is reflected, and much after it."""
    is_synced: bool
    is_provisional: bool
    """The database is away, and the resync source has stood in for it."""
    news: CacheCounters
    syncs: SyncCounters
    overruns: int
    """How often changes were not told one by one because they were not taken in time."""
    callback_errors: int
    """How often the callback raised.  It is called again with the same changes."""
    untold: int
    """Changes that the callback has not taken yet."""
    bus: SubscriberStatistics | None
    """Of the subscriber; None when the database's feed is followed."""


class LocalCache(Closeable):
    """A copy of the objects of ``tables`` (None: all) whose topic any of the filters ``topics`` selects (None: all).

    ``on_changes`` is called with what changed, in order, one call at a time; it may read the cache and must not wait
    for it.  When it raises, it is called again with the same changes and those that came since
    (`nb_api.cache.callbacks`). Without it, iterate over `changes`.  Every method may be called from any thread.  Does
    not live on in a forked child: make a new one there.  Close it before its `NbApi`.
    """

    def __init__(
        self,
        nb: NbApi,
        *,
        tables: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        on_changes: OnChanges | None = None,
        addresses: Sequence[str] | None = None,
        resync_source: str | SnapshotSource | None = None,
    ) -> None:
        """Begins at once and returns at once.  ``addresses`` replaces the publishers' addresses of the configuration.

        ``resync_source`` is where a full resync reads the objects, by name or as it is; None takes
        ``[local_cache] resync_source``.  One that is given is closed with the cache.

        Raises InvalidObject, InvalidTopic, InvalidConfig, and what loading a source raises.
        """
        TopicSelection(tables, topics)  # refuses what can never work
        options = nb.conf[CACHE_GROUP]
        self._db = nb.db
        self._filters = [EVERYTHING] if topics is None else list(topics)
        self._core = CacheCore(tables, self._filters, tombstones_max=notify_config.TOMBSTONES_MAX)
        self._turn = threading.RLock()
        """Held while the copy changes and is told of; never while the database is read.  A callback may add and remove
        topics."""
        self._callbacks = on_changes and CallbackQueue(
            on_changes,
            size_max=options.changes_queue_max,
            pause_s=nb.conf[GROUP].retry_interval,
            pause_max_s=nb.conf[GROUP].retry_interval_max,
            want_differences=self._core.want_differences,
        )
        self._queue = ChangeQueue(options.changes_queue_max, self._core.want_differences, self._turn)
        self._changed = threading.Condition()
        """Guards the scheduler and what follows."""
        self._scheduler = SyncScheduler(_settings(nb.conf), now=time.monotonic(), jitter=random.Random().random)
        self._is_loaded = False
        self._is_syncing = False
        self._is_loading = False
        """All objects are being read."""
        self._is_closed = False
        self._is_inherited = False
        self._requests = 0
        self._stood_in_for = -1
        """As many requests had been made when the resync source stood in for the database."""
        self._is_standing_in = False
        """It has, and the callback does not know yet."""
        if not isinstance(resync_source, SnapshotSource):
            resync_source = build_source(resync_source or options.resync_source, nb.conf, nb.session)
        self._resync_source = resync_source
        self._marks = HistoryMarks(options.verify_interval)
        self._sync = CacheSync(nb, self._core, self, self._marks, tables=tables, source=resync_source)
        self._source: ChangeSource
        if nb.session is not None:
            self._source = BusSource(nb.session, nb.db, self, addresses, patience_s=options.bus_patience)
        else:
            self._source = FeedSource(nb.db, self, portion=DELTA_PORTION)
        forking.register(self)
        self._thread = threading.Thread(target=self._run, name="heliograph-local-cache", daemon=True)
        self._source.start(self._filters)
        self._thread.start()

    # -- reading

    def get(self, table: str, key: str) -> DbObject:
        """The object as this copy has it.  Raises ObjectNotFound."""
        self._check_usable()
        found = self._core.find(table, key)
        if found is None:
            raise ObjectNotFound(f"{table} {key!r} is not in the local cache")
        return found

    def get_all(self, table: str, *, topics: Sequence[str] | None = None) -> list[DbObject]:
        """The objects of a table, by key, as `NbApi.get_all` gives them."""
        self._check_usable()
        return self._core.find_all(table, None if topics is None else FilterSet(topics))

    @property
    def tables(self) -> list[str]:
        """The tables of which objects are held, or were."""
        return sorted(list(self._core.tables))  # noqa: C414  a copy first: others add tables

    def changes(self, *, timeout_s: float | None = None) -> Iterator[CacheChange]:
        """What changed since the cache was made, in order; ends when it is closed, or when nothing came for that long.

        One iterating thread at a time.  After `Resynced` of kind ``overrun`` read the whole cache: single changes were
        left out.  Raises UsageError when the cache calls back.
        """
        if self._callbacks is not None:
            raise UsageError("this cache calls back; make one without on_changes to iterate")
        self._check_usable()
        while (change := self._queue.get(timeout_s)) is not None:
            yield change

    def wait_synced(self, *, timeout_s: float) -> None:
        """Return when the copy is complete: everything was read that had to be.  Raises WaitTimeout.

        With a resync source that can stand in for a database that is away, it also returns when that has happened;
        `statistics` tells, and so does the `Resynced` of kind ``provisional``.
        """
        self._check_usable()
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_synced() or self._is_closed, timeout_s):
                state = "objects were read" if self._is_loaded else "the first snapshot was not read"
                raise WaitTimeout(f"the local cache was not complete within {timeout_s} s ({state})")
        self._check_usable()

    def _is_synced(self) -> bool:
        if not len(self._core.filters):
            return True
        is_read = self._is_loaded and self._scheduler.is_idle and not self._is_syncing
        is_stood_in_for = self._is_provisional and not self._is_standing_in
        return (is_read or is_stood_in_for) and not self._source.is_joining

    @property
    def _is_provisional(self) -> bool:
        """Stood in for, and nothing was missed since."""
        return self._stood_in_for == self._requests

    # -- topics

    @property
    def topics(self) -> list[str]:
        """The filters in use."""
        return sorted(self.filters())

    def add_topic(self, topic_filter: str) -> bool:
        """Follow a further filter; True when it is new.  `wait_synced` waits until its objects are there.

        Raises InvalidTopic.
        """
        self._check_usable()
        with self._in_turn():
            is_new = self._core.add_topic(topic_filter)
            if is_new:
                self._source.add_topic(topic_filter)
        return is_new

    def remove_topic(self, topic_filter: str) -> bool:
        """Stop following a filter and drop what no other one selects; True when it was there."""
        self._check_usable()
        with self._in_turn():
            if topic_filter not in self._core.filters:
                return False
            self._source.remove_topic(topic_filter)
            with self._changed:
                self._scheduler.forget_topic(topic_filter)
            self._pass_on(self._core.remove_topic(topic_filter))
            self._after_news()
            return True

    # -- what the source calls

    @property
    def is_loaded(self) -> bool:
        return self._is_loaded

    @property
    def position(self) -> int:
        return self._core.position

    def on_events(self, events: Sequence[Event]) -> None:
        with contextlib.suppress(Closed):
            self.change(lambda: self._apply(events))
            self._after_news()

    def _apply(self, events: Sequence[Event]) -> list[Difference]:
        core = self._core
        core.heard = [] if self._marks.has_room(len(events)) else None
        differences = core.apply(events)
        self._marks.heard(core.newest, (core.late, core.peak, *(core.heard or ())), time.monotonic())
        core.late = core.peak = 0
        core.heard = None
        return differences

    def on_feed(self, changes: Sequence[Change]) -> None:
        def apply() -> list[Difference]:
            differences = self._core.apply_changes(changes)
            self._core.advance(changes[-1].revision)
            self._marks.read(changes[-1].revision)
            return differences

        if changes:
            self.change(apply)
            with self._changed:
                self._scheduler.done()

    def _after_news(self) -> None:
        if self._core.wants_resync:
            self.need_delta("forgotten tombstones")

    def need_snapshot(self, reason: str, *, is_awaited: bool = False, is_replacing: bool = False) -> None:
        now = time.monotonic()
        with self._changed:
            self._requests += 1
            if self._is_loading and is_awaited and not is_replacing:  # what came since it began is all that is missing
                self._scheduler.request_delta(reason, now)
            else:
                self._scheduler.request_snapshot(reason, now, is_awaited=is_awaited, is_replacing=is_replacing)
        self._source.wake()

    def need_delta(self, reason: str) -> None:
        with self._changed:
            self._requests += 1
            self._scheduler.request_delta(reason, time.monotonic())
        self._source.wake()

    def need_topics(self, topics: Iterable[str]) -> None:
        followed = [topic for topic in topics if topic in self._core.filters]
        with self._changed:
            if followed:
                self._requests += 1
                self._scheduler.request_topics(followed, time.monotonic())
        self._source.wake()

    def filters(self) -> tuple[str, ...]:
        with self._in_turn():
            return tuple(self._core.filters)

    def pause(self, seconds: float) -> None:
        """What waits in the thread waits here.  Raises Closed."""
        self._source.sleep(seconds)
        self._check_usable()

    # -- changing, and passing changes on

    def change(self, work: Callable[[], list[Difference]]) -> None:
        """Change the copy and pass the differences on, one thread at a time.  Raises Closed."""
        with self._in_turn():
            self._check_usable()
            self._pass_on(work())

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Raises Closed."""
        while not self._turn.acquire(timeout=_TURN_S):
            self._check_usable()
        try:
            yield
        finally:
            self._turn.release()

    def _pass_on(self, changes: Sequence[CacheChange]) -> None:
        """In turn."""
        if not changes:
            return
        if self._callbacks is None:
            self._queue.put(changes, self._core.position)
            return
        was_due = self._callbacks.due
        self._callbacks.add(changes, self._core.position)
        try:
            self._callbacks.call(time.monotonic(), more_follows=self._source.has_more)
        finally:
            if self._callbacks.due < was_due:
                self._source.wake()  # the thread has to come back to it

    def _call_again(self) -> None:
        """What waits because the callback raised, or for more to come."""
        if self._callbacks is not None and self._callbacks.due <= time.monotonic():
            with self._in_turn():
                self._callbacks.call(time.monotonic())

    # -- the thread

    def _run(self) -> None:
        while not self._is_closed:
            with self._changed:
                task = self._scheduler.take(time.monotonic())
                self._is_syncing = task is not None and task.is_reading
                self._is_loading = task is not None and task.is_snapshot
                due = math.inf if self._callbacks is None else self._callbacks.due
                wait_s = min(self._scheduler.next_deadline(), due) - time.monotonic()
            try:
                self._call_again()
                if task is not None:
                    self._attempt(task)
                else:
                    self._source.wait(max(wait_s, 0.0))
                    self._db.release_idle()
            except Closed:
                return
            except Exception as error:  # noqa: BLE001  a thread that ends in silence would be a copy that lies
                self._pause(task, error)
            finally:
                with self._changed:
                    self._is_syncing = self._is_loading = False
                    self._changed.notify_all()

    def _attempt(self, task: SyncTask) -> None:
        """Raises DbError, Closed."""
        requests = self._requests
        try:
            told = self._sync.perform(task)
        except DbUnavailable:
            self._stand_in(task, requests)
            raise
        with self._changed:
            self._scheduler.done()
            self._is_loaded |= task.is_snapshot
            if task.is_reading:
                self._stood_in_for = -1
        self._tell_resynced(told)

    def _stand_in(self, task: SyncTask, requests: int) -> None:
        """The database is away: once for what was asked for; the attempts that follow are only about the database."""
        if not task.is_reading or self._is_provisional:
            return
        told = self._sync.stand_in(task.reason)
        if told is None:
            return
        with self._changed:
            self._stood_in_for, self._is_standing_in = requests, True
        try:
            self._tell_resynced([told])
        finally:
            with self._changed:
                self._is_standing_in = False
                self._changed.notify_all()

    def _tell_resynced(self, told: Sequence[Resynced]) -> None:
        for one in told:
            LOG.info(
                "LocalCache: resynced by %s (%s) at revision %d: %d created, %d updated, %d deleted.",
                one.kind, one.reason, one.revision, one.created, one.updated, one.deleted,
            )  # fmt: skip
        with self._in_turn():
            self._pass_on(told)

    def _pause(self, task: SyncTask | None, error: Exception) -> None:
        """The attempt failed: it is made again.  What is no error of ours or of the database's is shown in full."""
        self._sync.counters.failures += 1
        with self._changed:
            pause_s = self._scheduler.failed(task or _FEED, time.monotonic())
        is_known = isinstance(error, HeliographError)
        LOG.warning(
            "LocalCache: the database cannot be read: %s. Next attempt in %.1f s.", error, pause_s,
            exc_info=None if is_known else error,
        )  # fmt: skip
        if task is None:
            self._source.sleep(pause_s)

    # -- the rest

    def statistics(self) -> LocalCacheStatistics:
        with self._changed:
            is_synced, is_provisional = self._is_synced(), self._is_provisional
        return LocalCacheStatistics(
            objects=self._core.objects,
            tombstones=self._core.tombstones,
            position=self._core.position,
            is_synced=is_synced,
            is_provisional=is_provisional,
            news=dataclasses.replace(self._core.counters),
            syncs=dataclasses.replace(self._sync.counters),
            overruns=self._queue.overruns + (self._callbacks.overruns if self._callbacks else 0),
            callback_errors=self._callbacks.errors if self._callbacks else 0,
            untold=self._callbacks.waiting if self._callbacks else 0,
            bus=self._source.statistics(),
        )

    def close(self) -> None:
        """Stop following; no callback runs after it returns (unless it is called from one).  Idempotent."""
        if self._is_closed or self._is_inherited:
            return
        self._is_closed = True
        self._source.close()
        self._queue.close()
        with self._changed:
            self._changed.notify_all()
        if self._resync_source is not None:
            self._resync_source.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise Closed("the local cache is closed")
        if self._is_inherited:
            raise Forked("a local cache does not live on in a forked child: make a new one there")

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._thread, self._source, self._turn, self._changed, self._queue, self._resync_source))
        self._is_inherited = True


def _settings(conf: cfg.ConfigOpts) -> SyncSettings:
    options = conf[CACHE_GROUP]
    return SyncSettings(
        snapshot_jitter_s=options.snapshot_jitter,
        snapshot_interval_min_s=options.snapshot_interval_min,
        retry_interval_s=conf[GROUP].retry_interval,
        retry_interval_max_s=conf[GROUP].retry_interval_max,
        verify_interval_s=options.verify_interval,
        resync_interval_s=options.resync_interval,
    )
