"""One stream as a subscriber sees it: what was received, what waits, what is missing.

Theory of operation
-------------------
``next`` is the number the subscriber needs next.  A frame whose range contains ``next`` is *in order* and leaves at
once.  A frame beyond it leaves a *hole* in front of itself and is parked.  A hello can show a hole at the tail, where
nothing is parked.  A hole is closed in the order the delivery contract gives:

=========== =============== =========== ===========================================================================
state       cause           state       meaning
=========== =============== =========== ===========================================================================
LIVE        HOLE            WAITING     a hole opened: wait ``message_delay_window`` for late frames
WAITING     CLOSED          LIVE        they came
WAITING     QUERY           REPAIRING   they did not: caches are asked for exactly the missing ranges
REPAIRING   CLOSED          LIVE        a cache had them
REPAIRING   QUERY           REPAIRING   asked again: the answer was lost or incomplete
WAITING     GIVE_UP         RESYNCING   no cache can be asked, or too much is parked
REPAIRING   GIVE_UP         RESYNCING   no cache has them: a resync was requested and is on its way
LIVE        GIVE_UP         RESYNCING   something else made the state unsure
RESYNCING   RESYNCED        LIVE        the user was told; whatever was missing until now is covered
=========== =============== =========== ===========================================================================

While a stream is RESYNCING its frames wait, so that the user learns of the loss before seeing what came after it.
Should too much wait, it may go: the resync that is on its way covers it.

**Words and events.**  A hello is a word; any peer may have said it, or it was damaged on the way.  Numbers are *shown*
when an event came that has one or a higher one, or when the publisher told so itself, asked after the word was heard.
A resync covers what was shown before it.  A word that was not is forgotten with the resync, and believed when it is
heard again, and again no peer answers.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator

from pubsub_api.core.frame import Header


class InStreamState(enum.Enum):
    LIVE = "live"
    WAITING = "waiting"
    REPAIRING = "repairing"
    RESYNCING = "resyncing"


class StreamCause(enum.Enum):
    HOLE = "hole"
    CLOSED = "closed"
    QUERY = "query"
    GIVE_UP = "give up"
    RESYNCED = "resynced"


TRANSITIONS: dict[tuple[InStreamState, StreamCause], InStreamState] = {
    (InStreamState.LIVE, StreamCause.HOLE): InStreamState.WAITING,
    (InStreamState.WAITING, StreamCause.CLOSED): InStreamState.LIVE,
    (InStreamState.WAITING, StreamCause.QUERY): InStreamState.REPAIRING,
    (InStreamState.REPAIRING, StreamCause.CLOSED): InStreamState.LIVE,
    (InStreamState.REPAIRING, StreamCause.QUERY): InStreamState.REPAIRING,
    (InStreamState.WAITING, StreamCause.GIVE_UP): InStreamState.RESYNCING,
    (InStreamState.REPAIRING, StreamCause.GIVE_UP): InStreamState.RESYNCING,
    (InStreamState.LIVE, StreamCause.GIVE_UP): InStreamState.RESYNCING,
    (InStreamState.RESYNCING, StreamCause.RESYNCED): InStreamState.LIVE,
}

NO_STAMP = 2**64
"""Higher than every timestamp: the peer that told of a number did not tell when."""
HEAD_JUMP_MAX = 2**40
"""So many numbers at once are not believed: no publisher sends them in the time for which a subscriber remembers it."""

Delivery = tuple[bytes, Header, int]
"""A DATA frame, its header, and how many of its first events were delivered before."""


class InStream:
    """Pure data and arithmetic; when to do what is the subscriber core's business."""

    __slots__ = (
        "asked", "attempts", "covered", "deadline", "forgotten", "guid", "head", "head_stamp", "is_anchored", "next",
        "order", "parked", "shown", "state", "topic",
    )  # fmt: skip

    def __init__(self, guid: bytes, topic: str, next_number: int, *, is_anchored: bool) -> None:
        self.guid = guid
        self.topic = topic
        self.next = next_number
        self.head = next_number - 1
        """Highest number known to exist."""
        self.head_stamp = NO_STAMP
        """Timestamp of the frame that told so: one with a higher timestamp that tells of less contradicts it."""
        self.shown = 0
        """The same without what was a word only; what is before ``next`` need not be noted here."""
        self.forgotten = 0
        """The last word that was forgotten."""
        self.covered = 0
        """Numbers up to this one were shown when a resync was told."""
        self.is_anchored = is_anchored
        """``next`` is certain.  Otherwise it is the lowest number seen, and the resync on its way covers the rest."""
        self.state = InStreamState.LIVE
        self.parked: dict[int, tuple[bytes, Header]] = {}
        """Frames beyond ``next``, by their first number."""
        self.order: list[int] = []
        """A heap of the numbers in ``parked``."""
        self.deadline = 0.0
        """Of what the state waits for.  While LIVE: when its publisher may be asked again whether it is in doubt."""
        self.attempts = 0
        """Questions asked for the hole, or the doubt.  Below 0: in a hurry, since answers used to come soon."""
        self.asked = 0
        """The last number that caches were asked for; what is missing beyond it is another hole."""

    def move(self, cause: StreamCause) -> None:
        self.state = TRANSITIONS[self.state, cause]

    @property
    def has_hole(self) -> bool:
        return self.head >= self.next

    def park(self, frame: bytes, header: Header) -> int:
        """Keep a frame for later; returns by how many bytes that made the parked frames grow."""
        known = self.parked.get(header.first)
        if known is None:
            heapq.heappush(self.order, header.first)
        elif known[1].count >= header.count:
            return 0
        self.parked[header.first] = (frame, header)
        self.show(header.last, header.timestamp)
        return len(frame) - (len(known[0]) if known else 0)

    def ready(self) -> Iterator[tuple[Delivery | None, int]]:
        """Parked frames that are in order now, each with its size; None for one that turned out a duplicate."""
        while self.order:
            frame, header = self.parked[self.order[0]]
            if header.after >= self.next:
                return
            del self.parked[heapq.heappop(self.order)]
            yield self.advance(frame, header), len(frame)

    def advance(self, frame: bytes, header: Header) -> Delivery | None:
        """Accept a frame that is in order; None when all of it was delivered before."""
        last = header.first + header.count - 1
        if last < self.next:
            return None
        already = max(0, self.next - header.first)
        self.next = last + 1
        self.raise_head(last, header.timestamp)
        return frame, header, already

    def raise_head(self, head: int, stamp: int) -> None:
        """Number ``head`` exists, as a frame with that timestamp tells."""
        if head > self.head:
            self.head = head
            self.head_stamp = stamp

    def show(self, number: int, stamp: int) -> None:
        """A number exists, and not only by the word of a hello."""
        self.shown = max(self.shown, number)
        self.raise_head(number, stamp)

    @property
    def shown_head(self) -> int:
        """Highest number that is shown to exist."""
        return max(self.shown, self.next - 1) if self.is_anchored else self.shown

    def contradicts_data(self, first: int, stamp: int) -> bool:
        """Whether a frame that begins at ``first`` cannot be, if all that was heard of the stream is true.

        It is among what is missing because a peer told that it exists, and was sent later than that was told.  A
        publisher's timestamps never fall, so a frame that is late, or comes again, has a lower one.
        """
        return self.next <= first <= self.head and stamp > self.head_stamp and self.is_anchored

    def contradicts_head(self, head: int, stamp: int) -> bool:
        """The same of a head: it is lower than what was told before, of which no event has come."""
        return self.next - 1 <= head < self.head and stamp > self.head_stamp and self.is_anchored

    def contradicts_end(self, head: int) -> bool:
        """The same of the last head of its publisher, whatever the timestamps say, while the stream waits for more.

        A resync that was told before seems to cover what is missing; but not what was sent after it under other numbers
        than were heard of.
        """
        if not self.is_anchored:
            return head < self.next - 1
        return head < self.head and self.state in (InStreamState.WAITING, InStreamState.REPAIRING)

    def start_again(self, number: int, head: int, stamp: int) -> None:
        """Nothing that was heard of the stream is believed but that ``number`` comes next, and that ``head`` exists.

        What is before it, and has not come, is given up.
        """
        self.next = number
        self.shown = number - 1
        self.head = max(head, self.shown)
        self.head_stamp = stamp
        self.asked = self.forgotten = 0

    def missing(self) -> list[tuple[int, int]]:
        """The holes: ranges of numbers that exist and are neither delivered nor parked."""
        ranges: list[tuple[int, int]] = []
        expected = self.next
        for first in sorted(self.parked):
            header = self.parked[first][1]
            if header.after >= expected:
                ranges.append((expected, header.after))
            expected = max(expected, header.last + 1)
        if self.head >= expected:
            ranges.append((expected, self.head))
        return ranges

    def skip_holes(self) -> Iterator[tuple[Delivery | None, int]]:
        """Everything parked, in order, as if the holes had never been: a resync has covered them."""
        head, stamp = self.head, self.head_stamp
        if head > self.shown_head and head != self.forgotten:
            self.forgotten = head
            head, stamp = self.shown_head, NO_STAMP
        self.head = self.next - 1
        while self.order:
            frame, header = self.parked.pop(heapq.heappop(self.order))
            self.next = max(self.next, header.after + 1)
            yield self.advance(frame, header), len(frame)
        self.raise_head(head, stamp)
        self.next = self.head + 1

    def drop_tail(self, size: int) -> tuple[int, int]:
        """Forget the parked frames that are needed last, ``size`` bytes or all; returns the bytes and events freed.

        They are a hole again, at the end, which no question that is out asks for.
        """
        freed = events = 0
        for first in sorted(self.parked, reverse=True):
            if freed >= size:
                break
            frame, header = self.parked.pop(first)
            freed += len(frame)
            events += header.count
            self.asked = min(self.asked, header.after)
        self.order = list(self.parked)
        heapq.heapify(self.order)
        return freed, events

    def drop_parked(self) -> tuple[int, int]:
        """Forget what is parked; returns the bytes and events freed."""
        freed = sum(len(frame) for frame, _ in self.parked.values())
        events = sum(header.count for _, header in self.parked.values())
        self.parked.clear()
        self.order.clear()
        return freed, events
