"""The thread that calls the receiver of a subscriber, and the queue before it.

The queue is bounded by those who fill it: a link does not poll while `has_room` is False, so that frames wait where
there is a policy for them, in the publisher's mailbox.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from pubsub_api.driver import LinkReport, Receiver

LOG = logging.getLogger(__name__)

Item = list[bytes] | LinkReport
"""A list is a run of frames."""


class Dispatcher:
    """Takes from any thread without blocking it, and calls the receiver from one thread, in order.

    ``on_room`` is called, by that thread, when there is room again after there was none.
    """

    def __init__(self, bytes_max: int, on_room: Callable[[], None]) -> None:
        self.receiver_errors = 0
        """Calls in which the receiver raised: what they brought is lost to it, unless its own numbers tell."""
        self._bytes_max = bytes_max
        self._on_room = on_room
        self._bytes = 0
        self._items: deque[Item] = deque()
        self._news = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._is_closed

    @property
    def has_room(self) -> bool:
        return self._bytes <= self._bytes_max

    def start(self, receiver: Receiver) -> None:
        self._thread = threading.Thread(target=self._run, args=(receiver,), name="longpoll receiver", daemon=True)
        self._thread.start()

    def put_frames(self, frames: list[bytes]) -> None:
        with self._news:
            if self._is_closed or not frames:
                return
            self._bytes += sum(map(len, frames))
            self._put(frames)

    def put_report(self, report: LinkReport) -> None:
        with self._news:
            if not self._is_closed:
                self._put(report)

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

    def _put(self, item: Item) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self._news.notify()

    def _run(self, receiver: Receiver) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._items or self._is_closed)
                items = _join_runs(self._items)
                self._items.clear()
            for item in items:
                if self._is_closed:
                    return
                self._deliver(receiver, item)
            if self._is_closed:
                return

    def _deliver(self, receiver: Receiver, item: Item) -> None:
        try:
            if isinstance(item, list):
                receiver.on_frames(item)
            else:
                receiver.on_link(item)
        except Exception:
            self.receiver_errors += 1
            LOG.exception("the receiver raised, which its contract forbids; the driver goes on")
        if isinstance(item, list):
            with self._news:
                had_room = self.has_room
                self._bytes -= sum(map(len, item))
                is_news = self.has_room and not had_room
            if is_news:
                self._on_room()


def _join_runs(items: deque[Item]) -> list[Item]:
    """One list of frames where several follow each other: the receiver's cost is per call."""
    joined: list[Item] = []
    for item in items:
        if isinstance(item, list) and joined and isinstance(joined[-1], list):
            joined[-1] += item
        else:
            joined.append(item)
    return joined
