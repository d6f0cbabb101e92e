"""The bounded queue between the threads that receive and the one that calls the receiver.

A thread of ours that brings frames while nothing waits, and nobody is calling, calls the receiver itself, and lends
itself with that: a lone frame is spared the way through the queue to another thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pubsub_api.driver import LendingReceiver, LinkReport, Receiver

LOG = logging.getLogger(__name__)


ITEM_BYTES = 64
"""What a frame in memory costs beside its bytes."""


class Foreign(NamedTuple):
    """A message that is not a frame."""

    topic: str
    payload: bytes


Item = list[bytes] | Foreign | LinkReport
"""A list is a run of frames."""


class Inbox:
    """Takes from any thread without ever blocking it, and calls the receiver from one thread at a time, in order.

    Frames beyond ``bytes_max`` are dropped: blocking here would block a Zenoh thread, and with it the answers and the
    signs of life of everybody on that link.  Whoever numbers frames notices the loss; link reports are never dropped.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._items: deque[tuple[Item, int]] = deque()
        self._news = threading.Condition()
        self._dropped_frames = 0
        self._dropped_bytes = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._receiver: Receiver | None = None
        self._is_calling = False
        """A thread calls the receiver, and nobody else may."""

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._is_closed

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._thread = threading.Thread(target=self._run, args=(receiver,), name="zenoh receiver", daemon=True)
        self._thread.start()

    def put_frames(self, frames: list[bytes]) -> None:
        if not frames:
            return
        self._put(frames, sum(map(len, frames)) + ITEM_BYTES * len(frames), len(frames))

    def pass_frames(self, frames: list[bytes], relieve: Callable[[], None]) -> bool:
        """As `put_frames`, for a thread that may call the receiver, and may be used by it for as long as it likes.

        ``relieve`` has another thread go on with what this one does; True says that it was called.
        """
        receiver = self._receiver
        if not frames or not isinstance(receiver, LendingReceiver) or not self._begin_call():
            self.put_frames(frames)
            return False
        is_relieved = False

        def let_go() -> None:
            nonlocal is_relieved
            relieve()
            is_relieved = True
            self._end_call()

        try:
            receiver.on_frames_lent(frames, let_go)
        except Exception:
            LOG.exception("the receiver raised, which its contract forbids; the driver goes on")
        finally:
            if not is_relieved:
                self._end_call()
        return is_relieved

    def _begin_call(self) -> bool:
        """Reserve the receiver for this thread; False when somebody calls it, or something waits to be told first."""
        with self._news:
            if self._is_calling or self._items or self._is_closed:
                return False
            self._is_calling = True
            return True

    def _end_call(self) -> None:
        with self._news:
            self._is_calling = False
            if self._items:
                self._news.notify()

    def put_foreign(self, topic: str, payload: bytes) -> None:
        self._put(Foreign(topic, payload), len(payload) + ITEM_BYTES, 1)

    def put_report(self, report: LinkReport) -> None:
        self._put(report, 0, 0)

    def close(self) -> None:
        """Discard what waits.  No call to the receiver begins after this; one that is running is not waited for."""
        with self._news:
            self._is_closed = True
            self._items.clear()
            self._news.notify()

    def join(self) -> None:
        """Wait for the call that is running, unless this is called by it."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _put(self, item: Item, size: int, count: int) -> None:
        with self._news:
            if self._is_closed:
                return
            if size and self._bytes + size > self._bytes_max and self._bytes:
                if not self._dropped_frames:
                    LOG.warning("the receiver is too slow: %d bytes wait for it, frames are dropped", self._bytes)
                self._dropped_frames += count
                self._dropped_bytes += size
                return
            self._bytes += size
            self._items.append((item, size))
            if len(self._items) == 1 and not self._is_calling:
                self._news.notify()

    def _run(self, receiver: Receiver) -> None:
        while items := self._take():
            for item in _join_runs([item for item, _ in items]):
                if self._is_closed:
                    return
                try:
                    _deliver(receiver, item)
                except Exception:
                    LOG.exception("the receiver raised, which its contract forbids; the driver goes on")
            self._release(sum(size for _, size in items))

    def _take(self) -> list[tuple[Item, int]]:
        """Everything that waits, with the receiver reserved; nothing when the inbox is closed."""
        with self._news:
            self._news.wait_for(lambda: (self._items and not self._is_calling) or self._is_closed)
            items = list(self._items)
            self._is_calling = True
            self._items.clear()
            return items

    def _release(self, size: int) -> None:
        """What was taken counts until the receiver is done with it: else twice the bound could be in memory."""
        with self._news:
            self._is_calling = False
            self._bytes -= size
            if self._dropped_frames and not self._items:
                LOG.warning(
                    "the receiver caught up; %d frames of %d bytes were dropped meanwhile",
                    self._dropped_frames,
                    self._dropped_bytes,
                )
                self._dropped_frames = self._dropped_bytes = 0


def _join_runs(items: Sequence[Item]) -> list[Item]:
    """One list of frames where several follow each other: the receiver's cost is per call."""
    joined: list[Item] = []
    for item in items:
        if isinstance(item, list) and joined and isinstance(joined[-1], list):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


def _deliver(receiver: Receiver, item: Item) -> None:
    if isinstance(item, list):
        receiver.on_frames(item)
    elif isinstance(item, Foreign):
        receiver.on_foreign(item.topic, item.payload)
    else:
        receiver.on_link(item)
