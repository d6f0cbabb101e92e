"""The bounded queue between the threads that receive and the one that calls the receiver.  For drivers to use.

A driver needs one where a thread that receives must not wait for the receiver: one of a foreign library, or one that
serves several links.  A driver that does not need it calls the receiver itself.

A thread of the driver's own that brings frames while nothing waits, and no other is calling, may call the receiver
itself, and lends itself with that: a lone frame is spared the way through the queue to another thread.  Where there is
no such thread, the one that empties the queue lends itself for a lone frame.
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
"""What a frame in memory costs beside its bytes."""


class Foreign(NamedTuple):
    """A message that is not a frame."""

    topic: str
    payload: bytes | None


Item = list[bytes] | Foreign | LinkReport
"""A list is a run of frames."""


class Inbox:
    """Takes from any thread without ever blocking it, and calls the receiver from one thread at a time, in order.

    What is beyond ``bytes_max`` is dropped and counted, and the numbers of the frames show the loss.  A driver that can
    make the other side wait gives ``on_room`` instead: then nothing is dropped, it brings no more while `has_room` is
    False, and is called, by the thread that calls the receiver, when there is room again.  Link reports always find
    room.
    """

    def __init__(self, bytes_max: int, *, name: str, on_room: Callable[[], None] | None = None) -> None:
        """``name`` is that of the thread."""
        self._bytes_max = bytes_max
        self._name = name
        self._on_room = on_room
        self._bytes = 0
        self._items: deque[tuple[Item, int]] = deque()
        self._lock = threading.RLock()  # entered as it is: a condition's own entering is Python, twice per lone frame
        self._news = threading.Condition(self._lock)
        self.dropped = 0
        """Frames and other messages dropped so far.  May be read from any thread."""
        self._dropped_frames = 0
        """Those since the receiver fell behind, to be logged when it has caught up."""
        self._dropped_bytes = 0
        self._is_closed = False
        self._thread: ReplaceableThread | None = None
        self._receiver: GuardedReceiver | None = None
        self._is_calling = False
        """A thread calls the receiver, and no other may."""

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
        """The list is the inbox's from now on."""
        if frames:
            self._put(frames, sum(map(len, frames)) + ITEM_BYTES * len(frames), len(frames))

    def put_foreign(self, topic: str, payload: bytes | None) -> None:
        self._put(Foreign(topic, payload), len(payload or b"") + ITEM_BYTES, 1)

    def put_report(self, report: LinkReport) -> None:
        self._put(report, 0, 0)

    def pass_frames(self, frames: list[bytes], relieve: Callable[[], None]) -> bool:
        """As `put_frames`, for a thread that may call the receiver, and may be used by it for as long as it likes.

        ``relieve`` has another thread go on with what this one does; True says that it was called.
        """
        receiver = self._receiver
        if not frames or receiver is None or not receiver.lends or not self._begin_call():
            self.put_frames(frames)
            return False
        return self._lend(receiver, frames, relieve, 0)

    def _lend(self, receiver: GuardedReceiver, frames: list[bytes], relieve: Callable[[], None], size: int) -> bool:
        """Call the receiver, which is reserved, and lend the thread; it is free again after that, or once relieved."""
        is_relieved = False

        def let_go() -> None:
            nonlocal is_relieved
            relieve()
            is_relieved = True
            self._end_call(size)

        receiver.on_frames_lent(frames, let_go)
        if not is_relieved:
            self._end_call(size)
        return is_relieved

    def close(self) -> None:
        """Discard what waits.  No call to the receiver begins after this; one that is running is not waited for."""
        with self._news:
            self._is_closed = True
            self._items.clear()
            self._news.notify()

    def join(self) -> None:
        """Wait for the call that is running, unless this is called by it."""
        if self._thread is not None:
            self._thread.join()

    def _begin_call(self) -> bool:
        """Reserve the receiver for this thread; False when another calls it, or something waits to be told first."""
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
                self._news.notify()

    def _drops(self, size: int, count: int) -> bool:
        """Whether there is no room for something of that size; one thing is taken always, however large."""
        if self._on_room is not None or not self._bytes or self._bytes + size <= self._bytes_max:
            return False
        if not self._dropped_frames:
            LOG.warning("the receiver is too slow: %d bytes wait for it, frames are dropped", self._bytes)
        self.dropped += count
        self._dropped_frames += count
        self._dropped_bytes += size
        return True

    def _run(self, receiver: GuardedReceiver, relieve: Callable[[], None]) -> None:
        while items := self._take():
            size = sum(size for _, size in items)
            lone = items[0][0] if len(items) == 1 and receiver.lends and not self._is_closed else None
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
        """Everything that waits, with the receiver reserved; nothing when the inbox is closed."""
        with self._news:
            self._news.wait_for(lambda: (self._items and not self._is_calling) or self._is_closed)
            items = list(self._items)
            self._is_calling = True
            self._items.clear()
            return items

    def _end_call(self, size: int) -> None:
        """The receiver is done with that much, which counted until now: else twice the bound could be in memory."""
        with self._lock:
            had_room = self.has_room
            self._is_calling = False
            self._bytes -= size
            if self._items:
                self._news.notify()
            elif self._dropped_frames:
                LOG.warning(
                    "the receiver caught up; %d frames of %d bytes were dropped meanwhile",
                    self._dropped_frames,
                    self._dropped_bytes,
                )
                self._dropped_frames = self._dropped_bytes = 0
            has_room = self.has_room and not had_room
        if has_room and self._on_room is not None:
            self._on_room()


def _join_runs(items: Sequence[Item]) -> list[Item]:
    """One list of frames where several follow each other: the receiver's cost is per call."""
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
