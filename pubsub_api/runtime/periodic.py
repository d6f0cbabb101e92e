"""Work that is repeated until its owner stops it: in a thread of its own, or on threads that the process shares.

If the thread ended in silence, its work would never be done again.  So every Exception of the work is counted and
logged at a limited rate, and the work is tried again.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol, Union

from pubsub_api.core.errors import Closed, HeliographError, LimitReached
from pubsub_api.runtime import forking
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.runtime.shared_threads import SharedTask
from pubsub_api.runtime.threads import start_thread

Pause = Union[float, Callable[[], float]]  # noqa: UP007  evaluated at run time, on Python 3.10 too
"""Seconds, or a function that returns them and is called before each pause."""


def with_jitter(interval_s: float) -> Callable[[], float]:
    """A `Pause` of 75 to 125% of the interval, so that processes that began together do not work in step."""
    return lambda: interval_s * random.uniform(0.75, 1.25)


class Counters(Protocol):
    failures: int


class Failures:
    """Counts and logs, at a limited rate, the exceptions that must not end a thread.  Not thread-safe.

    ``trouble`` is the sentence for the log without its full stop, for example "Outbox: cannot be swept".  An exception
    that is no HeliographError is unexpected, and is logged with its traceback.  ``counters`` may be statistics of the
    owner, whose ``failures`` is incremented.
    """

    def __init__(
        self,
        logger: logging.Logger,
        trouble: str,
        counters: Counters | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trouble = trouble
        self._log = RateLimitedLog(logger, clock=clock)
        self._counters = counters
        self.count = 0
        self.is_failing = False
        """The last attempt failed."""

    def note(self, error: Exception) -> None:
        self.count += 1
        if self._counters is not None:
            self._counters.failures += 1
        self.is_failing = True
        unexpected = None if isinstance(error, HeliographError) else error
        self._log("%s: %s. It will be tried again.", self._trouble, error, exc_info=unexpected)


def attempt(work: Callable[[], object], failures: Failures, on_failure: Callable[[Exception], None]) -> bool:
    """Whether the work succeeded.  Raises Closed if the work does, and no other Exception."""
    try:
        work()
    except Closed:
        raise
    except Exception as error:  # noqa: BLE001  counted and logged
        failures.note(error)
        on_failure(error)
    else:
        failures.is_failing = False
    return not failures.is_failing


class PeriodicThread:
    """Calls ``work`` again and again in a daemon thread of that name, from `start` to `stop`, with pauses between.

    ``pause_s`` is the pause after work that succeeded, and before the first call unless ``at_once``.  ``retry_s`` is
    the pause after work that failed, by default the same.  ``on_failure`` is called in the thread after each failure,
    and must not raise.  Work that raises Closed ends the thread: its object was closed.

    All methods may be called from any thread.  In a forked child nothing runs until `start` is called there.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        failures: Failures,
        *,
        pause_s: Pause,
        retry_s: Pause | None = None,
        at_once: bool = False,
        on_failure: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        self.name = name
        self.failures = failures
        self._work = work
        self._pause_s = pause_s
        self._retry_s = pause_s if retry_s is None else retry_s
        self._at_once = at_once
        self._on_failure = on_failure
        self._is_stopping = False
        self._reset()
        forking.register(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wakeup = threading.Event()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._thread, self._wakeup, self._done))
        self._reset()

    @property
    def is_started(self) -> bool:
        """A thread was started, whether or not it was stopped since."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread, unless it was started or stopped before.  Raises LimitReached; then call it again later."""
        with self._lock:
            if self._thread is not None or self._is_stopping:
                return
            thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            start_thread(thread)
            self._thread = thread

    def try_start(self) -> bool:
        """As `start`; returns False, and notes a failure, when the system has no room for another thread now."""
        try:
            self.start()
        except LimitReached as error:
            self.failures.note(error)
            return False
        return True

    def wake(self) -> None:
        """End the pause: work now instead of later.  If the work is running, it runs once more."""
        self._wakeup.set()

    def wait_done(self, *, timeout_s: float) -> bool:
        """Block until the work has succeeded once; False when the time is over."""
        return self._done.wait(timeout_s)

    def ask_to_stop(self) -> None:
        """End after the work that is running.  Does not block."""
        with self._lock:
            self._is_stopping = True
            self._wakeup.set()

    def stop(self) -> None:
        """`ask_to_stop`, and block until the thread has ended, unless the work itself calls this.  Idempotent."""
        self.ask_to_stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        wakeup = self._wakeup
        if not self._at_once:
            wakeup.wait(_seconds(self._pause_s))
        while not self._is_stopping:
            wakeup.clear()
            try:
                if attempt(self._work, self.failures, self._on_failure):
                    self._done.set()
            except Closed:
                return
            if not self._is_stopping:  # `ask_to_stop` may have been called before the event was cleared above
                wakeup.wait(_seconds(self._retry_s if self.failures.is_failing else self._pause_s))


class PeriodicTask:
    """As a `PeriodicThread` with ``at_once``, on threads that the process shares, for objects that a process may have
    hundreds of.  It cannot be used in a forked child.
    """

    def __init__(self, work: Callable[[], object], failures: Failures, *, pause_s: Pause) -> None:
        self.failures = failures
        self._work = work
        self._pause_s = pause_s
        self._done = threading.Event()
        self._task = SharedTask(self._attempt)
        self.is_started = False

    def start(self) -> None:
        """Begin, unless it has begun.  Raises LimitReached; then call it again later."""
        if not self.is_started:
            self._task.start()
            self.is_started = True

    def wake(self) -> None:
        """Work now instead of later."""
        self._task.wake()

    def wait_done(self, *, timeout_s: float) -> bool:
        """Block until the work has succeeded once; False when the time is over."""
        return self._done.wait(timeout_s)

    def stop(self) -> None:
        """End, and block until the running call has returned, unless the work itself calls this.  Idempotent."""
        self._task.close()

    def _attempt(self) -> float:
        try:
            if attempt(self._work, self.failures, lambda _error: None):
                self._done.set()
        except Closed:
            return math.inf
        return time.monotonic() + _seconds(self._pause_s)


def _seconds(pause_s: Pause) -> float:
    return pause_s() if callable(pause_s) else pause_s
