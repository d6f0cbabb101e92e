"""The worker's side of the protocol: numbers batches, keeps them until acknowledged, sends them again when needed.

Sans-IO.  The owner reports what happens to the connection, asks `next_message` for what to write, and gives back what
it reads.

Theory of operation
-------------------
Events collect in an *open* batch.  It is *sealed*, numbered and encoded, when it is full, or when nothing is under way;
so batches grow under load and a lone event leaves at once.  Sealed batches wait, in
order, until the service acknowledges them.  Open and sealed events together are the *window*, which is bounded in
events and bytes.

======== ============== ======== ======================================================================================
state    what happens   state    what follows
======== ============== ======== ======================================================================================
AWAY     connected      GREETING HELLO is written: GUID, the first number that is not acknowledged, events refused
GREETING WELCOME        OPEN     what the service has taken is acknowledged, what it refused of that is counted, the
                                 rest is written again, in order
GREETING REFUSED        AWAY     the connection is given up; the owner tries again later
OPEN     ACK            OPEN     batches up to that number leave the window
any      lost           AWAY     nothing leaves the window
any      anything else  AWAY     one typed error; the connection is given up
======== ============== ======== ======================================================================================
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque

from publisher_service.core import messages
from publisher_service.core.messages import Ack, RefusalMessage, Welcome, WorkerBatch, WorkerBye, WorkerHello
from publisher_service.errors import UnexpectedMessage, WorkerRefused


class WorkerState(enum.Enum):
    AWAY = "away"
    GREETING = "greeting"
    OPEN = "open"


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    window_events_max: int = 65_536
    window_bytes_max: int = 16 * 1024 * 1024
    batch_events_max: int = 512
    batch_bytes_max: int = 128 * 1024


class _Sealed:
    """A numbered batch.  ``last`` is the position of its last event."""

    __slots__ = ("is_sent", "last", "message", "number", "size")

    def __init__(self, number: int, last: int, size: int, message: bytes) -> None:
        self.number = number
        self.last = last
        self.size = size
        self.message = message
        self.is_sent = False


@dataclasses.dataclass
class WorkerCounters:
    resent: int = 0
    """Batches that were written again."""
    refused_events: int = 0
    refused_reason: str = ""
    """Why the service could not publish the newest of them."""


class WorkerCore:
    """Not thread-safe: the owner serialises calls."""

    def __init__(self, settings: WorkerSettings, *, guid: bytes, name: str, pid: int) -> None:
        # One by one: these are looked at for every event.
        self._window_events_max = settings.window_events_max
        self._window_bytes_max = settings.window_bytes_max
        self._batch_events_max = settings.batch_events_max
        self._batch_bytes_max = settings.batch_bytes_max
        self.guid = guid
        self.name = name
        self.pid = pid
        self.state = WorkerState.AWAY
        self.position = 0
        """Of the last event that was added."""
        self.acknowledged = 0
        """Of the last event that the service has taken over."""
        self.event_bytes_max: int | None = None
        """What the service told; None while it is not known."""
        self.window_bytes = 0
        self.is_full = False
        """The window has no room: a caller that adds waits until it is False."""
        self.batches = 0
        self.counters = WorkerCounters()
        self.open: dict[str, list[bytes]] = {}
        """The events of the open batch by topic.  The owner may append to the lists that are there, without `add`,
        while ``position`` and ``window_bytes``, which it raises then, stay below the two that follow."""
        self.quick_position = 0
        self.quick_bytes = 0
        """Below both, an event reaches neither the end of its batch nor that of the window, and something is under way
        whose acknowledgement gives the occasion to write it."""
        self._sealed: deque[_Sealed] = deque()
        self._sealed_bytes = 0
        self._sealed_position = 0
        """Of the last event that is in a sealed batch, acknowledged or not."""
        self._set_limits()
        self._next = 0
        """Which of the sealed batches is written next."""

    # -- events

    @property
    def waiting(self) -> int:
        """Events in the window."""
        return self.position - self.acknowledged

    @property
    def under_way(self) -> int:
        """Batches that were made and that the service has not acknowledged."""
        return len(self._sealed)

    def add(self, topic: str, encoded: bytes) -> bool:
        """Put an event into the window; its position is ``position`` then.  True when something should be written now:
        a batch is full, or nothing is under way whose acknowledgement would give the occasion."""
        size = len(encoded)
        if self.window_bytes + size > self._bytes_limit:
            self._make_room(size)
        self.open.setdefault(topic, []).append(encoded)
        self.position += 1
        self.window_bytes += size
        if self.position >= self._position_limit or self.window_bytes >= self._bytes_limit:
            return self._reached_limit()
        return not self._sealed

    def _make_room(self, size: int) -> None:
        """An event of that size goes into the next batch when it does not fit the open one."""
        if self.window_bytes - self._sealed_bytes + size > self._batch_bytes_max:
            self.seal()

    def _reached_limit(self) -> bool:
        is_due = not self._sealed
        if self.position - self._sealed_position >= self._batch_events_max:
            self.seal()
            is_due = True
        self.is_full = self._is_window_full()
        return is_due

    def seal(self) -> None:
        """Number and encode the open batch, if there is anything in it."""
        if not self.open:
            return
        self.batches += 1
        message = messages.pack(WorkerBatch(self.batches, list(self.open.items())))
        size = self.window_bytes - self._sealed_bytes
        self._sealed.append(_Sealed(self.batches, self.position, size, message))
        self.open = {}
        self._sealed_bytes = self.window_bytes
        self._sealed_position = self.position
        self._set_limits()

    def _set_limits(self) -> None:
        """Below these, an event that is added reaches neither the end of its batch nor that of the window."""
        self._position_limit = min(
            self._sealed_position + self._batch_events_max, self.acknowledged + self._window_events_max
        )
        self._bytes_limit = min(self._sealed_bytes + self._batch_bytes_max, self._window_bytes_max)
        self.quick_position = self._position_limit if self._sealed else 0
        self.quick_bytes = self._bytes_limit

    def _is_window_full(self) -> bool:
        return self.waiting >= self._window_events_max or self.window_bytes >= self._window_bytes_max

    # -- the connection

    def connected(self) -> bytes:
        """A connection is there; returns what to write first."""
        first = self._sealed[0].number if self._sealed else self.batches + 1
        self.state = WorkerState.GREETING
        return messages.pack(
            WorkerHello(messages.VERSION, self.guid, first, self.name, self.pid, self.counters.refused_events)
        )

    def lost(self) -> None:
        """The connection is gone, or is given up."""
        self.state = WorkerState.AWAY
        self._next = 0

    def next_message(self, *, is_urgent: bool = True) -> bytes | None:
        """The next batch to write, sealing the open one when there is no other; None when there is nothing to do.

        What is not urgent is sealed only when nothing is under way: in a flood, whose full batches are under way, it
        would leave half empty at every acknowledgement.
        """
        if self.state is not WorkerState.OPEN:
            return None
        if self._next >= len(self._sealed):
            if self._sealed and not is_urgent:
                return None
            self.seal()
            if self._next >= len(self._sealed):
                return None
        batch = self._sealed[self._next]
        self._next += 1
        self.counters.resent += batch.is_sent
        batch.is_sent = True
        return batch.message

    def bye(self) -> bytes:
        return messages.pack(WorkerBye())

    def receive(self, payload: bytes) -> None:
        """A message came.  Raises WorkerProtocolError: then the owner closes the connection and calls `lost`."""
        message = messages.read_from_service(payload)
        if isinstance(message, RefusalMessage):
            raise WorkerRefused(f"the publisher service refuses worker {self.name}: {message.reason}")
        if isinstance(message, Welcome) and self.state is WorkerState.GREETING:
            self._welcomed(message)
        elif isinstance(message, Ack) and self.state is WorkerState.OPEN:
            self._acknowledge(message.number, among=self._next)
            self._refused(message.refused, message.reason)
        else:
            raise UnexpectedMessage(f"{type(message).__name__} from the publisher service while {self.state.value}")

    def _welcomed(self, welcome: Welcome) -> None:
        # A batch that was sealed and never written cannot have been taken; one that was written may have been.
        written = sum(batch.is_sent for batch in self._sealed)
        first = self._sealed[0].number if self._sealed else self.batches + 1
        before = self.acknowledged
        if welcome.taken >= first:
            self._acknowledge(welcome.taken, among=written)
        if welcome.refused is None:  # then it cannot be said that any of them was published
            self._refused(self.acknowledged - before, "the publisher service does not know what became of them")
        else:
            self._refused(welcome.refused - self.counters.refused_events, welcome.reason)
        self.state = WorkerState.OPEN
        self._next = 0
        self.event_bytes_max = welcome.event_bytes_max

    def _refused(self, events: int, reason: str) -> None:
        if events > 0:
            self.counters.refused_events += events
            self.counters.refused_reason = reason or self.counters.refused_reason

    def _acknowledge(self, number: int, *, among: int) -> None:
        """Batches up to that number leave the window; only the first ``among`` of them can have been taken."""
        first = self._sealed[0].number if self._sealed else self.batches + 1
        count = number - first + 1
        if count > among:
            raise UnexpectedMessage(f"the publisher service acknowledges batch {number}, which it was not sent")
        for _ in range(count):
            batch = self._sealed.popleft()
            self.acknowledged = batch.last
            self.window_bytes -= batch.size
            self._sealed_bytes -= batch.size
        self._set_limits()
        self.is_full = self._is_window_full()
        self._next = max(0, self._next - max(0, count))
