"""The work of one controller, shared by those that do it: what is wanted, what runs, and what runs have ended with."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nb_api.cache.view import CacheView
from nb_api.controller.clock import Clock, MonotonicClock
from nb_api.controller.core.ends import ObjectEnds
from nb_api.controller.core.keys import Key, RequeueAfter, check_seconds
from nb_api.controller.core.work_queue import QueueSettings, Taken, WorkQueue
from nb_api.controller.permits import RunPermit, RunPermits
from nb_api.controller.request import Request
from nb_api.controller.statistics import ControllerStatistics, FollowingStatistics, RunQueueStatistics, RunTimes
from nb_api.core.changes import DbObject
from nb_api.core.copy.differences import Deleted
from nb_api.errors import GiveUp, ObjectNotFound, ValueMismatch
from pubsub_api.errors import Closed, Forked, UsageError, WaitTimeout
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

_LOOK_S = 0.1
"""How soon a process that has become the leader begins to work."""
HANGING_S = 60.0
"""A run that takes longer than this is named in the log."""


class _Run(NamedTuple):
    begun: float
    permit: RunPermit


@dataclasses.dataclass
class FollowerState:
    """How far the follower of the copy is.  Set by the follower."""

    untold: Callable[[], int] = lambda: 0
    """How many changes of the copy it has not taken."""
    is_taking: bool = False
    """Changes were taken, and are not put yet; `Work.tell_idle` is called after it."""
    unmapped: int = 0
    """Objects whose owners are not known."""
    map_again_at: float = 0.0
    """When it asks again for these."""
    mapping_errors: int = 0
    complete_readings: int = 0


class Work:
    """Every method may be called from any thread.

    ``wake`` is called with how many keys may have become ready, with `lock` held.  Threads wait for work with
    `lock`, which may be acquired again by the thread that has it.
    """

    def __init__(
        self,
        view: CacheView[Any],
        settings: QueueSettings,
        *,
        name: str,
        wake: Callable[[int], None],
        has_ends: Callable[[str], bool],
        permits: RunPermits,
        clock: Clock | None = None,
    ) -> None:
        """``has_ends`` says of which tables `put` is told the ends of objects."""
        self.lock = threading.RLock()
        self._idle = threading.Condition(self.lock)
        self._view = view
        self._name = name
        self._wake = wake
        self._has_ends = has_ends
        self.permits = permits
        self.must_read_all = False
        """Every key has to be worked on."""
        self._queue = WorkQueue(settings, jitter=random.random)
        self._ends = ObjectEnds()
        """What was deleted and was not brought into order since."""
        self._unsure: set[Key] = set()
        """Keys that were put back, because their object is absent and its end may be on its way."""
        self._confirmed: set[Key] = set()
        """Of these, those whose end is known by now, if it ever will be."""
        self._idle_calls: set[Callable[[], None]] = set()
        self._running: dict[Key, _Run] = {}
        self._unheld_runs = 0
        self.is_stopping = False
        """It was closed, or has ended by itself, because its cache was closed for instance."""
        self.is_inherited = False
        self.following = FollowerState()
        self._times = RunTimes()
        self._log_failure = RateLimitedLog(LOG)
        self._log_hanging = RateLimitedLog(LOG)
        self._log_unheld = RateLimitedLog(LOG, level=logging.ERROR)
        self._clock = clock or MonotonicClock()
        self._clock.attach(self)

    def now(self) -> float:
        """The time that all pauses are counted in, in seconds."""
        return self._clock.now()

    @property
    def time_may_jump(self) -> bool:
        """A test moves it."""
        return not isinstance(self._clock, MonotonicClock)

    # -- what is wanted

    def put(
        self,
        keys: Iterable[Key],
        *,
        ends: Mapping[Key, Deleted | None] | None = None,
        is_bulk: bool = False,
        unmapped: int | None = None,
    ) -> None:
        """Have these keys worked on.  ``ends``: of those that were deleted how, and None of those that are there.

        ``unmapped`` is how many objects there are now whose owners are not known.
        """
        now, permits = self.now(), self.permits
        with self.lock:
            for key, end in (ends or {}).items():
                self._ends.tell(key, end, is_elsewhere=permits.is_selective and not permits.is_wanted(key))
            count = 0
            wanted = filter(permits.is_wanted, keys) if permits.is_selective else keys
            for count, key in enumerate(wanted, 1):  # noqa: B007  it is the number of them
                self._queue.add(key, now, is_bulk=is_bulk)
            if count:
                self._wake(count)
            if unmapped is not None:
                self.following.unmapped = unmapped
            self.tell_idle()

    def enqueue(self, key: Key, after_s: float) -> bool:
        """What the program wants; False when another process has to work on the key.  Raises Closed, UsageError."""
        self.check_usable()
        self._check_table(key.table)
        if check_seconds(max(after_s, 0.0), "after_s", is_finite=True) > 0:
            with self.lock:
                if self.permits.is_wanted(key):
                    self._queue.add_after(key, after_s, self.now())
                    self._wake(1)
        else:
            self.put([key])
        return self.permits.is_wanted(key)

    def take_moves(self, known: Callable[[], Iterable[Key]]) -> None:
        """Have every key run, of all that are ``known``, that came from another process; forget what is wanted of
        those that went."""
        moves = self.permits.take_moves()
        if moves is None:
            return
        keys: dict[Key, None] = {}
        with self.lock:
            if moves.is_lost is not None:
                self._ends.hand_over(moves.is_lost)
                self._queue.drop(moves.is_lost)
                self._confirmed = {key for key in self._confirmed if not moves.is_lost(key)}
            if moves.is_gained is not None:
                keys = dict.fromkeys(self._ends.take_over(moves.is_gained))
        if moves.is_gained is not None:
            keys |= dict.fromkeys(filter(moves.is_gained, known()))
        self.put(keys, is_bulk=True)

    def begin(self) -> None:
        """The copy is complete."""
        with self.lock:
            self._queue.open()
            self._wake(self._queue.ready)
            self.tell_idle()

    def stop(self) -> None:
        """Begin nothing any more.  Does not wait for what runs."""
        with self.lock:
            self.is_stopping = True
            self._queue.close()
            self.tell_idle()
            self._wake(sys.maxsize)

    def inherit(self) -> None:
        """In a forked child: nothing runs, and a lock that was held at the fork is replaced."""
        self.lock = threading.RLock()
        self._idle = threading.Condition(self.lock)
        self._running.clear()
        self.is_inherited = self.is_stopping = True
        self._queue.close()

    def check_usable(self) -> None:
        """Raises Closed and Forked."""
        if self.is_inherited:
            raise Forked("a controller does not live on in a forked child: make a new one there")
        if self.is_stopping:
            raise Closed(f"controller {self._name} is closed, or its local cache is")

    @property
    def state(self) -> str:
        """In a word."""
        return "inherited" if self.is_inherited else "closed" if self.is_stopping else "open"

    # -- for the threads that work

    def pick(self) -> Taken | None:
        """A key to work on now.  The caller calls `succeed` or `fail` after it."""
        now = self.now()
        if not self.is_active:
            return None
        with self.lock:
            while (taken := self._queue.take(now)) is not None:
                permit = self.permits.begin(taken.key)
                if permit is not None:
                    self._running[taken.key] = _Run(now, permit)
                    self._times.waited(taken.waited_s)
                    return taken
                if not self._refuse(taken.key, now):
                    break
        return None

    def _refuse(self, key: Key, now: float) -> bool:
        """The run must not begin: it is kept until it may, or forgotten when another process has to make it."""
        is_foreign = self.permits.is_foreign(key)
        self._queue.put_back(key, now)
        if is_foreign:
            self._queue.drop(self.permits.is_foreign)
        else:
            self._queue.resume(key, now)
        return is_foreign

    def next_in_s(self) -> float:
        """How long there is nothing to do, for workers and for the follower."""
        mapping_s = self.following.map_again_at - self.now() if self.following.unmapped else math.inf
        return min(self.next_run_in_s(), mapping_s)

    def next_run_in_s(self) -> float:
        """How long there is nothing to do for workers, unless `wake` is called."""
        now = self.now()
        with self.lock:
            next_s = self._queue.next_at(now) - now
        return next_s if self.is_active else max(next_s, _LOOK_S)

    @property
    def is_active(self) -> bool:
        """Runs may begin in this process."""
        return self.permits.is_active

    def request(self, taken: Taken) -> Request | None:
        """What the copy has, read after the key was picked: a change that comes later causes another run.

        None when the object is absent and the follower of the copy may not have told its end yet: the key was put back,
        and the run must not begin.  Raises Closed, when the cache is closed, and GiveUp for an object that does not fit
        the class of its table.
        """
        key, end = taken.key, None
        try:
            found = self._view.cache.get(key.table, key.key)
        except ObjectNotFound:
            found = None
        with self.lock:
            permit = self._running[key].permit
            is_confirmed = key in self._confirmed
            self._confirmed.discard(key)
            if found is None:
                end = self._ends.of(key)
                if end is None and not is_confirmed and self._has_ends(key.table):
                    self._put_back(key)
                    return None
                if end is not None:
                    self._queue.merge(key)  # an end that was told since the key was picked causes no second run
            else:
                self._ends.found(key, found.version)  # an end of a former one: this one may end in another way
            if not permit.is_held():  # this process stood still since the key was picked
                self.permits.end(self._running.pop(key).permit)
                self._refuse(key, self.now())
                return None
        deleted, ending = (None, None) if end is None else (self._shown_last(end.object), end.reason)
        if found is not None:
            try:
                found = self._view.read(found)
            except ValueMismatch as error:
                raise GiveUp(str(error)) from error
        return Request(
            key.table, key.key, found, deleted, ending, taken.attempt, permit.token,
            lambda: self.is_stopping or permit.asks_to_stop(), permit.is_held, self._view.cache,
        )  # fmt: skip

    def _shown_last(self, deleted: DbObject) -> DbObject | None:
        """What is gone has to be brought into order in any case."""
        try:
            return self._view.read(deleted)
        except ValueMismatch:  # counted and logged there
            return None

    def _check_table(self, table: str) -> None:
        """Raises UsageError for a table whose objects the view of the controller does not show."""
        if self._view.only_table not in (None, table):
            raise UsageError(f"the controller works on table {self._view.only_table!r} only, not on {table!r}")

    def _put_back(self, key: Key) -> None:
        self.permits.end(self._running.pop(key).permit)
        self._queue.put_back(key, self.now())
        self._unsure.add(key)

    def take_unsure(self) -> Collection[Key]:
        """The keys that wait for `confirm`."""
        with self.lock:
            unsure, self._unsure = self._unsure, set()
            return unsure

    def confirm(self, keys: Collection[Key]) -> None:
        """Every end was told that the copy had when these keys were put back: they may run."""
        now = self.now()
        with self.lock:
            self._confirmed.update([key for key in keys if self._queue.resume(key, now)])
            self._wake(len(keys))

    def succeed(self, taken: Taken, request: Request, result: object) -> None:
        """The function has returned."""
        try:
            again_after_s = _pause_after(result)
        except BaseException as error:  # noqa: BLE001  whatever was returned, it must not end a worker
            self.fail(taken, error, request)
            return
        key = taken.key
        with self.lock:
            now = self._ended(key)
            self._queue.done(key, now, again_after_s=again_after_s)
            self._forget_end(key, request)
            self.tell_idle()

    def _forget_end(self, key: Key, request: Request | None) -> None:
        """Of the object as the run was given it; it may have been deleted during the run, or once more."""
        if request is not None and request.ending is not None:
            self._ends.settle(key, None if request.deleted is None else request.deleted.version)

    def fail(self, taken: Taken, error: BaseException, request: Request | None) -> None:
        """The function has raised, or there was no ``request`` to give it.

        Nothing that is the fault of a cache which was closed meanwhile is logged.
        """
        if self._view.cache.is_closed and isinstance(error, Closed):
            self.stop()
            self._drop(taken.key)
            return
        key = taken.key
        with self.lock:
            now = self._ended(key)
            if isinstance(error, GiveUp):
                self._queue.give_up(key, now)
                self._forget_end(key, request)
                pause = "Not tried again before it changes."
            else:
                pause = f"Next attempt in {self._queue.fail(key, now):.1f} s."
            self.tell_idle()
        self._log_failure(
            "Controller %s: reconcile of %s failed, attempt %d: %s: %s. %s", self._name, key, taken.attempt,
            type(error).__name__, text_of(error), pause, exc_info=None if isinstance(error, GiveUp) else error,
        )  # fmt: skip

    def _drop(self, key: Key) -> None:
        with self.lock:
            self._queue.done(key, self._ended(key))
            self.tell_idle()

    def _ended(self, key: Key) -> float:
        now, run = self.now(), self._running.pop(key)
        self._times.ran(now - run.begun)
        if not self.permits.end(run.permit):
            self._unheld_runs += 1
            self._log_unheld(
                "Controller %s: the lease of this process was over while reconcile of %s ran, with token %s: another "
                "process may have worked on it at the same time.", self._name, key, run.permit.token,
            )  # fmt: skip
        return now

    def tell_idle(self) -> None:
        """To be called after whatever may have made it idle."""
        with self.lock:
            if self.is_settled:
                self._idle.notify_all()
                for call in tuple(self._idle_calls):
                    call()

    # -- watching

    def wait_idle(self, timeout_s: float) -> None:
        """Raises WaitTimeout."""
        with self.lock:
            if not self._idle.wait_for(lambda: self.is_settled, timeout_s):
                raise self.not_idle(timeout_s)

    def not_idle(self, timeout_s: float) -> WaitTimeout:
        return WaitTimeout(f"controller {self._name} was not idle within {timeout_s} s: {self.statistics()}")

    @property
    def is_settled(self) -> bool:
        """Whether a wait for idleness is over: it is idle, or it ends."""
        with self.lock:
            if self.is_stopping:
                return True
            is_idle = self._queue.is_open and self._queue.is_idle and not self.permits.has_moves
            return self._is_caught_up and is_idle and not self.following.unmapped

    @property
    def _is_caught_up(self) -> bool:
        """Every change of the copy was put.  In this order: what is taken after the first look came later."""
        return not self.following.untold() and not self.following.is_taking

    @property
    def is_resting(self) -> bool:
        """Nothing runs, and nothing will before time has passed or the copy has changed."""
        with self.lock:
            if self.is_stopping:
                return True
            is_begun = self._is_caught_up and self._queue.is_open and not self._queue.running
            return is_begun and not self._unsure and self.next_in_s() > 0

    def time_changed(self) -> None:
        """Called by a clock that jumps."""
        with self.lock:
            self._wake(sys.maxsize)

    @contextlib.contextmanager
    def telling_idle(self, call: Callable[[], None]) -> Iterator[None]:
        """Within it ``call`` is called whenever `is_settled` may have become true, with the lock, from any thread."""
        with self.lock:
            self._idle_calls.add(call)
        try:
            yield
        finally:
            with self.lock:
                self._idle_calls.discard(call)

    def running(self) -> list[tuple[Key, float]]:
        """The keys that run, each with for how many seconds, the longest first."""
        now = self.now()
        with self.lock:
            return sorted(((key, now - run.begun) for key, run in self._running.items()), key=lambda one: -one[1])

    def watch(self) -> None:
        """To be called now and then: names a run that hangs."""
        running = self.running()
        if running and running[0][1] > HANGING_S:
            key, age_s = running[0]
            self._log_hanging(
                "Controller %s: reconcile of %s has been running for %.0f s; %d run.",
                self._name, key, age_s, len(running),
            )  # fmt: skip

    def statistics(self) -> ControllerStatistics:
        now, is_active = self.now(), self.is_active
        with self.lock:
            queue, counters = self._queue, self._queue.counters
            queue.tidy(now)
            return ControllerStatistics(
                has_begun=queue.is_open,
                is_active=is_active,
                ready=queue.ready,
                running=queue.running,
                waiting=queue.waiting,
                oldest_ready_s=queue.oldest_ready_s(now),
                oldest_running_s=now - min((run.begun for run in self._running.values()), default=now),
                runs=counters.runs,
                failures=counters.failures,
                given_up=counters.given_up,
                unheld_runs=self._unheld_runs,
                queue=RunQueueStatistics(counters.retries, counters.requeues, counters.merged),
                following=FollowingStatistics(
                    unmapped=self.following.unmapped,
                    mapping_errors=self.following.mapping_errors,
                    complete_readings=self.following.complete_readings,
                    ends_forgotten=self._ends.forgotten,
                ),
                times=self._times.read(),
            )


def _pause_after(result: object) -> float | None:
    """After how many seconds a run is to be made again.  Raises UsageError."""
    if result is None:
        return None
    if isinstance(result, RequeueAfter):
        return check_seconds(result.seconds, "RequeueAfter")
    raise UsageError(f"reconcile returns None or RequeueAfter, not a {type(result).__name__}")


def text_of(error: BaseException) -> str:
    """What an error of the program says; its class may be one that cannot."""
    try:
        return str(error)
    except BaseException as trouble:  # noqa: BLE001  it was the program's, and is only looked at
        return f"(its text cannot be had: {type(trouble).__name__})"
