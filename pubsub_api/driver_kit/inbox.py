"""The bounded queue between the threads that receive and the one that calls the receiver.  For drivers to use.

A driver needs it where a thread that receives must not wait for the receiver: a thread of a foreign library, or a
thread that serves several links.  Other drivers call the receiver directly.

A thread that belongs to the driver may call the receiver itself while the queue is empty and no other thread calls
(`Inbox.pass_frames`).  It is lent to the receiver then, and a lone frame is spared the way through the queue.  The
thread that empties the queue is lent in the same way when it finds a lone frame.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pubsub_api.driver import LinkReport
from pubsub_api.driver_kit.guarding import GuardedReceiver
from pubsub_api.driver_kit.threads import ReplaceableThread

LOG = logging.getLogger(__name__)


ITEM_BYTES = 64
"""Memory that a frame needs besides its bytes."""


class Foreign(NamedTuple):
    """A message that is not a frame."""

    topic: str
    payload: bytes | None


Item = list[bytes] | Foreign | LinkReport
"""A list has frames that follow each other."""


class Inbox:
    """Accepts items from any thread without blocking, and calls the receiver in order, from one thread at a time.

    Items beyond ``bytes_max`` are dropped and counted, and the numbers of the frames show the loss.  A driver that can
    make the other side wait gives ``on_room``: then nothing is dropped.  Such a driver must bring nothing while
    `has_room` is False; when there is room again, the thread that calls the receiver calls ``on_room``.  Link reports
    are always accepted.
    """

    def __init__(self, bytes_max: int, *, name: str, on_room: Callable[[], None] | None = None) -> None:
        """``name`` is that of the thread."""
        self._bytes_max = bytes_max
        self._name = name
        self._on_room = on_room
        self._bytes = 0
        self._items: deque[tuple[Item, int]] = deque()
        """Each with its size."""
        # Entered directly in the hot path: `with` a condition is Python code, and a lone frame would do it twice.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.dropped = 0
        """Frames and other messages dropped so far.  May be read from any thread."""
        self._dropped_since_full = 0
        """Frames and other messages dropped since the queue was full for the first time, until it is empty again."""
        self._dropped_bytes_since_full = 0
        self._is_closed = False
        self._thread: ReplaceableThread | None = None
        self._receiver: GuardedReceiver | None = None
        self._is_calling = False
        """A thread calls the receiver, so no other thread may."""

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive and not self._is_closed

    @property
    def has_room(self) -> bool:
        return self._bytes <= self._bytes_max

    def start(self, receiver: GuardedReceiver) -> None:
        """Raises LimitReached."""
        thread = ReplaceableThread(self._name, lambda: self._run(receiver, thread.replace))
        thread.start()
        self._receiver = receiver
        self._thread = thread

    def put_frames(self, frames: list[bytes]) -> None:
        """The caller must not change the list any more."""
        if frames:
            self._put(frames, sum(map(len, frames)) + ITEM_BYTES * len(frames), len(frames))

    def put_foreign(self, topic: str, payload: bytes | None) -> None:
        self._put(Foreign(topic, payload), len(payload or b"") + ITEM_BYTES, 1)

    def put_report(self, report: LinkReport) -> None:
        self._put(report, 0, 0)

    def pass_frames(self, frames: list[bytes], relieve: Callable[[], None]) -> bool:
        """As `put_frames`, for a thread that may be lent to the receiver for as long as a callback lasts.

        ``relieve`` starts another thread that goes on in place of this one.  Returns True when it was called.
        """
        receiver = self._receiver
        if not frames or receiver is None or not receiver.can_borrow or not self._begin_call():
            self.put_frames(frames)
            return False
        return self._lend(receiver, frames, relieve, 0)

    def _lend(self, receiver: GuardedReceiver, frames: list[bytes], relieve: Callable[[], None], size: int) -> bool:
        """Call the receiver, after `_begin_call`, with this thread lent.  Other threads may call it again when the call
        has returned, or once ``relieve`` was called."""
        is_relieved = False

        def relieve_and_end_call() -> None:
            nonlocal is_relieved
            relieve()
            is_relieved = True
            self._end_call(size)

        receiver.on_frames_lent(frames, relieve_and_end_call)
        if not is_relieved:
            self._end_call(size)
        return is_relieved

    def close(self) -> None:
        """Discard all items.  No call to the receiver begins any more; a running call is not waited for."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify()

    def join(self) -> None:
        """Block until the running call to the receiver has returned, unless that call calls this."""
        if self._thread is not None:
            self._thread.join()

    def _begin_call(self) -> bool:
        """Reserve the receiver for this thread; False when another thread calls it, or items wait."""
        with self._lock:
            if self._is_calling or self._items or self._is_closed:
                return False
            self._is_calling = True
            return True

    def _put(self, item: Item, size: int, count: int) -> None:
        with self._lock:
            if self._is_closed or (size and self._drops(size, count)):
                return
            self._bytes += size
            self._items.append((item, size))
            if len(self._items) == 1 and not self._is_calling:
                self._changed.notify()

    def _drops(self, size: int, count: int) -> bool:
        """Whether there is no room for an item of that size.  An empty queue accepts one of any size."""
        if self._on_room is not None or not self._bytes or self._bytes + size <= self._bytes_max:
            return False
        if not self._dropped_since_full:
            LOG.warning("the receiver is too slow: %d bytes wait for it, frames are dropped", self._bytes)
        self.dropped += count
        self._dropped_since_full += count
        self._dropped_bytes_since_full += size
        return True

    def _run(self, receiver: GuardedReceiver, relieve: Callable[[], None]) -> None:
        while items := self._take():
            size = sum(size for _, size in items)
            lone = items[0][0] if len(items) == 1 and receiver.can_borrow and not self._is_closed else None
            if isinstance(lone, list):
                if self._lend(receiver, lone, relieve, size):
                    return
                continue
            for item in _join_runs([item for item, _ in items]):
                if self._is_closed:
                    return
                _deliver(receiver, item)
            self._end_call(size)

    def _take(self) -> list[tuple[Item, int]]:
        """Wait for items, reserve the receiver and return all of them; nothing when the inbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: (self._items and not self._is_calling) or self._is_closed)
            items = list(self._items)
            self._is_calling = True
            self._items.clear()
            return items

    def _end_call(self, size: int) -> None:
        """The receiver has handled items of that size.  They count until now: the memory bound includes them."""
        with self._lock:
            had_room = self.has_room
            self._is_calling = False
            self._bytes -= size
            if self._items:
                self._changed.notify()
            elif self._dropped_since_full:
                LOG.warning(
                    "the receiver caught up; %d frames of %d bytes were dropped meanwhile",
                    self._dropped_since_full,
                    self._dropped_bytes_since_full,
                )
                self._dropped_since_full = self._dropped_bytes_since_full = 0
            has_room_again = self.has_room and not had_room
        if has_room_again and self._on_room is not None:
            self._on_room()


def _join_runs(items: Sequence[Item]) -> list[Item]:
    """The items, with lists of frames that follow each other joined: each call of the receiver has a cost."""
    joined: list[Item] = []
    for item in items:
        if isinstance(item, list) and joined and isinstance(joined[-1], list):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


def _deliver(receiver: GuardedReceiver, item: Item) -> None:
    if isinstance(item, list):
        receiver.on_frames(item)
    elif isinstance(item, Foreign):
        receiver.on_foreign(item.topic, item.payload)
    else:
        receiver.on_link(item)
