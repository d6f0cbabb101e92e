"""Several consumers of one copy: each is told of every change, and none depends on another.

A consumer is called back, or iterates over a queue of its own.  One whose callback raises is called again by itself,
and one that is too slow is told so by itself.  Callbacks run one after another in the thread that changed the copy.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from oslo_config import cfg

from nb_api import notify_config
from nb_api.cache.telling.callbacks import CallbackQueue, OnChanges
from nb_api.cache.telling.change_queue import ChangeQueue
from nb_api.config import GROUP
from nb_api.core.copy.differences import CacheChange, Resynced
from pubsub_api.errors import UsageError
from pubsub_api.runtime.closing import Closeable


class Subscription(Closeable):
    """One consumer of a `LocalCache`, made by `LocalCache.subscribe`.  Methods may be called from any thread."""

    def __init__(
        self,
        queue: CallbackQueue | ChangeQueue,
        tables: frozenset[str] | None,
        *,
        is_complete: Callable[[], bool],
        leave: Callable[[Subscription], None],
    ) -> None:
        """``is_complete`` says whether the copy is; ``leave`` ends the subscription, in turn."""
        self._queue = queue
        self._tables = tables
        self._is_complete = is_complete
        self._leave = leave
        self._is_closed = False
        self.present: int | None = None
        """How many objects it was told of at the beginning, until it was told that the copy is complete."""

    @property
    def is_synced(self) -> bool:
        """The copy is complete, and this consumer has taken the objects that were there when it came."""
        return self._queue.is_primed and self._is_complete()

    @property
    def untold(self) -> int:
        """Changes that this consumer has not taken yet."""
        return self._queue.waiting

    @property
    def overruns(self) -> int:
        """How often it was told to read the whole cache, because it did not take the changes in time."""
        return self._queue.overruns

    @property
    def callback_errors(self) -> int:
        return self._queue.errors

    def changes(self, *, timeout_s: float | None = None) -> Iterator[CacheChange]:
        """What changed since the subscription began, after the objects that were there.

        One iterating thread at a time.  Ends when the subscription or the cache is closed, or when nothing came for
        that long.  After `Resynced` of kind ``overrun`` read the whole cache.  Raises UsageError when it calls back.
        """
        queue = self._queue
        if not isinstance(queue, ChangeQueue):
            raise UsageError("this calls back; subscribe without on_changes to iterate")
        while (change := queue.get(timeout_s)) is not None:
            yield change

    def wait(self, *, timeout_s: float) -> bool:
        """Wait for a change, and leave it to `changes`; False when there is none.  Raises UsageError when it calls
        back."""
        queue = self._queue
        if not isinstance(queue, ChangeQueue):
            raise UsageError("this calls back; subscribe without on_changes to wait")
        return queue.wait(timeout_s)

    def close(self) -> None:
        """Be told of nothing more; no callback runs after it returns, unless it is called from one.  Idempotent."""
        self._is_closed = True
        self._leave(self)

    def _about(self) -> str:
        tables = "all tables" if self._tables is None else ", ".join(sorted(self._tables))
        return f"of {tables}, {self.untold} changes not taken,"

    # -- for the cache

    @property
    def is_of_all(self) -> bool:
        """It is told of everything as it is."""
        return self._tables is None and self.present is None

    @property
    def queue(self) -> CallbackQueue | ChangeQueue:
        return self._queue

    def begin(self, present: Iterable[CacheChange]) -> None:
        """With the objects that are there."""
        changes = list(present)
        self.present = len(changes)
        self._queue.prime(changes, time.monotonic())

    def add(self, changes: Sequence[CacheChange], revision: int) -> None:
        tables = self._tables
        if self.present is not None and any(isinstance(change, Resynced) for change in changes):
            self.present = None
        if tables is not None:
            changes = [change for change in changes if isinstance(change, Resynced) or change.table in tables]
        if changes:
            self._queue.add(changes, revision)


@dataclasses.dataclass(frozen=True)
class TellingStatistics:
    """Consumers of changes, all together."""

    overruns: int
    """How often changes were not told one by one because they were not taken in time."""
    callback_errors: int
    """How often the callback raised.  It is called again with the same changes."""
    untold: int
    """Changes that the callback has not taken yet."""
    subscriptions: int
    """Consumers: what the cache was made with, and those of `LocalCache.subscribe`."""


class Subscriptions:
    """All consumers of a cache.  Called in turn, but for what says otherwise."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        turn: AbstractContextManager[None],
        want_differences: Callable[[bool], None],
        is_complete: Callable[[], bool],
    ) -> None:
        self._conf = conf
        self._turn = turn
        self._want_differences = want_differences
        self._is_complete = is_complete
        self._all: tuple[Subscription, ...] = ()
        self._callbacks: tuple[CallbackQueue, ...] = ()
        self._only: CallbackQueue | None = None
        """The only consumer, when it is called back with everything."""
        self._gone_overruns = self._gone_errors = 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, on_changes: OnChanges | None, tables: frozenset[str] | None = None) -> Subscription:
        """A further consumer, of some tables.  ``on_changes`` None: it iterates."""
        size_max, retry = notify_config.CHANGES_QUEUE_MAX, self._conf[GROUP]
        queue = (
            ChangeQueue(size_max, self.wants_changed, self._turn)
            if on_changes is None
            else CallbackQueue(
                on_changes,
                size_max=size_max,
                pause_s=notify_config.retry_interval(self._conf),
                pause_max_s=retry.retry_interval_max,
                wants_changed=self.wants_changed,
            )
        )
        subscription = Subscription(queue, tables, is_complete=self._is_complete, leave=self.leave)
        self._set((*self._all, subscription))
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """From any thread.  Raises Closed when the cache is closed and busy."""
        with self._turn:
            if subscription in self._all:
                self._gone_overruns += subscription.overruns
                self._gone_errors += subscription.callback_errors
                self._set(tuple(one for one in self._all if one is not subscription))
        subscription.queue.close()

    def _set(self, subscriptions: tuple[Subscription, ...]) -> None:
        self._all = subscriptions
        queues = [one.queue for one in subscriptions]
        self._callbacks = tuple(queue for queue in queues if isinstance(queue, CallbackQueue))
        is_only = len(subscriptions) == len(self._callbacks) == 1 and subscriptions[0].is_of_all
        self._only = self._callbacks[0] if is_only else None
        self.wants_changed()

    def wants_changed(self) -> None:
        """A consumer was overrun or is no longer: differences are built while a consumer looks at them."""
        self._want_differences(any(not one.queue.is_overrun for one in self._all))

    @property
    def due(self) -> float:
        """When `call` has something to do.  May be asked at any time."""
        return min([queue.due for queue in self._callbacks], default=float("inf"))

    def pass_on(self, changes: Sequence[CacheChange], revision: int, now: float, *, more_follows: bool) -> bool:
        """Returns whether `due` has become sooner."""
        only = self._only
        if only is not None and only.is_idle and not more_follows:
            return only.tell(changes, now)
        for one in self._all:
            one.add(changes, revision)
        is_sooner = False
        for queue in self._callbacks:
            is_sooner |= queue.call(now, more_follows=more_follows)
        return is_sooner

    @property
    def has_new(self) -> bool:
        """A consumer was not told yet that the copy is complete.  May be asked at any time."""
        return any(one.present is not None for one in self._all)

    def welcome(self, revision: int) -> None:
        """Tell new consumers that the copy is complete."""
        for one in self._all:
            if one.present is not None:
                one.add([Resynced("snapshot", "a new subscription", revision, created=one.present)], revision)

    def call(self, now: float) -> None:
        for queue in self._callbacks:
            queue.call(now)

    def close(self) -> None:
        """Iterations end.  From any thread."""
        for one in self._all:
            one.queue.close()

    def statistics(self) -> TellingStatistics:
        """At any time."""
        return TellingStatistics(
            overruns=self._gone_overruns + sum(one.overruns for one in self._all),
            callback_errors=self._gone_errors + sum(one.callback_errors for one in self._all),
            untold=sum(queue.waiting for queue in self._callbacks),
            subscriptions=len(self._all),
        )
