"""The bus of the ``memory`` driver: its members, the ways of frames and queries, and its faults.

A bus lives as long as an open publisher, an open subscriber or a test holds it.  Its members are the two ends of the
driver's contract, which are in `heliograph_drivers.pubsub.memory`; this module knows them as protocols.

Lock order: the lock of a member, then the lock of a bus.  A bus calls its members without holding its own lock.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from pubsub_api.errors import LimitReached
from pubsub_api.runtime import forking
from pubsub_api.testing.faults import Faults

QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""Size of the queue of one subscriber, or of the queries to one publisher.  More is dropped and counted."""
BUSES_MAX = 1024
ENDPOINTS_MAX = 10_000
"""Of a process, and of a bus: more is a test that forgets to close."""
SCHEME = "memory"
ITEM_BYTES = 64
"""Added to the size of each item in a queue, so that the number of empty items is bounded, too."""

_Item = TypeVar("_Item")


class Mailbox(Generic[_Item]):
    """A bounded queue and the one thread that empties it.

    ``deliver`` is called on the thread with all items at hand, outside the lock, and does not raise.  ``tick``, if
    given, is called on the thread, under the lock, before it sleeps: it may `put`, and returns when it wants to be
    called again (monotonic seconds) or None.
    """

    def __init__(
        self,
        name: str,
        bytes_max: int,
        deliver: Callable[[list[_Item]], None],
        tick: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.lock = threading.Condition()
        """Reentrant, and shared with the owner, so that one lock guards one end of a link."""
        self.is_closed = False
        self._items: list[_Item] = []
        self._bytes = 0
        self._bytes_max = bytes_max
        self._deliver = deliver
        self._tick = tick
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: _Item, size: int = 0) -> bool:
        """Append an item; False when the queue is closed or has no room.  An item of size 0 always finds room."""
        with self.lock:
            if self.is_closed or (size and self._bytes + size + ITEM_BYTES > self._bytes_max):
                return False
            self._items.append(item)
            self._bytes += size + ITEM_BYTES
            self.lock.notify()
            return True

    def close(self) -> None:
        """Discard the items and end the thread.  Blocks until it has ended, unless called on the thread itself."""
        with self.lock:
            self.is_closed = True
            self._items.clear()
            self.lock.notify()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return not self.is_closed and self._thread.is_alive()

    def _run(self) -> None:
        while items := self._take():
            self._deliver(items)

    def _take(self) -> list[_Item]:
        """All items; waits for at least one.  Empty when the queue is closed."""
        with self.lock:
            while not self.is_closed:
                due = self._tick()
                if self._items:
                    items, self._items, self._bytes = self._items, [], 0
                    return items
                self.lock.wait(None if due is None else max(0.0, due - time.monotonic()))
            return []


class BusMember(Protocol):
    """An end of a link, as the bus knows it.  Any thread may call its methods."""

    def on_bus_changed(self, bus: Bus) -> None:
        """Called when the faults of the bus have changed, on the thread that changed them."""


class ListeningMember(BusMember, Protocol):
    def offer(self, bus: Bus, topic: str, frame: bytes) -> None:
        """Called with each frame that is sent; the member takes it if a filter matches."""

    def offer_replies(self, bus: Bus, replies: Sequence[bytes]) -> None:
        """Called with the answers to a query of this member."""


class SendingMember(BusMember, Protocol):
    @property
    def is_serving(self) -> bool: ...

    def offer_query(self, query: bytes, asker: ListeningMember) -> None:
        """Called with each query; the member answers through ``asker.offer_replies``, on another thread."""


@dataclasses.dataclass(frozen=True)
class BusStatistics:
    """The counters of a bus.  ``bus.faults.counts()`` has those of its faults."""

    publishers: int
    subscribers: int
    overflowed: int
    """Frames and queries dropped because a queue was full."""


class Bus:
    """The bus that the sessions of one name share, and the control of its faults.  Thread-safe."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = f"{SCHEME}://{name}"
        self.faults = Faults()
        """Controls the faults: ``faults.set(drop=0.1)``, ``faults.partition(True)``, ``faults.heal()``."""
        self._lock = threading.Lock()
        # Replaced, never changed in place, so that sending iterates without the lock.
        self._publishers: tuple[SendingMember, ...] = ()
        self._subscribers: tuple[ListeningMember, ...] = ()
        self._joined = 0
        self.arrivals = uuid.uuid4().hex
        """A random text that is replaced when a publisher joins."""
        self._overflowed = 0
        self.faults.watch(self)

    def disconnect(self) -> None:
        """Take every link of the bus down: both ends report Disconnected, sending raises TransportUnavailable."""
        self.faults.disconnect()

    def reconnect(self) -> None:
        """Bring every link up again: both ends report Connected.  Frames that were sent meanwhile are lost."""
        self.faults.reconnect()

    def freeze(self) -> None:
        """Hold all frames and queries until `thaw`."""
        self.faults.freeze()

    def thaw(self) -> None:
        """Deliver what `freeze` has held, in order."""
        self.faults.thaw()

    @property
    def is_up(self) -> bool:
        return not self.faults.settings.disconnected

    def statistics(self) -> BusStatistics:
        """How many ends are open, and how many items their queues have dropped since the bus was made."""
        return BusStatistics(len(self._publishers), len(self._subscribers), self._overflowed)

    def join_publisher(self, member: SendingMember) -> None:
        """Add a sending end.  Raises LimitReached."""
        with self._lock:
            self._check_room()
            self._publishers += (member,)
            self.arrivals = uuid.uuid4().hex

    def join_subscriber(self, member: ListeningMember) -> int:
        """Add a receiving end.  Returns its number on this bus, never used twice.  Raises LimitReached."""
        with self._lock:
            self._check_room()
            self._subscribers += (member,)
            self._joined += 1
            return self._joined

    def leave(self, leaving: BusMember) -> None:
        """Remove an end.  A call to it on another thread may still be running when this returns."""
        with self._lock:
            self._publishers = tuple(member for member in self._publishers if member is not leaving)
            self._subscribers = tuple(member for member in self._subscribers if member is not leaving)

    def publish(self, topic: str, frame: bytes) -> None:
        """Offer a frame to every subscriber, on the caller's thread.  Does not block."""
        for subscriber in self._subscribers:
            subscriber.offer(self, topic, frame)

    def servers(self) -> list[SendingMember]:
        """The publishers that answer queries now."""
        return [publisher for publisher in self._publishers if publisher.is_serving]

    def ask(self, query: bytes, asker: ListeningMember) -> None:
        """Hand a query to each of `servers`."""
        for publisher in self.servers():
            publisher.offer_query(query, asker)

    def count_overflow(self, count: int) -> None:
        with self._lock:
            self._overflowed += count

    def on_faults(self) -> None:
        """Called by `Faults`."""
        for member in (*self._subscribers, *self._publishers):
            member.on_bus_changed(self)

    def _check_room(self) -> None:
        if len(self._publishers) + len(self._subscribers) >= ENDPOINTS_MAX:
            raise LimitReached(f"{self.address} has {ENDPOINTS_MAX} open ends, the most that it may have")


class Registry:
    """The buses of this process, by name, held weakly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buses: weakref.WeakValueDictionary[str, Bus] = weakref.WeakValueDictionary()

    def get(self, name: str) -> Bus:
        """The bus of that name, made when it does not exist.  Raises LimitReached."""
        with self._lock:
            found = self._buses.get(name)
            if found is None:
                if len(self._buses) >= BUSES_MAX:
                    raise LimitReached(f"{BUSES_MAX} buses are open, the most that a process may have")
                found = self._buses[name] = Bus(name)
            return found

    def after_fork_in_child(self) -> None:
        """Begin without buses in a forked child, with a new lock: a thread of the parent may have held the old one."""
        self._lock = threading.Lock()
        self._buses = weakref.WeakValueDictionary()


REGISTRY = Registry()
forking.register(REGISTRY)
