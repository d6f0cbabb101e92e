"""Threads that everything in a process shares: a few that do work, and one that keeps times.

A subscriber or a local cache has work only now and then.  A thread of its own for each kind of work would be idle
nearly always, and a process with hundreds of them would have thousands of threads.  So work is handed over here.

Work may take its time, and must not hold up that of others.  `_READY_MAX` threads do what comes; when work has waited
for `_PATIENCE_S`, because all of them are busy, more are started, half as many as there are each time.  A thread
without work ends after `_IDLE_S`.  What a timer calls runs on the thread of the timers, so it must be brief.

In a forked child nothing of this is left: what was to be done there is not done, and new threads are made for new work.
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
from pubsub_api.runtime.rare_logging import SeldomLog
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

_READY_MAX = 4
"""So many threads are started at once when there is work.  More only when work waits."""
_PATIENCE_S = 0.01
_IDLE_S = 1.0
_RETRY_S = 1.0
"""After work that raised, which is an error in it."""

Work = Callable[[], object]


class _Worker:
    """A thread that has no work: it waits until ``free`` is released, which says that ``work`` was set."""

    __slots__ = ("free", "work")

    def __init__(self, work: Work | None) -> None:
        self.work = work
        self.free = threading.Lock()
        self.free.acquire()


class SharedTimer:
    """Calls ``tick`` on the thread of the timers when its time has come; ``tick`` returns the next time, `math.inf` for
    never.  Times are those of `time.monotonic`.  ``tick`` must be brief and not raise."""

    __slots__ = ("due", "number", "tick")

    def __init__(self, tick: Callable[[], float]) -> None:
        self.tick = tick
        self.due = math.inf
        self.number = 0
        """0: it is not among the timers."""


class SharedThreads:
    """See the module's description.  Every method may be called from any thread."""

    def __init__(self) -> None:
        self._log = SeldomLog(LOG, level=logging.ERROR)
        self.after_fork_in_child()
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Work] = deque()
        """Work that no thread has begun."""
        self._idle: list[_Worker] = []
        self._workers = 0
        self._timed = threading.Condition(threading.Lock())
        """Guards what follows."""
        self._timers: set[SharedTimer] = set()
        self._heap: list[tuple[float, int, SharedTimer]] = []
        """A timer is in it for each time it was set to; only the entry with its present time counts."""
        self._numbers = itertools.count(1)
        self._looked_for = math.inf
        """The thread of the timers waits for this time."""
        self._has_timer_thread = False
        self._growth = SharedTimer(self._grow)

    # -- work

    def run(self, work: Work) -> None:
        """Have a thread call ``work``, soon.  It must not raise.

        Raises LimitReached, and nothing is done then, where the system has no room for the first thread.
        """
        with self._lock:
            if self._idle:
                worker = self._idle.pop()  # the one that was used last: the others may end
                worker.work = work
                worker.free.release()
                return
            if self._workers < _READY_MAX:
                try:
                    self._start_worker(work)
                    return
                except LimitReached:
                    if not self._workers:
                        raise
            self._waiting.append(work)
            is_first = len(self._waiting) == 1
        if is_first:
            self._look_after_waiting()

    def _look_after_waiting(self) -> None:
        try:
            self.add_timer(self._growth)
            self.set_timer(self._growth, time.monotonic() + _PATIENCE_S)
        except LimitReached as error:
            self._log("Work waits for threads that are busy, and no more can be started: %s", error)

    def _grow(self) -> float:
        """Some work was waiting: if the same still does, start threads for it."""
        with self._lock:
            try:
                for _ in range(min(len(self._waiting), max(1, self._workers // 2))):
                    self._start_worker(self._waiting[0])
                    self._waiting.popleft()
            except LimitReached as error:
                self._log("Work waits for threads that are busy, and no more can be started: %s", error)
            if self._waiting:
                return time.monotonic() + _PATIENCE_S
            self.remove_timer(self._growth)  # under the lock: else what begins to wait now would not be looked after
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
            del work  # it may refer to much
            if self._lock is not lock:
                return  # the work has forked, and this is the child
            with lock:
                if self._waiting:
                    worker.work = self._waiting.popleft()
                    continue
                self._idle.append(worker)
            if not worker.free.acquire(timeout=_IDLE_S) and self._may_end(worker):
                return

    def _may_end(self, worker: _Worker) -> bool:
        with self._lock:
            if worker not in self._idle:
                worker.free.acquire()  # it was given work a moment ago
                return False
            self._idle.remove(worker)
            self._workers -= 1
            return True

    # -- times

    def add_timer(self, timer: SharedTimer) -> None:
        """Nothing is called before `set_timer`.  Raises LimitReached where the system has no room for the thread."""
        with self._timed:
            if not self._has_timer_thread:
                start_thread(threading.Thread(target=self._run_timers, name="heliograph-timer", daemon=True))
                self._has_timer_thread = True
            if timer not in self._timers:
                timer.due = math.inf
                self._timers.add(timer)

    def set_timer(self, timer: SharedTimer, due: float) -> None:
        """Call it then, and not at the time it was set to before."""
        with self._timed:
            if timer in self._timers:
                self._push(timer, due)
                if due < self._looked_for:
                    self._timed.notify()

    def remove_timer(self, timer: SharedTimer) -> None:
        """It is not called again, but a call may be under way.  The thread ends with the last timer."""
        with self._timed:
            self._timers.discard(timer)
            timer.number = 0
            if not self._timers:
                self._timed.notify()

    def _push(self, timer: SharedTimer, due: float) -> None:
        timer.due = due
        timer.number = next(self._numbers)
        if due < math.inf:
            heapq.heappush(self._heap, (due, timer.number, timer))

    def _run_timers(self) -> None:
        timed = self._timed
        while True:
            with timed:
                timer = self._next_timer()
                if timer is None:
                    return
                number = timer.number
            try:
                due = timer.tick()
            except Exception:
                LOG.exception("A timer raised, which it must not; it is called again.")
                due = time.monotonic() + _RETRY_S
            with timed:
                if timer.number == number:  # else it was set meanwhile, or removed
                    self._push(timer, due)

    def _next_timer(self) -> SharedTimer | None:
        """Under the lock: wait for a timer whose time has come.  None when there are none, and the thread has ended."""
        heap = self._heap
        while self._timers:
            while heap and heap[0][2].number != heap[0][1]:
                heapq.heappop(heap)
            self._looked_for = heap[0][0] if heap else math.inf
            wait_s = self._looked_for - time.monotonic()
            if wait_s <= 0:
                self._looked_for = -math.inf  # a thread that sets a timer now need not wake this one
                return heapq.heappop(heap)[2]
            self._timed.wait(min(wait_s, threading.TIMEOUT_MAX))
        heap.clear()
        self._has_timer_thread = False
        return None


THREADS = SharedThreads()
"""Those of this process."""


def run_soon(work: Work) -> None:
    """Have a shared thread call ``work``; call it here where the system has no room for a thread."""
    try:
        THREADS.run(work)
    except LimitReached:
        work()


class SharedTask:
    """Work that is done again and again by shared threads, one call at a time: after each `wake`, and in time.

    ``work`` returns the time, of `time.monotonic`, when it wants to be called at the latest, `math.inf` when only after
    the next `wake`.  What is woken while it works is called once more.  Work that raises is logged and called again.
    Nothing is done before `start`.  In a forked child it is closed.
    """

    def __init__(self, work: Callable[[], float]) -> None:
        self._work = work
        self._timer = SharedTimer(self._on_time)
        self._is_queued = True
        """A thread does it, or will.  Until `start`, which makes it true, no other thread need have it done."""
        self._is_woken = False
        self._worker = 0
        """The thread that works."""
        self._is_closed = False
        self._changed = threading.Condition(threading.Lock())
        forking.register(self)

    def after_fork_in_child(self) -> None:
        forking.set_aside(self._changed)
        self._changed = threading.Condition(threading.Lock())
        self._is_closed = True
        self._worker = 0

    def start(self) -> None:
        """Work once, and from now on; nothing when it is closed.  Raises LimitReached where there is no room."""
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
        """Whether the calling thread is the one that works."""
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
            LOG.error("%s. It is tried again.", error)
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

    def close(self, *, is_waiting: bool = True) -> None:
        """Do not work again.  Waits for the call that is under way, unless it is the caller, or is told not to."""
        with self._changed:
            self._is_closed = True
            if is_waiting and not self.is_mine:
                self._changed.wait_for(lambda: not self._worker)
        THREADS.remove_timer(self._timer)
