"""Calling back with what changed in a local cache: in order, as much together as is ready, and again when it failed.

A callback that raises is called again with the same changes and those that came since, after a pause that grows.  So
nothing is left out, and a callback may get a change twice.  What waits is bounded: when it is too much, it is
replaced by one `Resynced` of kind ``overrun``, after which the callback reads the whole cache.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence

from nb_api.core.copy.differences import CacheChange, Resynced
from pubsub_api.runtime.backoff import Backoff

LOG = logging.getLogger(__name__)

OnChanges = Callable[[Sequence[CacheChange]], None]

PORTION = 1000
"""With so many changes the callback is called, whatever follows."""
PATIENCE_S = 0.02
"""How long changes wait for more that were said to follow, should these not be changes."""


class CallbackQueue:
    """Changes that wait for the callback, which runs inside of `call`.

    Not thread-safe: the owner serialises calls, but for `due`, `close` and the counters.  ``wants_changed`` is called
    when `is_overrun` has changed: differences are not wanted after an overrun, until the callback took that.
    """

    def __init__(
        self,
        on_changes: OnChanges,
        *,
        size_max: int,
        pause_s: float,
        pause_max_s: float,
        wants_changed: Callable[[], None],
    ) -> None:
        self._on_changes = on_changes
        self._size_max = size_max
        self._backoff = Backoff(pause_s, pause_max_s)
        self._wants_changed = wants_changed
        self._waiting: list[CacheChange] = []
        self._is_calling = False
        self.is_idle = True
        """Nothing waits, and the callback has returned: it can be told what comes next."""
        self.is_overrun = False
        self.is_primed = True
        """It has taken the objects that were there when it came."""
        self._is_closed = False
        self._not_before = -math.inf
        """The callback has raised."""
        self._deadline = math.inf
        self.errors = 0
        self.overruns = 0

    @property
    def waiting(self) -> int:
        """Changes that the callback has not taken."""
        return len(self._waiting)

    @property
    def due(self) -> float:
        """When `call` has something to do."""
        return self._deadline if self._waiting else math.inf

    def prime(self, changes: Sequence[CacheChange], now: float) -> None:
        """Begin with these, the objects that are there; they do not count as changes that were not taken in time."""
        self._size_max += len(changes)
        self._waiting = list(changes)
        self.is_idle = False
        self._deadline = now
        self.is_primed = not changes

    def add(self, changes: Sequence[CacheChange], revision: int) -> None:
        """``revision``: up to where the copy is complete."""
        if self.is_overrun:
            return
        self._waiting += changes
        self.is_idle = False
        if len(self._waiting) > max(self._size_max, PORTION):
            self._waiting = [Resynced("overrun", "the callback did not take the changes", revision)]
            self.is_overrun = True
            self.overruns += 1
            self._wants_changed()

    def tell(self, changes: Sequence[CacheChange], now: float) -> bool:
        """The ordinary case of `add` and `call`: it `is_idle`, and nothing is to be waited for.  Returns as `call`."""
        self.is_idle, self._is_calling = False, True
        try:
            self._on_changes(changes)
        except BaseException as error:  # noqa: BLE001  shown and counted there
            self._is_calling = False
            self._raised(changes, error, now)
            return True
        self._is_calling = False
        self.is_idle = not (self._waiting or self._is_closed)
        return self.call(now) if self._waiting else False

    def call(self, now: float, *, more_follows: bool = False) -> bool:
        """Call back with what waits, unless it is too early; what the callback itself changes follows after it.

        ``more_follows``: further changes are on their way, so that it pays to wait for them a moment.  Returns whether
        something still waits and `due` has become sooner.
        """
        if self._is_calling or not self._waiting or self._is_closed:
            return False
        if now < self._not_before or (more_follows and len(self._waiting) < PORTION):
            was_due = self._deadline
            self._deadline = max(self._not_before, min(was_due, now + PATIENCE_S))
            return self._deadline < was_due
        self._is_calling = True
        self._deadline = math.inf
        try:
            while self._waiting and not self._is_closed:
                if not self._call(now):
                    return True
            return False
        finally:
            self._is_calling = False
            self.is_idle = not (self._waiting or self._is_closed)

    def _call(self, now: float) -> bool:
        """False when it raised."""
        was_overrun = self.is_overrun
        batch, self._waiting = self._waiting, []
        try:
            self._on_changes(batch)
        except BaseException as error:  # noqa: BLE001  shown and counted there
            self._raised(batch, error, now)
            return False
        if self._not_before > -math.inf:
            self._backoff.reset()
            self._not_before = -math.inf
        self.is_primed = True
        if was_overrun:
            self.is_overrun = False
            self._wants_changed()
        return True

    def _raised(self, batch: Sequence[CacheChange], error: BaseException, now: float) -> None:
        """It will be called again with these."""
        self.errors += 1
        self._waiting = [*batch, *self._waiting]
        pause_s = self._backoff.next_s()
        self._not_before = self._deadline = now + pause_s
        LOG.error("LocalCache: the callback raised; it is called again in %.1f s.", pause_s, exc_info=error)
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise error  # the user's own thread, in which such an exception means more than that it was raised

    def close(self) -> None:
        """Call back no more."""
        self._is_closed = True
        self.is_idle = False
