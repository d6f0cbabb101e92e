"""Controller: calls a function for every key that changed, in threads, until it has succeeded.

What is worked on when is decided by `nb_api.controller.core.work_queue`.  `nb_api.controller.aio` is the same for
asyncio.
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nb_api.cache.view import CacheView
from nb_api.controller.base import ControllerBase
from nb_api.controller.clock import Clock
from nb_api.controller.core.keys import RetryPauses, check_seconds
from nb_api.controller.core.owners import OwnerMap, OwnersOf
from nb_api.controller.core.work_queue import QueueSettings, Taken
from nb_api.controller.following import CacheFollower
from nb_api.controller.permits import permits_of
from nb_api.controller.request import Reconcile, T
from nb_api.controller.work import Work
from nb_api.coordination.election import Election
from nb_api.coordination.key_shards import KeyShards
from pubsub_api import tracing
from pubsub_api.errors import LimitReached, UsageError
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
INTERVAL_MIN_S = 0.1


class Controller(ControllerBase, Closeable):
    """Calls ``reconcile`` with a `Request` for every object of the copy, then for every one that changes or goes.

    - One key is worked on by one thread at a time.  Changes that come meanwhile are merged into one more run.
    - A run that raises is made again after a pause that grows (``retries``); one that returns `RequeueAfter` as well,
      after that time; one that raises `GiveUp` not before the key changes.  No exception ends a worker.
    - Nothing runs before the copy is complete, and a resync runs only what differs.
    - Between two runs of a key are at least ``interval_min_s``, and up to ten times that while it changes all the time;
      all together there are ``runs_per_s_max``.

    ``owners`` names dependent tables, each with a function from an object to the (table, key) pairs that are worked on
    when it changes; when its owners change, the former ones are worked on, too.  Objects of ``tables`` are worked on
    themselves; None: those of every table without such a function.

    ``clock`` is for tests: pauses are counted in the time that it tells.

    With an ``election``, which stays the caller's, runs begin only while this process leads; the others keep their copy
    and what is wanted, and begin when they are elected.

    With ``shards``, which stay the caller's, processes that have shards of the same name share the keys: each works on
    those of the shards that it holds, and on all of a shard once when it gets it.  A shard is given up when its last
    run has ended.

    ``cache`` is a `LocalCache`, or one table of it with its class (`LocalCache.table`): then objects of that table are
    worked on, and requests have instances.  One that does not fit is left alone until it changes, as after `GiveUp`.

    Follows ``cache`` as one of any number of consumers; the cache stays the caller's: close the controller first.
    Every method may be called from any thread.  Does not live on in a forked child.
    """

    def __init__(
        self,
        cache: CacheView[T],
        reconcile: Reconcile[T],
        *,
        workers: int = 4,
        tables: Sequence[str] | None = None,
        owners: Mapping[str, OwnersOf] | None = None,
        name: str = "controller",
        retries: RetryPauses | None = None,
        interval_min_s: float = INTERVAL_MIN_S,
        runs_per_s_max: float | None = None,
        election: Election | None = None,
        shards: KeyShards | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Begins at once and returns at once.

        Raises UsageError, also for a table that the cache does not follow, LimitReached, and Closed and Forked when the
        cache is closed, or was inherited by this process.
        """
        if inspect.iscoroutinefunction(reconcile):
            raise UsageError("reconcile is a coroutine function: use nb_api.aio.Controller")
        check_arguments(reconcile, workers, tables)
        owner_map = owner_map_of(cache, tables, owners)
        self._cache = cache.cache
        traces = tracing.active
        self._reconcile: Reconcile[Any] = reconcile if traces is None else traces.reconcile(reconcile, name, owner_map)
        self._name = name
        settings = queue_settings(retries, interval_min_s, runs_per_s_max)
        self._work = Work(
            cache, settings, name=name, wake=self._wake, has_ends=owner_map.is_own, clock=clock,
            permits=permits_of(election, shards),
        )  # fmt: skip
        self._changed = threading.Condition(self._work.lock)
        self._idle_workers = 0
        self._kept_until = math.inf
        """Until when the worker sleeps that wakes first by itself; the others sleep until they are woken."""
        self._follower = CacheFollower(cache.cache, owner_map, self._work, name=name)
        self._threads = [
            threading.Thread(target=self._run, name=f"controller-{number}-{name}", daemon=True)
            for number in range(workers)
        ]
        forking.register(self)
        try:
            for thread in self._threads:
                start_thread(thread)
            self._follower.start()
        except LimitReached:
            self.close()
            raise

    # -- what the program calls

    def wait_idle(self, *, timeout_s: float) -> None:
        """Return when the copy is complete and nothing is to be done about what it has now, failures included.

        Keys that asked for a time by `RequeueAfter` do not count; objects whose owners are not known do.  Raises
        WaitTimeout, Closed.
        """
        self._work.check_usable()
        deadline = time.monotonic() + timeout_s
        self._cache.wait_told(timeout_s=timeout_s)
        self._work.wait_idle(max(deadline - time.monotonic(), 0.0))
        self._work.check_usable()

    def close(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Begin nothing any more, and wait until the calls that run have returned, at most ``timeout_s``.

        Those that have not are logged, and left to themselves.  Called by ``reconcile`` it does not wait.  Idempotent.
        """
        if self._work.is_inherited:
            return
        with self._changed:
            self._work.stop()
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            return
        deadline = time.monotonic() + timeout_s
        for thread in (*self._threads, self._follower.thread):
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))
        for key, age_s in self._work.running():
            LOG.error("Controller %s: reconcile of %s has not ended in %.0f s, and is left.", self._name, key, age_s)

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._work.lock, self._changed, self._follower, self._threads))
        self._work.inherit()

    # -- the workers

    def _wake(self, count: int) -> None:
        """Called with the lock."""
        if self._idle_workers:
            self._changed.notify(min(count, self._idle_workers))

    def _run(self) -> None:
        work, reconcile = self._work, self._reconcile
        while (taken := self._next()) is not None:
            request = None
            try:
                request = work.request(taken)
                if request is None:
                    continue
                result = reconcile(request)
            except BaseException as error:  # noqa: BLE001  counted and logged; a worker must not end
                work.fail(taken, error, request)
            else:
                work.succeed(taken, request, result)

    def _next(self) -> Taken | None:
        """Waits for a key; None when there will be none any more."""
        work = self._work
        with self._changed:
            while not work.is_stopping:
                taken = work.pick()
                wait_s = work.next_run_in_s()
                if taken is not None:
                    if self._idle_workers and time.monotonic() + wait_s < self._kept_until:
                        self._changed.notify()  # another takes what is next, or sees to it that it is taken in time
                    return taken
                self._wait(wait_s)
        return None

    def _wait(self, wait_s: float) -> None:
        """Until woken; as long as that when no other worker wakes before that by itself."""
        until = time.monotonic() + wait_s
        self._idle_workers += 1
        try:
            if until >= self._kept_until:
                self._changed.wait()
                return
            self._kept_until = until
            self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
        finally:
            self._idle_workers -= 1
            if self._kept_until == until:
                self._kept_until = math.inf


def check_arguments(reconcile: Callable[..., object], workers: int, tables: Sequence[str] | None) -> None:
    """Raises UsageError."""
    if not callable(reconcile):
        raise UsageError(f"reconcile is called back, and {reconcile!r} cannot be called")
    if workers < 1:
        raise UsageError(f"a controller needs workers, not {workers}")
    if isinstance(tables, str):
        raise UsageError(f"tables is a list, not a string: [{tables!r}]")


def queue_settings(retries: RetryPauses | None, interval_min_s: float, runs_per_s_max: float | None) -> QueueSettings:
    """Raises UsageError."""
    interval_min_s = check_seconds(interval_min_s, "interval_min_s", is_finite=True)
    if runs_per_s_max is None:
        runs_per_s_max = math.inf
    if not (0 < runs_per_s_max <= sys.float_info.max or runs_per_s_max == math.inf):
        raise UsageError("runs_per_s_max is more than 0, and what a float can be")
    return QueueSettings(retries or RetryPauses(), interval_min_s, float(runs_per_s_max))


def owner_map_of(view: CacheView[Any], tables: Sequence[str] | None, owners: Mapping[str, OwnersOf] | None) -> OwnerMap:
    """Raises UsageError, Closed and Forked."""
    cache, only = view.cache, view.only_table
    if only is not None:
        if tables not in (None, [only]):
            raise UsageError(f"the controller works on table {only!r}, whose class it was given: leave tables out")
        tables = [only]
    cache.check_usable()
    for table in (*(tables or ()), *(owners or ())):
        if not cache.is_followed(table):
            raise UsageError(f"table {table!r} is not followed by this cache: nothing would ever run for it")
    return OwnerMap(tables, owners or {}, is_held=cache.is_followed if only is None else only.__eq__)
