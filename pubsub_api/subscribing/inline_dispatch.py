"""Which thread calls the user: the dispatcher, or for a lone frame the very thread of the driver that received it.

The second spares the frame the way to another thread, which has to be woken and to get the interpreter first.  But a
callback may last, and while it does that thread receives nothing, for this subscriber and for others that it serves.
So a timer looks after it, and has the driver go on in another thread when it stays away; the dispatcher then does all
the work for a while.  It also does for a callback that usually takes more than a moment: that gains nothing here.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from pubsub_api.errors import LimitReached
from pubsub_api.runtime import forking
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.runtime.shared_threads import THREADS, SharedTimer

LOG = logging.getLogger(__name__)

Relieve = Callable[[], None]
"""Makes the driver go on receiving in another thread."""

LENT_MAX_S = 0.025
"""A thread that is away for longer is replaced, after twice as long at most: still below ``message_delay_window``."""
PAUSE_S = 10.0
"""For how long no thread is borrowed after one had to be replaced: a callback that has lasted once will again."""
MOMENT_S = 0.002
"""A callback that takes longer on average is left to the dispatcher: a way to another thread takes less, and the
subscribers that share the driver's thread would wait for each other."""
MOMENT_PAUSE_S = 1.0
"""For how long.  Less than the other pause: a thread that was not given a processor for a while looks the same."""
_AVERAGE_OF = 16
LOCK_WAIT_S = 0.01
"""For so long the timers' thread waits for the lock of a subscriber; then it comes back later."""
WATCH_S = 0.1
"""For how long the timer goes on looking after the last loan, so that not each loan has to wake it.  A few looks: an
event that comes alone once a second must not cost forty."""


class LoanWatch:
    """Looks after all threads of the process that are lent, every `LENT_MAX_S` while there are.  For any thread."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._timer = SharedTimer(self._look)
        self._borrowers: set[InlineDispatch] = set()
        self.is_watching = False

    def add(self, borrower: InlineDispatch, now: float) -> bool:
        """Have it looked after until it has borrowed nothing for a while.  Under its lock.  False: it is not."""
        self._borrowers.add(borrower)
        if not self.is_watching:  # looked at after it was added: `_look` does it the other way round
            self._watch(now)
        return self.is_watching

    def _watch(self, now: float) -> None:
        try:
            THREADS.add_timer(self._timer)
        except LimitReached as error:  # tried again with the next loan
            LOG.error("No thread looks after a callback: %s", error)
            return
        self.is_watching = True
        THREADS.set_timer(self._timer, now + LENT_MAX_S)

    def _look(self) -> float:
        now = time.monotonic()
        for borrower in list(self._borrowers):
            if borrower.lock.acquire(timeout=LOCK_WAIT_S):
                try:
                    if not borrower.look_after(now):
                        self._borrowers.discard(borrower)
                finally:
                    borrower.lock.release()
        if not self._borrowers:
            THREADS.remove_timer(self._timer)
            self.is_watching = False
            if not self._borrowers:
                return math.inf
            self._watch(now)
        return now + LENT_MAX_S


LOANS = LoanWatch()
"""Those of this process."""


class InlineDispatch:
    """At most one loan at a time.  Its owner calls everything under ``lock``, except where it says otherwise."""

    __slots__ = (
        "_average_s", "_is_watched", "_lent_at", "_log", "_not_before", "_relieve", "calling", "lock",
        "relieved",
    )  # fmt: skip

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self.calling = threading.RLock()
        """Held by the thread that calls the user.  The dispatcher takes it without the owner's lock."""
        self.relieved = 0
        """How many threads were replaced."""
        self._relieve: Relieve | None = None
        self._lent_at = float("-inf")
        self._not_before = float("-inf")
        self._average_s = 0.0
        self._is_watched = False
        self._log = RateLimitedLog(LOG, level=logging.ERROR)

    def begin(self, relieve: Relieve, now: float) -> bool:
        """Borrow the present thread to call the user; False when that cannot be now."""
        if now < self._not_before or self._relieve is not None or not self.calling.acquire(False):
            return False
        self._relieve = relieve
        self._lent_at = now
        if not self._is_watched:
            self._is_watched = LOANS.add(self, now)
        return True

    def end(self, now: float) -> bool:
        """The thread is free again.  True when it was replaced meanwhile."""
        is_relieved = self._relieve is None
        average_s = self._average_s
        self._average_s = average_s = average_s + (now - self._lent_at - average_s) / _AVERAGE_OF
        if average_s > MOMENT_S:
            self._average_s = min(average_s, 2 * MOMENT_S)  # so that one that has become brief is soon known to be
            self._not_before = max(self._not_before, now + MOMENT_PAUSE_S)
        self._relieve = None
        self.calling.release()
        return is_relieved

    def look_after(self, now: float) -> bool:
        """Have the thread replaced when it is away for too long.  False when it need not be looked after any more."""
        lent_s = now - self._lent_at
        if self._relieve is None:
            self._is_watched = lent_s < WATCH_S
        elif lent_s >= LENT_MAX_S:
            self._not_before = now + PAUSE_S
            try:
                self._relieve()
            except (LimitReached, RuntimeError) as error:  # no thread can be started: tried again until it comes back
                self._log("A callback lasts, and no thread receives meanwhile: %s", error)
                return True
            self._relieve = None
            self.relieved += 1
            LOG.info("A callback lasts; receiving goes on in another thread.")
        return self._is_watched

    @property
    def is_borrower(self) -> bool:
        """Whether the present thread is the one that is lent.  May be asked without the owner's lock."""
        return bool(self.calling._is_owned())  # type: ignore[attr-defined]  # as `threading.Condition` asks it
