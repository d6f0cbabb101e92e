"""What a publisher has to send: events collected per topic, sent by a caller or by a thread of its own.

`pubsub_api.publishing.publisher` says when events collect and which thread sends them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from time import time_ns

from pubsub_api.core.clock import HybridClock
from pubsub_api.core.errors import Closed, DriverError, TransportUnavailable, WaitTimeout
from pubsub_api.core.sending.publisher import Outgoing, OutStream, PublisherCore
from pubsub_api.publishing.sending import FrameSender

_FRAMES_PER_SEND = 64


class Batcher:
    """What is to be sent of one `Publisher`, and the thread that sends what no caller did.  For any thread.

    It lasts as long as a handle of the driver: after a fork the publisher makes a new one.
    """

    def __init__(
        self,
        core: PublisherCore,
        sender: FrameSender,
        *,
        name: str,
        clock: HybridClock,
        batch_events_max: int,
        backlog_bytes_max: int,
        on_sent: Callable[[], None],
    ) -> None:
        """``on_sent`` is called under the lock when everything that was pending has been sent."""
        self.core = core
        self.sender = sender
        self._name = name
        self._clock = clock
        self._batch_events_max = batch_events_max
        self._backlog_bytes_max = backlog_bytes_max
        self._on_sent = on_sent
        self.lock = threading.Lock()
        """Guards the core and the sender.  Taken by ``with``, since after a call of `acquire` an interrupt, such as
        Ctrl-C, may come before the ``try`` and leave it held.  So a thread that does not want to wait looks first
        whether it is held; once in a while another takes it in between, and then this one waits for that."""
        self.wakeup = threading.Lock()
        self.wakeup.acquire()
        self.is_asleep = False
        self.is_closed = False
        self._has_ended = False
        """It is closed, and what has no number by now never gets one."""
        self._is_draining = False
        """A caller is sending what is pending, so that the thread need not."""
        self.dirty: deque[OutStream] = deque()
        """Streams with something pending."""
        self._backlog_bytes = 0
        """An upper bound of what is pending."""
        self.is_link_news = False
        """A link came up, so that the core has to announce itself."""

    def start(self) -> None:
        """Send the first hello."""
        with self.lock:
            self.sender.send(self.core.start(time.monotonic(), self._clock.tick(time_ns())))

    # -- what callers bring

    def send_alone(self, stream: OutStream, encoded: bytes, stamp: int) -> bool:
        """Send an event that nothing is queued before, the short way.  False when it has to be queued after all."""
        if self.lock.locked():
            return False
        with self.lock:
            if stream.pending or self.is_closed:
                return False
            core = self.core
            sender = self.sender
            frame = core.lone_frame(stream, encoded, stamp)
            try:
                sender.end.send(stream.topic, frame)
            except DriverError as error:
                sender.refused(1, error)
            else:
                if sender.last_failure is not None:
                    sender.accepted()
            core.keep(stream, frame, 1, time.monotonic(), stamp)
        return True

    def queue(self, stream: OutStream, encoded: Sequence[bytes], size: int) -> None:
        """Append events to their stream, and send when that fills a frame or the backlog.

        Otherwise the caller must send, or leave that to the thread.
        """
        stream.pending += encoded
        if not stream.is_dirty:  # after appending, as in `Publisher.send_event`
            stream.is_dirty = True
            self.dirty.append(stream)
        if self.is_closed:
            self.check_numbered(stream, encoded[0])
            return
        self._backlog_bytes += size
        if len(stream.pending) >= self._batch_events_max or self._backlog_bytes > self._backlog_bytes_max:
            self.drain()

    def check_numbered(self, stream: OutStream, encoded: bytes) -> None:
        """It was closed while this event was appended.  Raises Closed unless the event has a number, or gets one.

        A thread that appends looks at the flag after it; one that closes sets the flag first, and numbers all that was
        appended second.  So what was appended before the flag was set has a number; of what came later this finds out.
        Events that are appended together are numbered together: it is enough to look for the first.
        """
        with self.lock:
            if self._has_ended and any(one is encoded for one in stream.pending):
                raise Closed(f"publisher {self._name} is closed")

    def flush(self, *, timeout_s: float | None, awaits_refusals: bool) -> None:
        """See `Publisher.flush`."""
        begun = time.monotonic()
        held: list[bool] = []
        try:
            # One call that takes the lock and notes that, so that no interrupt comes in between.
            held.extend(map(self.lock.acquire, (True,), (-1 if timeout_s is None else timeout_s,)))
            if not held[0]:
                raise WaitTimeout(f"publisher {self._name}: the backlog was not sent within {timeout_s} s")
            self._drain_locked()
            failure = self.sender.last_failure
        finally:
            if held and held[0]:
                self.lock.release()
        try:  # not under the lock: others may send meanwhile
            if awaits_refusals:
                rest_s = None if timeout_s is None else max(0.0, begun + timeout_s - time.monotonic())
                self.sender.end.settle(timeout_s=rest_s)
        except TransportUnavailable as error:
            failure = failure or error
        with self.lock:
            self.sender.take_refusals(self.core)
            not_permitted = self.sender.take_not_permitted()
        if not_permitted is not None:
            raise not_permitted
        if failure is not None:
            raise TransportUnavailable(f"publisher {self._name}: {failure}") from failure

    # -- handing over to the transport

    def try_drain(self) -> None:
        if not self.lock.locked():
            with self.lock:
                self._drain_locked()
        elif self.is_asleep:
            self.wake()

    def drain(self) -> None:
        with self.lock:
            # The thread must not queue up for the lock meanwhile: it would get it and then wait for the interpreter's
            # own, and every frame of a flood would have to pass both of them from thread to thread.
            self._is_draining = True
            try:
                self._drain_locked()
            finally:
                self._is_draining = False
        self.leave_to_thread()

    def _drain_locked(self) -> None:
        """Number, pack and send everything pending.

        Nothing gets a number any more when it is closed: `send_last` was the last to give any.
        """
        if self.dirty and not self.is_closed:
            self._send_pending()

    def send_last(self) -> None:
        """Under the lock: number and send what was accepted before it was closed, and say goodbye."""
        self._has_ended = True
        self.dirty.clear()
        last = self.core.end(time.monotonic(), self._clock.tick(time_ns()))
        for start in range(0, len(last), _FRAMES_PER_SEND):
            self.sender.send(last[start : start + _FRAMES_PER_SEND])

    def _send_pending(self) -> None:
        now = time.monotonic()
        stamp = self._clock.tick(time_ns())
        next_frame = self.core.next_frame
        dirty = self.dirty
        self._backlog_bytes = 0
        out: list[Outgoing] = []
        while dirty:
            stream = dirty.popleft()
            stream.is_dirty = False
            while True:
                frame = next_frame(stream, now, stamp)
                if frame is None:
                    break
                out.append((stream.topic, frame))
                if len(out) >= _FRAMES_PER_SEND:
                    self.sender.send(out)
                    out = []
                if not stream.pending:
                    break
        self.sender.send(out)
        self._on_sent()

    def pending_bytes(self) -> int:
        """Exactly what waits to be sent, under the lock."""
        return sum(sum(map(len, list(stream.pending))) for stream in list(self.dirty))

    # -- the thread

    def run(self) -> None:
        due = 0.0
        while not self.is_closed:
            if not self._is_draining:
                with self.lock:
                    due = self._work() if not self.is_closed else due
            # Lie down first, look second; a call that drains says so first, and looks at the sleeper second.
            self.is_asleep = True
            if (not self.dirty or self._is_draining) and not self.is_closed:
                self.wakeup.acquire(timeout=max(due - time.monotonic(), 0.001))
            self.is_asleep = False

    def _work(self) -> float:
        """Send what is pending and the hellos that are due; returns when there is more to do, unless it is woken."""
        self.sender.take_refusals(self.core)
        self._drain_locked()
        now = time.monotonic()
        if self.is_link_news:
            self.is_link_news = False
            self.core.announce(now)
        self.sender.send(self.core.poll(now, self._clock.tick(time_ns())))
        return self.core.next_deadline()

    def leave_to_thread(self) -> None:
        if self.dirty and self.is_asleep:
            self.wake()

    def wake(self) -> None:
        self.is_asleep = False
        # Not `contextlib.suppress`, which costs more than what it surrounds, and this is done for every frame.
        try:  # noqa: SIM105
            self.wakeup.release()
        except RuntimeError:
            pass  # Released already: another thread woke it and it is on its way.
