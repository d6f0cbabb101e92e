"""What is in order, on its way to the consumer's queue: passed on, held, or refused.

Sans-IO.  The consumer's queue is bounded, and when a hole is closed a whole queue full may be ready at once.  So what
is in order and finds no room is *held*, whatever its stream, and follows as the consumer makes room (`make_room`).  It
counts as parked, so that closing a hole changes nothing about how much is kept.  When there is no room for it here
either, the consumer is *overrun*: what comes is discarded until it has caught up, and then it is told by one resync.
"""

from __future__ import annotations

from collections import deque

from pubsub_api.core.receiving.instream import Delivery
from pubsub_api.core.receiving.resync_requests import Resync, ResyncScheduler
from pubsub_api.core.receiving.roster import Roster


class ConsumerRoom:
    """The way out of the subscriber core.  Not thread-safe: the owner serialises calls."""

    def __init__(self, pending_bytes_max: int, roster: Roster, resync: ResyncScheduler) -> None:
        self._pending_bytes_max = pending_bytes_max
        self._roster = roster
        self._resync = resync
        self.bytes_left = float("inf")
        """How much more the consumer's queue takes.  The owner sets it before it hands over frames."""
        self.out: list[Delivery | Resync] = []
        """What the consumer gets next, in order."""
        self._held: deque[Delivery] = deque()
        """In order, and waiting for room in the consumer's queue.  Their size is among the parked bytes."""
        self.held_bytes = 0
        self.is_overrun = False
        """There is no room for anything: data is discarded, to be covered by a resync when the consumer caught up."""

    @property
    def is_full(self) -> bool:
        """What is in order is held or discarded, and resyncs wait, until `make_room` says that there is room."""
        return self._resync.is_blocked

    def make_room(self, bytes_left: float, *, is_half_empty: bool) -> None:
        """The consumer has taken something from a queue that was full, which has so much room now.

        What is held follows, as far as it fits.  An overrun ends when nothing is held and the queue is half empty.
        """
        held = self._held
        while held and bytes_left >= 0:
            size = len(held[0][0])
            bytes_left -= size
            self.held_bytes -= size
            self._roster.parked_bytes -= size
            self.out.append(held.popleft())
        self.bytes_left = bytes_left
        if not held and bytes_left >= 0 and (is_half_empty or not self.is_overrun):
            self.is_overrun = self._resync.is_blocked = False

    def pass_on(self, delivery: Delivery) -> None:
        """Hand over what is in order; the last one may be larger than the room that is left."""
        self.out.append(delivery)
        self.bytes_left -= len(delivery[0])
        if self.bytes_left < 0:
            self._resync.is_blocked = True

    def hold(self, delivery: Delivery) -> bool:
        """Keep what is in order until the consumer has room for it.  False: there is no room here either."""
        size = len(delivery[0])
        if self.is_overrun or self._roster.parked_bytes + size > self._pending_bytes_max:
            self.is_overrun = True
            return False
        self._held.append(delivery)
        self.held_bytes += size
        self._roster.parked_bytes += size
        return True
