"""Threads that all objects of a process share: a few that do work, and one for timers.

A subscriber or a local cache has work only now and then.  If each had threads of its own, they would be idle nearly
always, and a process with hundreds of subscribers would have thousands of threads.

Work may block, and must not delay other work.  Up to `_THREADS_AT_ONCE` threads are started as soon as there is work.
When work has waited for `_WAIT_MAX_S` because all threads are busy, more are started: half as many as there are, each
time.  A thread without work ends after `_IDLE_S`.  The function of a timer runs on the thread of the timers, so it must
return quickly.

A forked child begins with no threads, no work and no timers, and starts threads for new work.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable

from pubsub_api.errors import LimitReached
from pubsub_api.runtime import forking
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

_THREADS_AT_ONCE = 4
"""More threads are started only when work has waited."""
_WAIT_MAX_S = 0.01
_IDLE_S = 1.0
_RETRY_S = 1.0
"""Pause after work that raised, which is a defect of the work."""

Work = Callable[[], object]


class _Worker:
    """A thread and its work.  An idle one waits until ``has_work`` is released, after ``work`` was set."""

    __slots__ = ("has_work", "work")

    def __init__(self, work: Work) -> None:
        self.work: Work | None = work
        self.has_work = threading.Lock()
        self.has_work.acquire()


class SharedTimer:
    """Calls ``tick`` on the thread of the timers at the time that was set; ``tick`` returns the next time, `math.inf`
    for never.  Times are those of `time.monotonic`.  ``tick`` must return quickly, and must not raise."""

    __slots__ = ("entry", "tick")

    def __init__(self, tick: Callable[[], float]) -> None:
        self.tick = tick
        self.entry = 0
        """Number of its valid entry in the heap; 0: it was removed, or was not added yet."""


class SharedThreads:
    """See the module's description.  Every method may be called from any thread."""

    def __init__(self) -> None:
        self._log = RateLimitedLog(LOG, level=logging.ERROR)
        self.after_fork_in_child()
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Work] = deque()
        """Work that no thread has begun."""
        self._idle: list[_Worker] = []
        self._workers = 0
        self._timers_changed = threading.Condition(threading.Lock())
        """Guards the attributes below."""
        self._timers: set[SharedTimer] = set()
        self._heap: list[tuple[float, int, SharedTimer]] = []
        """Time, number of the entry, timer.  Setting a timer adds an entry, and its earlier entries are ignored."""
        self._entry_numbers = itertools.count(1)
        self._wakes_at = math.inf
        """The time at which the thread of the timers wakes up."""
        self._has_timer_thread = False
        self._growth_timer = SharedTimer(self._add_workers)

    # -- work

    def run(self, work: Work) -> None:
        """Have a thread call ``work`` soon.  Does not block.  ``work`` must not raise.

        Raises LimitReached, and does nothing, when there is no thread and the system has no room for one.
        """
        with self._lock:
            if self._idle:
                worker = self._idle.pop()  # the one that became idle last, so that the others reach _IDLE_S and end
                worker.work = work
                worker.has_work.release()
                return
            if self._workers < _THREADS_AT_ONCE:
                try:
                    self._start_worker(work)
                    return
                except LimitReached:
                    if not self._workers:
                        raise
            self._waiting.append(work)
            if len(self._waiting) > 1:
                return  # the timer is set
        try:
            self.add_timer(self._growth_timer)
            self.set_timer(self._growth_timer, time.monotonic() + _WAIT_MAX_S)
        except LimitReached as error:
            self._log("Work waits for threads that are busy, and no more can be started: %s", error)

    def _add_workers(self) -> float:
        """Start threads for work that still waits.  The function of a timer."""
        with self._lock:
            try:
                for _ in range(min(len(self._waiting), max(1, self._workers // 2))):
                    self._start_worker(self._waiting[0])
                    self._waiting.popleft()
            except LimitReached as error:
                self._log("Work waits for threads that are busy, and no more can be started: %s", error)
            if self._waiting:
                return time.monotonic() + _WAIT_MAX_S
            self.remove_timer(self._growth_timer)  # under the lock: `run` may be about to add it again
        return math.inf

    def _start_worker(self, work: Work) -> None:
        """Under the lock.  Raises LimitReached."""
        worker = _Worker(work)
        start_thread(threading.Thread(target=self._run_worker, args=(worker,), name="heliograph-shared", daemon=True))
        self._workers += 1

    def _run_worker(self, worker: _Worker) -> None:
        lock = self._lock
        while True:
            work, worker.work = worker.work, None
            assert work is not None
            try:
                work()
            except BaseException:
                LOG.exception("Work of a shared thread raised, which it must not; going on with other work.")
            del work  # an idle thread must not keep its objects alive
            if self._lock is not lock:
                return  # the work called fork(), and this is the child
            with lock:
                if self._waiting:
                    worker.work = self._waiting.popleft()
                    continue
                self._idle.append(worker)
            if not worker.has_work.acquire(timeout=_IDLE_S) and self._may_end(worker):
                return

    def _may_end(self, worker: _Worker) -> bool:
        with self._lock:
            if worker not in self._idle:
                worker.has_work.acquire()  # `run` gave it work after the time-out
                return False
            self._idle.remove(worker)
            self._workers -= 1
            return True

    # -- timers

    def add_timer(self, timer: SharedTimer) -> None:
        """The timer is called only after `set_timer`.  Raises LimitReached when the system has no room for a thread."""
        with self._timers_changed:
            if not self._has_timer_thread:
                start_thread(threading.Thread(target=self._run_timers, name="heliograph-timer", daemon=True))
                self._has_timer_thread = True
            self._timers.add(timer)

    def set_timer(self, timer: SharedTimer, due: float) -> None:
        """Call the timer at this time, instead of the time that was set before.  Nothing for one that was removed."""
        with self._timers_changed:
            if timer in self._timers:
                self._push(timer, due)
                if due < self._wakes_at:
                    self._timers_changed.notify()

    def remove_timer(self, timer: SharedTimer) -> None:
        """No call begins any more, but one may be running.  The thread ends after the last timer was removed."""
        with self._timers_changed:
            self._timers.discard(timer)
            timer.entry = 0
            if not self._timers:
                self._timers_changed.notify()

    def _push(self, timer: SharedTimer, due: float) -> None:
        timer.entry = next(self._entry_numbers)
        if due < math.inf:
            heapq.heappush(self._heap, (due, timer.entry, timer))

    def _run_timers(self) -> None:
        timers_changed = self._timers_changed
        while True:
            with timers_changed:
                timer = self._next_timer()
                if timer is None:
                    return
                entry = timer.entry
            try:
                due = timer.tick()
            except Exception:
                LOG.exception("A timer raised, which it must not; it is called again.")
                due = time.monotonic() + _RETRY_S
            with timers_changed:
                if timer.entry == entry:  # it was neither set nor removed meanwhile
                    self._push(timer, due)

    def _next_timer(self) -> SharedTimer | None:
        """Under the lock: wait for a timer that is due.  None when there are no timers: then the thread must end."""
        heap = self._heap
        while self._timers:
            while heap and heap[0][2].entry != heap[0][1]:
                heapq.heappop(heap)
            self._wakes_at = heap[0][0] if heap else math.inf
            wait_s = self._wakes_at - time.monotonic()
            if wait_s <= 0:
                self._wakes_at = -math.inf  # a thread that sets a timer now need not wake this one
                return heapq.heappop(heap)[2]
            self._timers_changed.wait(min(wait_s, threading.TIMEOUT_MAX))
        heap.clear()
        self._has_timer_thread = False
        return None


THREADS = SharedThreads()
"""The threads of this process."""


def run_soon(work: Work) -> None:
    """Have a shared thread call ``work``; call it in this thread if the system has no room for another."""
    try:
        THREADS.run(work)
    except LimitReached:
        work()


class SharedTask:
    """Work that shared threads repeat, one call at a time: after each `wake`, and at the time that it asked for.

    ``work`` returns the time, of `time.monotonic`, of its next call; `math.inf`: only after the next `wake`.  When
    `wake` is called while it runs, it is called once more.  An exception of it is logged, and it is called again.
    Nothing is done before `start`.  In a forked child the task is closed.
    """

    def __init__(self, work: Callable[[], float]) -> None:
        self._work = work
        self._timer = SharedTimer(self._on_time)
        self._is_queued = True
        """A thread runs the work, or will.  True before `start`, too: `wake` need not hand it to a thread then."""
        self._is_woken = False
        self._worker = 0
        """The identifier of the thread that runs the work, 0 when none does."""
        self._is_closed = False
        self._changed = threading.Condition(threading.Lock())
        forking.register(self)

    def after_fork_in_child(self) -> None:
        forking.set_aside(self._changed)
        self._changed = threading.Condition(threading.Lock())
        self._is_closed = True
        self._worker = 0

    def start(self) -> None:
        """Work once now, and then as described above; nothing when it is closed.  Raises LimitReached."""
        if self._is_closed:
            return
        THREADS.add_timer(self._timer)
        try:
            THREADS.run(self._do)
        except LimitReached:
            THREADS.remove_timer(self._timer)
            raise

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread runs the work."""
        return self._worker == threading.get_ident()

    def wake(self) -> None:
        """Does not block."""
        with self._changed:
            self._is_woken = True
            if self._is_queued or self._is_closed:
                return
            self._is_queued = True
        try:
            THREADS.run(self._do)
        except LimitReached as error:
            LOG.error("%s. It will be tried again.", error)
            with self._changed:
                self._is_queued = False
                THREADS.set_timer(self._timer, time.monotonic() + _RETRY_S)

    def _on_time(self) -> float:
        self.wake()
        return math.inf

    def _do(self) -> None:
        while self._begin():
            try:
                due = self._work()
            except BaseException:
                LOG.exception("Work of a shared thread raised; it is called again.")
                due = time.monotonic() + _RETRY_S
            with self._changed:
                self._worker = 0
                self._is_woken |= due <= time.monotonic()
                self._is_queued = self._is_woken
                if self._is_closed:
                    self._changed.notify_all()
                elif not self._is_woken:
                    if due < math.inf:
                        THREADS.set_timer(self._timer, due)
                    return

    def _begin(self) -> bool:
        with self._changed:
            self._is_woken = False
            if not self._is_closed:
                self._worker = threading.get_ident()
            return not self._is_closed

    def close(self, *, wait: bool = True) -> None:
        """Begin no more calls.  With ``wait``, block until the running call has returned, unless it calls this."""
        with self._changed:
            self._is_closed = True
            if wait and not self.is_mine:
                self._changed.wait_for(lambda: not self._worker)
        THREADS.remove_timer(self._timer)
