"""A controller's copy of the objects it is concerned with, kept equal to the database.

Live changes come from the bus or from the database's feed (`nb_api.cache.reading.change_source`) and are applied by
version (`nb_api.core.copy.cache`) in the thread that received them, which then calls back: nothing waits in a queue in
between.  Another reads the database when that is needed: at the start, for a topic that is new, after loss
(`nb_api.core.copy.resync_schedule`).  Reading never holds up live changes, since their order does not matter.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from nb_api import notify_config
from nb_api.api import NbApi
from nb_api.cache.index import CacheIndexes, Index
from nb_api.cache.reading.change_source import BusSource, ChangeSource, FeedSource
from nb_api.cache.reading.history_marks import HistoryMarks
from nb_api.cache.reading.live_changes import LiveChanges
from nb_api.cache.reading.sync import CacheSync, log_resynced
from nb_api.cache.reading.sync_requests import SyncRequests
from nb_api.cache.snapshot_source import SnapshotSource, build_source
from nb_api.cache.statistics import Followed, LocalCacheStatistics
from nb_api.cache.telling.callbacks import OnChanges
from nb_api.cache.telling.change_queue import ChangeQueue
from nb_api.cache.telling.subscriptions import Subscription, Subscriptions
from nb_api.cache.telling.turn import Turn
from nb_api.cache.version_waits import PATIENCE_S, CacheWaits
from nb_api.coordination.snapshot_limit import NoTurn
from nb_api.core.checks import TopicSelection
from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import CacheChange, Created, Difference, Resynced
from nb_api.core.copy.held_objects import Where
from nb_api.core.copy.indexes import IndexFunction
from nb_api.core.copy.resync_schedule import SyncTask
from nb_api.core.copy.snapshot_merge import EVERYTHING
from nb_api.db_api import Change, DbObject
from nb_api.errors import DbUnavailable, ObjectNotFound
from nb_api.models.cached_table import WholeCache
from nb_api.notify_config import CACHE_GROUP, DELTA_PORTION
from nb_api.verifying.verified_copy import VerifiedCopy
from pubsub_api import Event
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import Closed, Forked, HeliographError, UsageError, WaitTimeout
from pubsub_api.runtime import forking

LOG = logging.getLogger(__name__)


class LocalCache(WholeCache, VerifiedCopy):
    """A copy of the objects of ``tables`` (None: all) whose topic any of the filters ``topics`` selects (None: all).

    ``where`` selects of these the objects whose value has these fields with these values; ``tables`` may be a mapping
    from a table to such a selection of its own.  An object that leaves the selection is told as deleted.

    ``on_changes`` is called with what changed, in order, one call at a time; it may read the cache and must not wait
    for it.  When it raises, it is called again with the same changes and those that came since
    (`nb_api.cache.telling.callbacks`). Without it, iterate over `changes`.  `subscribe` adds further consumers.  What
    is read belongs to its reader: changing it changes nothing here.  Every method may be called from any thread.  Does
    not live on in a forked child: make a new one there.  Close it before its `NbApi`.
    """

    def __init__(
        self,
        nb: NbApi,
        *,
        tables: Sequence[str] | Mapping[str, Where | None] | None = None,
        topics: Sequence[str] | None = None,
        where: Where | None = None,
        on_changes: OnChanges | None = None,
        addresses: Sequence[str] | None = None,
        resync_source: str | SnapshotSource | None = None,
        verify_interval_s: float | None = None,
    ) -> None:
        """Begins at once and returns at once.  ``addresses`` replaces the publishers' addresses of the configuration.
        ``resync_source`` is where a full resync reads the objects, by name or as it is; None takes
        ``[local_cache] resync_source``.  One that is given is closed with the cache.  ``verify_interval_s`` is how
        often the copy is proved as `verify` does it; None: only when asked.

        Raises UsageError, InvalidTopic, InvalidConfig, and what loading a source raises.
        """
        self._tables = list(tables) if isinstance(tables, Mapping) else tables
        TopicSelection(self._tables, topics)  # refuses what can never work
        options = nb.conf[CACHE_GROUP]
        self._db = nb.db
        filters = [EVERYTHING] if topics is None else list(topics)
        self._core = CacheCore(tables, filters, tombstones_max=notify_config.TOMBSTONES_MAX, where=where)
        self._turn = Turn(self.check_usable)
        """Held while the copy changes and is told of; not while the database is read.  Callbacks may change topics."""
        self._indexes = CacheIndexes(self._core, self._tables, self.check_usable)
        self._subscriptions = Subscriptions(nb.conf, self._turn, self._core.want_differences, self.is_synced)
        self.first = self._subscriptions.add(on_changes)
        """The consumer that the cache was made with."""
        self._requests = SyncRequests(nb.conf)
        patience_s = PATIENCE_S if nb.session is None else 0.0
        self.waits = CacheWaits(self, self._core, self._requests, self._turn, patience_s=patience_s)
        """For `nb_api.aio`, whose coroutines wait for the same."""
        self._is_closed = self._is_inherited = False
        if not isinstance(resync_source, SnapshotSource):
            resync_source = build_source(resync_source or options.resync_source, nb.conf, nb.session)
        self._resync_source = resync_source
        self._marks = HistoryMarks(options.verify_interval)
        self._live = LiveChanges(self._core, self._indexes, self._marks)
        self._sync = CacheSync(nb, self._core, self, self._marks, tables=self._tables, source=resync_source)
        self._source: ChangeSource
        if nb.session is not None:
            self._source = BusSource(nb.session, nb.db, self, addresses, patience_s=options.bus_patience)
        else:
            self._source = FeedSource(nb.db, self, portion=DELTA_PORTION, patience_s=notify_config.FEED_PATIENCE_S)
        self._set_up_verification(nb, self._marks, self._sync, self._tables, verify_interval_s)
        forking.register(self)
        self._source.start(filters)
        self._source.follow(self._step)
        self._start_verification()

    # -- reading

    def get(self, table: str, key: str) -> DbObject:
        """The object as this copy has it.  Raises ObjectNotFound, and UsageError for a table that is not followed."""
        self.check_usable()
        if (found := self._core.find(table, key)) is not None:
            return found
        self._core.check_followed((table,))
        raise ObjectNotFound(f"{table} {key!r} is not in the local cache")

    def get_all(self, table: str, *, topics: Sequence[str] | None = None) -> list[DbObject]:
        """The objects of a table, by key, as `NbApi.get_all` gives them.  Raises UsageError for a table that is not
        followed: of that one nothing is known."""
        self.check_usable()
        self._core.check_followed((table,))
        return self._core.find_all(table, None if topics is None else FilterSet(topics))

    @property
    def tables(self) -> list[str]:
        """The tables of which objects are held, or were."""
        return sorted(list(self._core.tables))  # noqa: C414  a copy first: others add tables

    def is_followed(self, table: str) -> bool:
        """Whether this copy has the objects of that table, if there are any."""
        return self._core.is_followed(table)

    def changes(self, *, timeout_s: float | None = None) -> Iterator[CacheChange]:
        """What changed since the cache was made, in order; ends when it is closed, or when nothing came for that long.

        One iterating thread at a time.  After `Resynced` of kind ``overrun`` read the whole cache: single changes were
        left out.  Raises UsageError when the cache calls back.
        """
        if not isinstance(self.first.queue, ChangeQueue):
            raise UsageError("this cache calls back; make one without on_changes to iterate")
        self.check_usable()
        yield from self.first.changes(timeout_s=timeout_s)

    def subscribe(self, on_changes: OnChanges | None = None, *, tables: Iterable[str] | None = None) -> Subscription:
        """A further consumer of this copy, of some of its tables.  It is told of the objects that are there as
        `Created`, of each once, then of every change.  A `Resynced` says when the copy is complete.

        ``on_changes`` is called as that of the cache, by its threads; without it, iterate over `Subscription.changes`.
        Callbacks are called in a row: one that takes long delays the others, an iterator does not.  Raises UsageError.
        """
        self._check_changeable()
        wanted = None if tables is None else self._core.check_followed(tables)
        with self._turn:
            subscription = self._subscriptions.add(on_changes, wanted)
            subscription.begin(
                Created(table, key, entry)
                for table, entries in self._core.tables.items()
                if wanted is None or table in wanted
                for key, entry in entries.items()
            )
        self._source.wake()  # the thread calls back
        return subscription

    # -- indexes

    def index(
        self,
        name: str,
        function: IndexFunction | None = None,
        *,
        table: str | None = None,
        unique: bool = False,
        multiple: bool = False,
        sorted: bool = False,
    ) -> Index:
        """Index a table by what ``function`` makes of an object, or without a function, the index of that name.

        The function is called once for each version of an object, from any thread, with the copy held: it looks at the
        object, or at the cache, and does not wait.  None puts the object into no index.  ``multiple``: it gives several
        values, each of which finds the object.  ``unique``: a value belongs to one object, see `Index.one`.
        ``sorted``: `Index.range` works.  ``table`` may be left out when the cache has one.

        A function that raises, or gives what cannot be a key of a dict or be sorted, is counted in ``indexes.errors``
        and logged; the object is in the copy and not in this index.  Blocks while the objects that are there are
        indexed.  Raises UsageError, also in an index function.
        """
        self.check_usable()
        if function is None:
            return self._indexes.get(name)
        with self._turn:
            return self._indexes.add(name, table, function, unique=unique, multiple=multiple, is_sorted=sorted)

    # -- waiting

    def wait_version(self, table: str, key: str, version: int, *, timeout_s: float) -> DbObject | None:
        """Return when the copy has this object as of ``version`` or later: what `NbApi` returned for an own write.

        Returns the object; None when it is not, or no longer, part of this copy: deleted, moved, not selected, not of a
        topic that is followed.  When nothing is heard of it for a second, the changes are read from the database.

        Raises WaitTimeout; RevisionUnknown when the database has not come as far as that version, as one does not that
        was restored from a backup; Closed; UsageError in a callback, which would wait for itself, and for a table that
        is not followed.
        """
        return self.waits.changed.wait_for_steps(self.waits.version(table, key, version, timeout_s))

    def wait_revision(self, revision: int, *, timeout_s: float) -> None:
        """Return when the copy has everything up to this revision of the database.

        A copy that follows the bus reads the database for that: `wait_version`, which raises the same, is cheaper.
        """
        self.waits.changed.wait_for_steps(self.waits.revision(revision, timeout_s))

    def wait_synced(self, *, timeout_s: float) -> None:
        """Return when the copy is complete: everything was read that had to be.  Raises WaitTimeout.

        With a resync source that can stand in for a database that is away, it also returns when that has happened;
        `statistics` tells, and so does the `Resynced` of kind ``provisional``.
        """
        self.waits.changed.wait_for_steps(self.waits.synced(timeout_s))

    def wait_told(self, *, timeout_s: float) -> None:
        """Return when every change that the copy has now was told to its consumers, or put into their queues.

        Raises WaitTimeout when a callback takes longer.
        """
        self.check_usable()
        if not self._turn.wait_free(timeout_s):
            raise WaitTimeout(f"a callback of the local cache has not returned within {timeout_s} s")

    def is_synced(self) -> bool:
        """The copy is complete, as `wait_synced` waits for."""
        if not len(self._core.filters):
            return True
        return (self._requests.is_read() or self._requests.is_stood_in_for()) and not self._source.is_joining

    def is_read(self) -> bool:
        """Everything was read from the database that had to be."""
        return self._requests.is_read() and not self._source.is_joining

    # -- topics

    @property
    def topics(self) -> list[str]:
        """The filters in use."""
        return sorted(self.filters())

    def add_topic(self, topic_filter: str) -> bool:
        """Follow a further filter; True when it is new.  `wait_synced` waits for its objects.  Raises InvalidTopic."""
        self._check_changeable()
        with self._turn:
            if is_new := self._core.add_topic(topic_filter):
                self._source.add_topic(topic_filter)
        return is_new

    def remove_topic(self, topic_filter: str) -> bool:
        """Stop following a filter and drop what no other one selects; True when it was there."""
        self._check_changeable()
        with self._turn:
            if topic_filter not in self._core.filters:
                return False
            self._source.remove_topic(topic_filter)
            self._requests.forget_topic(topic_filter)
            with self._indexes.moment:
                differences = self._core.remove_topic(topic_filter)
            self._after_change(differences, time.monotonic())
        if self._core.wants_resync:
            self.need_delta("a topic was dropped while an object moved")
        return True

    # -- what the source calls

    @property
    def is_loaded(self) -> bool:
        return self._requests.is_loaded

    @property
    def position(self) -> int:
        return self._core.position

    def on_events(self, events: Sequence[Event]) -> None:
        """In the thread that received them, from which the callback is called as well."""
        try:
            with self._turn:
                if self._is_closed:
                    return
                now = time.monotonic()
                changes = self._live.apply(events, now)
                if self.waits.waiting:
                    self.waits.on_change()
                if changes:
                    self._pass_on(changes, now)
        except Closed:
            return
        except Exception:
            self.need_snapshot("changes could not be applied")  # some of them may have been
            raise
        if self._core.wants_resync:
            self.need_delta("forgotten tombstones")

    def on_feed(self, changes: Sequence[Change]) -> None:
        def apply() -> list[Difference]:
            differences = self._core.apply_changes(changes)
            self._core.advance(changes[-1].revision)
            self._marks.read(changes[-1].revision)
            return differences

        if changes:
            self.change(apply)
            self._requests.done()

    def wake(self) -> None:
        self._source.wake()

    def need_snapshot(self, reason: str, *, is_awaited: bool = False, is_replacing: bool = False) -> None:
        self._requests.need_snapshot(reason, is_awaited=is_awaited, is_replacing=is_replacing)
        self._source.wake()

    def need_delta(self, reason: str) -> None:
        self._requests.need_delta(reason)
        self._source.wake()

    def need_topics(self, topics: Iterable[str]) -> None:
        if followed := [topic for topic in topics if topic in self._core.filters]:
            self._requests.need_topics(followed)
        self._source.wake()

    def filters(self) -> tuple[str, ...]:
        with self._turn:
            return tuple(self._core.filters)

    def pause(self, seconds: float) -> None:
        """What waits in the thread waits here.  Raises Closed."""
        self._source.sleep(seconds)
        self.check_usable()

    # -- changing, and passing changes on

    def change(self, work: Callable[[], list[Difference]]) -> None:
        """Change the copy and pass the differences on, one thread at a time.  Raises Closed."""
        with self._turn:
            self.check_usable()
            with self._indexes.moment:
                differences = work()
            self._after_change(differences, time.monotonic())

    def _after_change(self, differences: Sequence[Difference], now: float) -> None:
        """In turn."""
        if self.waits.waiting:
            self.waits.on_change()
        if differences:
            self._pass_on(differences, now)

    def _pass_on(self, changes: Sequence[CacheChange], now: float) -> None:
        """In turn."""
        is_sooner = True
        try:
            is_sooner = self._subscriptions.pass_on(
                changes, self._core.position, now, more_follows=self._source.has_more()
            )
        finally:
            if is_sooner:
                self._source.wake()  # the thread has to come back to it

    def _call_again(self) -> None:
        """What waits because the callback raised, for more to come, or because the consumer is new."""
        is_welcome = self._subscriptions.has_new and self.is_synced()
        if is_welcome or self._subscriptions.due <= time.monotonic():
            with self._turn:
                if is_welcome:
                    self._subscriptions.welcome(self._core.position)
                self._subscriptions.call(time.monotonic())

    # -- the thread that reads

    def _step(self) -> float:
        """Do what is due.  Returns for how long there is nothing to do."""
        task, wait_s = self._requests.take(self._subscriptions.due)
        try:
            self.check_usable()
            self._call_again()
            if task is not None:
                self._attempt(task)
                return 0.0
            wait_s = self._source.wait(wait_s)
            self._db.release_idle()
            return wait_s
        except Closed:
            return math.inf
        except NoTurn:
            return self._requests.put_off(task)
        except Exception as error:  # noqa: BLE001  a thread that ends in silence would be a copy that lies
            return self._failed(task, error)
        finally:
            self._requests.ended()

    def _attempt(self, task: SyncTask) -> None:
        """Raises DbError, Closed."""
        requests = self._requests.count
        try:
            told = self._sync.perform(task)
        except DbUnavailable:
            self._stand_in(task, requests)
            raise
        self._requests.done(task)
        self._tell_resynced(told)

    def _stand_in(self, task: SyncTask, requests: int) -> None:
        """The database is away: once for what was asked for; the attempts that follow are only about the database."""
        if not task.is_reading or self._requests.is_provisional:
            return
        told = self._sync.stand_in(task.reason)
        if told is None:
            return
        self._requests.standing_in(requests)
        try:
            self._tell_resynced([told])
        finally:
            self._requests.stood_in()

    def _tell_resynced(self, told: Sequence[Resynced]) -> None:
        log_resynced(told)
        with self._turn:
            self._pass_on(told, time.monotonic())

    def _failed(self, task: SyncTask | None, error: Exception) -> float:
        """It is done again.  What is no error of ours or of the database's is shown in full.  Returns the pause."""
        self._sync.counters.failures += 1
        pause_s = self._requests.failed(task)
        LOG.warning(
            "LocalCache: the database cannot be read: %s. Next attempt in %.1f s.", error, pause_s,
            exc_info=None if isinstance(error, HeliographError) else error,
        )  # fmt: skip
        return pause_s if task is None else 0.0

    # -- the rest

    def statistics(self) -> LocalCacheStatistics:
        with self._requests.changed:
            is_synced, is_provisional = self.is_synced(), self._requests.is_provisional
        return LocalCacheStatistics(
            objects=self._core.objects,
            tombstones=self._core.tombstones,
            position=self._core.position,
            newest=self._core.newest,
            followed=Followed(None if self._tables is None else tuple(self._tables), tuple(self._core.filters)),
            is_synced=is_synced,
            is_provisional=is_provisional,
            news=dataclasses.replace(self._core.counters),
            syncs=self._sync.counters.copy(),
            verify=dataclasses.replace(self._verifier.counters),
            telling=self._subscriptions.statistics(),
            indexes=self._indexes.statistics(),
            mismatches=self._mismatches.count,
            bus=self._source.statistics(),
        )

    def close(self) -> None:
        """Stop following; no callback runs after it returns (unless it is called from one).  Idempotent."""
        if self._is_closed or self._is_inherited:
            return
        self._is_closed = True
        self._source.close()
        self._subscriptions.close()
        with self._requests.changed:
            self._requests.changed.notify_all()
        if self._resync_source is not None:
            self._resync_source.close()
        self._source.end()
        self._stop_verification()

    def check_usable(self) -> None:
        if self._is_closed:
            raise Closed("the local cache is closed")
        if self._is_inherited:
            raise Forked("a local cache does not live on in a forked child: make a new one there")

    def _check_changeable(self) -> None:
        self.check_usable()
        self._indexes.check_not_indexing()

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._source, self._turn, self._requests, self._resync_source))
        forking.set_aside((self._subscriptions, self._indexes, self._verifier))
        self._is_inherited = True
