"""What a subscriber does after its own process stood still, was starved or paused: nothing hasty.

Sans-IO.  Whatever came meanwhile waits to be read, in sockets and queues, and is read one after the other.  Until then
nothing that was not read yet is a sign of anything:

* When it is called *late* for what is due, it puts that off for a moment, once, so that receiving threads get their
  turn: else answers would be asked for again, or given up, that are there already.
* When it stood still for *long*, it has much to read.  When losses show in it, more may follow; they are told by one
  resync, when all of it was read and the publishers have told their heads, since the end may be lost too.  All was read
  when a frame comes that was sent about now: stamps have advanced by as much as our clock did.  Only durations are
  compared, each taken on one clock.
"""

from __future__ import annotations

from pubsub_api.core.receiving.statistics import SubscriberCounters

_NS_PER_S = 1_000_000_000


class ProcessPauses:
    """Pure data and arithmetic; what is put off, and what is told, is the subscriber core's business."""

    __slots__ = ("_catch_up_time_s", "_counters", "_fresh_stamp", "asked_at", "behind_until", "put_off_until")

    def __init__(self, counters: SubscriberCounters, *, catch_up_time_s: float) -> None:
        """When it is called later than due by more than ``catch_up_time_s``, it had no processor; receiving threads get
        as long to have theirs."""
        self._counters = counters
        self._catch_up_time_s = catch_up_time_s
        self.put_off_until: float | None = None
        """Until then nothing is done that is due; None when nothing is put off."""
        self.behind_until: float | None = None
        """When losses are told at the latest; None when there is nothing to catch up with."""
        self.asked_at: float | None = None
        """When all was read, and the publishers were asked for their heads."""
        self._fresh_stamp = 0

    def puts_off(self, now: float, due: float) -> bool:
        """Whether what was due has to wait until what came meanwhile was read.  After that it is done, however late."""
        if self.put_off_until is None:
            if now - due <= self._catch_up_time_s:
                return False
            self.put_off_until = now + self._catch_up_time_s
            self._counters.intake.put_off += 1
        if now < self.put_off_until:
            return True
        self.put_off_until = None
        return False

    def stood_still(self, seconds: float, newest_stamp: int, until: float) -> None:
        """We did nothing for so long; the newest stamp is of before that.  ``until`` bounds how long it matters."""
        self._fresh_stamp = newest_stamp + int(seconds * _NS_PER_S)
        self.behind_until = until
        self.asked_at = None

    def has_read_all(self, newest_stamp: int) -> bool:
        """Whether what came while we stood still has been read."""
        return newest_stamp >= self._fresh_stamp
