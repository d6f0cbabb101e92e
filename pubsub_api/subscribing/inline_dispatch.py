"""Who calls the user: the dispatcher, or for a lone frame the very thread of the driver that received it.

The second spares the frame the way to another thread, which has to be woken and to get the interpreter first.  But a
callback may last, and while it does that thread receives nothing.  So somebody looks after it, and has the driver go on
in another thread when it stays away; the dispatcher then does all the work for a while.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pubsub_api.errors import LimitReached
from pubsub_api.runtime.rare_logging import SeldomLog

LOG = logging.getLogger(__name__)

Relieve = Callable[[], None]
"""Makes the driver go on receiving in another thread."""

LENT_MAX_S = 0.025
"""A thread that is away for longer is replaced, after twice as long at most: still below ``message_delay_window``."""
PAUSE_S = 10.0
"""For how long no thread is borrowed after one had to be replaced: a callback that has lasted once will again."""
WATCH_S = 0.1
"""For how long somebody goes on looking after the last loan, so that not each of them has to wake the one who does.
A few looks: an event that comes alone once a second must not cost forty."""


class InlineDispatch:
    """At most one loan at a time.  The owner calls everything under its lock, except where it says otherwise."""

    __slots__ = ("_borrower", "_lent_at", "_log", "_not_before", "_relieve", "calling", "is_watched", "relieved")

    def __init__(self) -> None:
        self.calling = threading.Lock()
        """Held by the thread that calls the user.  The dispatcher takes it without the owner's lock."""
        self.is_watched = False
        """`look_after` has to be called every `LENT_MAX_S`."""
        self.relieved = 0
        """How many threads were replaced."""
        self._relieve: Relieve | None = None
        self._lent_at = float("-inf")
        self._not_before = float("-inf")
        self._borrower = 0
        self._log = SeldomLog(LOG, level=logging.ERROR)

    def begin(self, relieve: Relieve, now: float) -> bool:
        """Borrow the present thread to call the user; False when that cannot be now."""
        if now < self._not_before or not self.calling.acquire(blocking=False):
            return False
        self._relieve = relieve
        self._lent_at = now
        self._borrower = threading.get_ident()
        return True

    def end(self) -> bool:
        """The thread is free again.  True when it was replaced meanwhile."""
        is_relieved = self._relieve is None
        self._relieve = None
        self._borrower = 0
        self.calling.release()
        return is_relieved

    def look_after(self, now: float) -> None:
        """Have the thread replaced when it is away for too long."""
        if self._relieve is None:
            self.is_watched = now - self._lent_at < WATCH_S
        elif now - self._lent_at >= LENT_MAX_S:
            self._not_before = now + PAUSE_S
            try:
                self._relieve()
            except (LimitReached, RuntimeError) as error:  # no thread can be started: tried again until it comes back
                self._log("A callback lasts, and nobody receives meanwhile: %s", error)
                return
            self._relieve = None
            self.relieved += 1
            LOG.info("A callback lasts; receiving goes on in another thread.")

    @property
    def is_borrower(self) -> bool:
        """Whether the present thread is the one that is lent.  May be asked without the owner's lock."""
        return self._borrower == threading.get_ident()
