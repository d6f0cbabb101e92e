"""The hot path of a publisher: takes events, collects them per topic, and sends them in as few frames as there may be.

Theory of operation
-------------------
Batching never waits.  An event sent while nothing else is going on leaves at once, from the calling thread.  Events
that come faster than that, in a *flood*, collect per topic and leave together: in a thread of their own when it gets to
run, or in the calling thread as soon as a frame is full.  So a lone event has the transport's latency and a flood has
its throughput, with no timer between them.

What is done for every event decides the throughput, so `send_event` does next to nothing: it finds the stream, takes a
timestamp, checks, encodes, appends.  Everything else is done once in a *turn*, a frame's worth of events at most:

* With the first event of a flood a caller reserves the timestamps of a whole turn.  The events after it take one each,
  and whoever finds none left looks at the clock, at how much has collected, and sends or reserves the next turn.
* The sizes of small events are not added up.  They are so small that a turn of them fits a frame, and a turn counts in
  the backlog with all that it may hold.  Only a large event is measured.

Whoever sends what has collected also takes back the timestamps that are left.  So the first event after that looks at
the clock again, and a lone event never goes with a flood that is over.
"""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from time import time_ns

from pubsub_api.core.clock import HybridClock
from pubsub_api.core.errors import Closed, DriverError, InvalidEvent, NotPermitted, TransportUnavailable, WaitTimeout
from pubsub_api.core.events import (
    ACTIONS,
    CHECK_INTERVAL,
    ENCODING_ERRORS,
    PLAIN_TYPES,
    Event,
    encode_event,
    encode_fields,
)
from pubsub_api.core.frame import FRAME_OVERHEAD_BYTES_MAX
from pubsub_api.core.publisher import Outgoing, OutStream, PublisherCore
from pubsub_api.core.settings import PublisherSettings
from pubsub_api.driver import PublisherApi, SendRefused
from pubsub_api.runtime.rare_logging import SeldomLog

LOG = logging.getLogger(__name__)

_FLOOD_GAP_NS = 20_000
"""An event that follows the end of the call before more closely than this is part of a flood and is worth batching."""
_FRAMES_PER_SEND = 64
_SMALL_BYTES = 256
"""A turn has so many events that those of this size at least are small."""
_NO_STAMPS: Iterator[int] = iter(())


class Batcher(abc.ABC):
    """The sending half of `Publisher`, which opens it.  Every method without an underscore is for any thread.

    Its attributes are slots because they are looked at for every event.
    """

    __slots__ = (
        "_backlog_bytes", "_backlog_bytes_max", "_batch_events_max", "_clock", "_core", "_dirty", "_end",
        "_event_bytes_max", "_flood_ns", "_has_ended", "_is_asleep", "_is_closed", "_is_draining", "_is_link_news",
        "_is_unusable", "_last_call_ns", "_last_failure", "_lock", "_name", "_send_failures", "_small_bytes_max",
        "_stamps", "_streams", "_turn_bytes", "_turn_events", "_wakeup",
        "_events_refused", "_log_refusal", "_not_permitted", "_refusals",
    )  # fmt: skip

    _core: PublisherCore
    _end: PublisherApi

    def __init__(self, settings: PublisherSettings, *, name: str, backlog_bytes_max: int, clock: HybridClock) -> None:
        self._name = name
        self._clock = clock
        self._backlog_bytes_max = backlog_bytes_max
        self._batch_events_max = settings.batch_events_max
        # Twice the overhead: the frame must also fit, whole, into the reply of a cache.
        self._event_bytes_max = settings.frame.bytes_max - 2 * FRAME_OVERHEAD_BYTES_MAX - 128
        self._turn_bytes = min(settings.batch_bytes_max, backlog_bytes_max // 2)
        self._turn_events = max(1, min(settings.batch_events_max, self._turn_bytes // _SMALL_BYTES))
        self._small_bytes_max = min(self._turn_bytes // self._turn_events, self._event_bytes_max)
        self._is_closed = False
        self._is_unusable = False
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Forget whatever was pending, and which streams there are."""
        self._lock = threading.Lock()
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        self._is_asleep = False
        self._has_ended = False
        """It is closed, and what has no number by now never gets one."""
        self._is_draining = False
        """A caller is sending what is pending, so that the thread need not."""
        self._streams: dict[str, OutStream] = {}
        """Those of the core; none while it is unusable, so that `send_event` needs no look of its own for that."""
        self._stamps = _NO_STAMPS
        """Timestamps left in this turn of a flood.  None are left when there is no flood."""
        self._last_call_ns = 0
        self._flood_ns = _FLOOD_GAP_NS
        """Who finds no timestamp left, and comes no later than this after the last call, is part of a flood."""
        self._dirty: deque[OutStream] = deque()
        self._backlog_bytes = 0
        """An upper bound of what is pending."""
        self._send_failures = 0
        self._last_failure: DriverError | None = None
        self._is_link_news = False
        self._refusals: deque[SendRefused] = deque()
        """What the driver has reported and the core does not know yet."""
        self._events_refused = 0
        self._not_permitted: NotPermitted | None = None
        self._log_refusal = SeldomLog(LOG)

    # -- sending

    def send_event(self, event: Event) -> None:
        """Send one event.  Returns when it is handed to the transport or queued behind others; blocks only when the
        backlog is full, and then by sending it.  Delivery is not awaited: what is lost on the way is repaired.

        Raises InvalidEvent, InvalidTopic, LimitReached, NotPermitted, Closed, and in a forked child what opening may
        raise.
        """
        try:
            stream = self._streams[event.topic]
        except (KeyError, TypeError):
            stream = self._open_stream(event.topic)
        except AttributeError as error:
            raise _not_an_event(event) from error
        stamp = next(self._stamps, 0)
        if not stamp:
            self._send_in_turn(stream, event)
            return
        # `encode_event` is written out here for the usual event, which saves a call; it does what is unusual, and
        # says what is wrong.
        table = event.table
        key = event.key
        action = event.action
        version = event.version
        value = event.value
        try:
            if (
                (type(value) is dict or type(value) in PLAIN_TYPES)  # who comes first in a turn is looked into
                and type(table) is str
                and type(key) is str
                and action in ACTIONS
                and type(version) is int
                and not version >> 63
                and not event.timestamp
            ):
                encoded = encode_fields((table, key, action, value, version, stamp))
            else:
                encoded = encode_event(event, stamp)
        except ENCODING_ERRORS:
            encoded = encode_event(event, stamp)
        if len(encoded) > self._small_bytes_max:
            if len(encoded) > self._event_bytes_max:
                raise self._too_large(event, len(encoded))
            self._queue(stream, [encoded], len(encoded))
            self._leave_to_thread()
            return
        # Append first, look at the flag second; the sender clears the flag first and takes second.  So whatever the
        # interleaving, either the sender takes this event or the stream is listed again.
        stream.pending.append(encoded)
        if not stream.is_dirty:
            stream.is_dirty = True
            self._dirty.append(stream)
            if self._is_asleep:
                self._wake()
        if self._is_closed:
            self._check_numbered(stream, encoded)

    def _send_in_turn(self, stream: OutStream, event: Event) -> None:
        """Send an event for which no timestamp is left: a lone one, or the first or the last of a turn of a flood."""
        wall_ns = time_ns()
        is_flood = wall_ns - self._last_call_ns <= self._flood_ns
        self._stamps = _NO_STAMPS
        stamp = self._reserve(self._turn_events, wall_ns) if is_flood else self._clock.tick(wall_ns)
        encoded = encode_event(event, stamp)
        size = len(encoded)
        if size > self._event_bytes_max:
            raise self._too_large(event, size)
        self._last_call_ns = wall_ns
        if is_flood:
            # Before it is queued, because who sends this event takes back what is left of the turn.
            self._flood_ns = _FLOOD_GAP_NS * self._turn_events
            self._stamps = iter(range(stamp + 1, stamp + self._turn_events - 1))
            self._queue(stream, [encoded], self._turn_bytes + size)
            self._leave_to_thread()
        elif self._dirty or not self._send_alone(stream, encoded, stamp):
            self._queue(stream, [encoded], size)
            self._try_drain()

    def _reserve(self, count: int, wall_ns: int) -> int:
        """The first of so many timestamps, later than all before.  None that was reserved before is used after this."""
        self._stamps = _NO_STAMPS
        first = self._clock.tick(wall_ns)
        if count > 1:
            self._clock.tick(first + count - 1)
        return first

    def _send_alone(self, stream: OutStream, encoded: bytes, stamp: int) -> bool:
        """Send an event that nothing is queued before, the short way.  False when it has to be queued after all."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if stream.pending or self._is_closed:
                return False
            core = self._core
            frame = core.lone_frame(stream, encoded, stamp)
            try:
                self._end.send(stream.topic, frame)
            except DriverError as error:
                self._refused(1, error)
            else:
                if self._last_failure is not None:
                    self._accepted()
            core.keep(stream, frame, 1, time.monotonic(), stamp)
        finally:
            self._lock.release()
        self._last_call_ns = time_ns()
        self._flood_ns = _FLOOD_GAP_NS
        return True

    def _open_stream(self, topic: str) -> OutStream:
        self._check_usable()
        with self._lock:
            return self._core.stream(topic)

    def send_events(self, events: Iterable[Event]) -> None:
        """Send many events, in order.  As `send_event` for each: what precedes a bad one is sent.

        In a list or tuple, events of one topic that follow each other leave together, also when nothing else goes on.
        """
        if isinstance(events, list | tuple):
            self._send_runs(events)
        else:
            # Whoever makes them one by one may take its time, and what is made must not wait for the rest.
            for event in events:
                self.send_event(event)

    def _send_runs(self, events: Sequence[Event]) -> None:
        topic, run = "", list[bytes]()
        begun_ns = time_ns()
        is_flood = begun_ns - self._last_call_ns <= self._flood_ns
        first_stamp = self._reserve(len(events), begun_ns)
        try:
            for stamp, event in enumerate(events, first_stamp):
                if event.topic != topic or len(run) >= self._batch_events_max:
                    self._queue_run(topic, run)
                    topic, run = event.topic, []
                run.append(encode_event(event, stamp, looks_inside=not (stamp - first_stamp) % CHECK_INTERVAL))
        except AttributeError as error:
            raise _not_an_event(event) from error
        finally:
            self._queue_run(topic, run)
            self._last_call_ns = time_ns()
            if is_flood:
                self._leave_to_thread()
            else:
                self._try_drain()

    def send_encoded(self, topic: str, encoded: Sequence[bytes]) -> None:
        """Send events of one topic that `encode_event` has made already, in order: all of them or, on an error, none.

        For who forwards events of other processes without looking into them.  Blocks and raises as `send_event`.
        """
        self._queue_run(topic, encoded)
        self._leave_to_thread()

    def _queue_run(self, topic: str, encoded: Sequence[bytes]) -> None:
        self._check_usable()
        if not encoded:
            return
        try:
            stream = self._streams[topic]
        except (KeyError, TypeError):
            stream = self._open_stream(topic)
        sizes = list(map(len, encoded))
        if max(sizes) > self._event_bytes_max:
            raise InvalidEvent(
                f"an event of topic {topic!r} takes {max(sizes)} bytes, more than frame_bytes_max allows "
                f"({self._event_bytes_max})"
            )
        self._queue(stream, encoded, sum(sizes))

    def _too_large(self, event: Event, size: int) -> InvalidEvent:
        return InvalidEvent(
            f"event {event.table}/{event.key} takes {size} bytes, more than frame_bytes_max allows "
            f"({self._event_bytes_max})"
        )

    def _queue(self, stream: OutStream, encoded: Sequence[bytes], size: int) -> None:
        """Append events to their stream, and send when that fills a frame or the backlog.

        Otherwise the caller must send, or leave that to the thread.
        """
        stream.pending += encoded
        if not stream.is_dirty:  # after appending, as in `send_event`
            stream.is_dirty = True
            self._dirty.append(stream)
        if self._is_closed:
            self._check_numbered(stream, encoded[0])
            return
        self._backlog_bytes += size
        if len(stream.pending) >= self._batch_events_max or self._backlog_bytes > self._backlog_bytes_max:
            self._drain()

    def _check_numbered(self, stream: OutStream, encoded: bytes) -> None:
        """It was closed while this event was appended.  Raises Closed unless the event has a number, or gets one.

        Who appends looks at the flag after it; who closes sets the flag first, and numbers all that was appended
        second.  So what was appended before the flag was set has a number; of what came later this finds out.  Events
        that are appended together are numbered together: it is enough to look for the first.
        """
        with self._lock:
            if self._has_ended and any(one is encoded for one in stream.pending):
                raise Closed(f"publisher {self._name} is closed")

    def flush(self, *, timeout_s: float | None = None, awaits_refusals: bool = True) -> None:
        """Return when everything sent before is handed to the transport, and it has said what of that it refuses.

        Raises WaitTimeout, and TransportUnavailable when the transport refused the newest frames: they are kept for
        repair as long as the cache holds them.  Raises NotPermitted, once, when the transport has refused frames for
        lack of permission since the last flush: they are not kept.  Without ``awaits_refusals`` those of the newest
        frames may be told by a later flush.
        """
        self._check_usable()
        begun = time.monotonic()
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise WaitTimeout(f"publisher {self._name}: the backlog was not sent within {timeout_s} s")
        try:
            self._drain_locked()
            failure = self._last_failure
        finally:
            self._lock.release()
        try:  # not under the lock: others may send meanwhile
            if awaits_refusals:
                rest_s = None if timeout_s is None else max(0.0, begun + timeout_s - time.monotonic())
                self._end.settle(timeout_s=rest_s)
        except TransportUnavailable as error:
            failure = failure or error
        with self._lock:
            self._take_refusals()
            not_permitted, self._not_permitted = self._not_permitted, None
        if not_permitted is not None:
            raise not_permitted
        if failure is not None:
            raise TransportUnavailable(f"publisher {self._name}: {failure}") from failure

    def _make_unusable(self) -> None:
        """From now on nothing is sent before `_reopen`: it is closed, or a forked child has it from its parent."""
        self._is_unusable = True
        self._streams = {}
        self._stamps = _NO_STAMPS

    def _check_usable(self) -> None:
        """Raises Closed; in a forked child, opens it."""
        if self._is_unusable:
            self._reopen()

    @abc.abstractmethod
    def _reopen(self) -> None:
        """Called when it is unusable.  Raises Closed, Forked and what opening may raise."""

    # -- handing over to the transport

    def _try_drain(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._drain_locked()
            finally:
                self._lock.release()
        elif self._is_asleep:
            self._wake()

    def _drain(self) -> None:
        with self._lock:
            # The thread must not queue up for the lock meanwhile: it would get it and then wait for the interpreter's
            # own, and every frame of a flood would have to pass both of them from thread to thread.
            self._is_draining = True
            try:
                self._drain_locked()
            finally:
                self._is_draining = False
        self._leave_to_thread()

    def _drain_locked(self) -> None:
        """Number, pack and send everything pending, and take back the timestamps that were reserved for a flood.

        Nothing gets a number any more when it is closed: `_send_last` was the last to give any.
        """
        if self._dirty and not self._is_closed:
            self._send_pending()

    def _send_last(self) -> None:
        """Under the lock: number and send what was accepted before it was closed, and say goodbye."""
        self._has_ended = True
        self._dirty.clear()
        last = self._core.end(time.monotonic(), self._clock.tick(time_ns()))
        for start in range(0, len(last), _FRAMES_PER_SEND):
            self._send_out(last[start : start + _FRAMES_PER_SEND])

    def _send_pending(self) -> None:
        now = time.monotonic()
        stamp = self._clock.tick(time_ns())
        next_frame = self._core.next_frame
        dirty = self._dirty
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
                    self._send_out(out)
                    out = []
                if not stream.pending:
                    break
        self._send_out(out)
        self._stamps = _NO_STAMPS
        self._flood_ns = _FLOOD_GAP_NS
        self._last_call_ns = time_ns()

    def _send_out(self, out: list[Outgoing]) -> None:
        if not out:
            return
        try:
            if len(out) == 1:
                self._end.send(*out[0])
            else:
                self._end.send_many(out)
        except DriverError as error:
            self._refused(len(out), error)
        else:
            if self._last_failure is not None:
                self._accepted()

    def _refused(self, count: int, error: DriverError) -> None:
        """The transport did not take frames."""
        self._send_failures += count
        if self._last_failure is None:
            LOG.warning("Publisher %s cannot send: %s. Frames are kept for repair.", self._name, error)
        self._last_failure = error

    def _take_refusals(self) -> None:
        """Forget what the transport did not let us send, before anybody is answered from the cache."""
        while self._refusals:
            refusal = self._refusals.popleft()
            events = self._core.refuse(refusal.frame, time.monotonic())
            self._events_refused += events
            self._log_refusal(
                "Publisher %s may not send: %s. %d events are dropped.", self._name, refusal.reason, events
            )
            if events:
                self._not_permitted = NotPermitted(f"publisher {self._name}: {refusal.reason}")

    def _accepted(self) -> None:
        """The transport takes frames again."""
        LOG.info("Publisher %s sends again after %d refused frames.", self._name, self._send_failures)
        self._last_failure = None

    def _pending_bytes(self) -> int:
        """Exactly what waits to be sent, under the lock."""
        return sum(sum(map(len, list(stream.pending))) for stream in list(self._dirty))

    # -- the thread

    def _run(self) -> None:
        due = 0.0
        while not self._is_closed:
            if not self._is_draining:
                with self._lock:
                    due = self._work() if not self._is_closed else due
            # Lie down first, look second; who drains says that it is done first, and looks at the sleeper second.
            self._is_asleep = True
            if (not self._dirty or self._is_draining) and not self._is_closed:
                self._wakeup.acquire(timeout=max(due - time.monotonic(), 0.001))
            self._is_asleep = False

    def _work(self) -> float:
        """Send what is pending and the hellos that are due; returns when there is more to do, unless it is woken."""
        self._take_refusals()
        self._drain_locked()
        now = time.monotonic()
        if self._is_link_news:
            self._is_link_news = False
            self._core.announce(now)
        self._send_out(self._core.poll(now, self._clock.tick(time_ns())))
        return self._core.next_deadline()

    def _leave_to_thread(self) -> None:
        if self._dirty and self._is_asleep:
            self._wake()

    def _wake(self) -> None:
        self._is_asleep = False
        # Not `contextlib.suppress`, which costs more than what it surrounds, and this is done for every frame.
        try:  # noqa: SIM105
            self._wakeup.release()
        except RuntimeError:
            pass  # Released already: somebody else woke the thread and it is on its way.


def _not_an_event(found: object) -> InvalidEvent:
    return InvalidEvent(f"an Event is sent, not an object of type {type(found).__name__}")
