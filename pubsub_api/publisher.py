"""The publisher: numbers events, batches them as the link allows, and sends them through a driver.

Batching never waits.  An event sent while nothing else is going on leaves at once, from the calling thread.  Events
that come faster than that collect per topic and leave together: in a thread of their own when it gets to run, or in
the calling thread as soon as a frame is full.  So a lone event has the transport's latency and a flood has its
throughput, with no timer between them.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from time import time_ns

from pubsub_api import forking
from pubsub_api.closing import Closeable
from pubsub_api.confirmation import Confirmer, Needed
from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.clock import HybridClock
from pubsub_api.core.errors import (
    Closed,
    DriverError,
    Forked,
    FrameError,
    InvalidEvent,
    InvalidTopic,
    NotSupported,
    TransportUnavailable,
    WaitTimeout,
)
from pubsub_api.core.events import Event, encode_event
from pubsub_api.core.messages import Want
from pubsub_api.core.publisher import Outgoing, OutStream, Predecessor, PublisherCore
from pubsub_api.core.settings import PublisherSettings
from pubsub_api.driver import Connected, Disconnected, LinkReport, PublisherApi, PubSubApi

LOG = logging.getLogger(__name__)

# An event that follows the end of the call before more closely than this is part of a flood and is worth batching.
_FLOOD_GAP_NS = 20_000
_FRAMES_PER_SEND = 64


@dataclasses.dataclass(frozen=True)
class PublisherStatistics:
    """Counters since the publisher was made."""

    name: str
    guid: str
    address: str
    events: int
    frames: int
    hellos: int
    streams: int
    backlog_bytes: int
    """Encoded events not yet handed to the transport."""
    send_failures: int
    """Frames the transport refused; they stay in the cache, and subscribers ask for them."""
    resent: int
    """Frames sent again because too few caches held them."""
    queries: int
    bad_queries: int
    cached_frames: int
    cached_bytes: int
    cache_evictions: int


class Publisher(Closeable):
    """Sends events.  Every method may be called from any thread; made by `Session.publisher`.

    After ``fork()`` the child's copy is a new publisher, with a GUID and handles of its own, opened at its first event.
    On a bind-based driver that raises AddressInUse: forked workers need the publisher service there.
    """

    def __init__(
        self,
        driver: PubSubApi,
        settings: PublisherSettings,
        *,
        name: str = "",
        backlog_bytes_max: int,
        clock: HybridClock,
        predecessor: Predecessor | None = None,
        guid: bytes | None = None,
    ) -> None:
        self._driver = driver
        self._settings = settings
        self._name = name or default_name()
        self._backlog_bytes_max = backlog_bytes_max
        self._batch_events_max = settings.batch_events_max
        # Twice the overhead: the frame must also fit, whole, into the reply of a cache.
        self._event_bytes_max = settings.frame.bytes_max - 2 * frames.FRAME_OVERHEAD_BYTES_MAX - 128
        self._clock = clock
        self._is_closed = False
        self._must_reopen = False
        self._is_unusable = False
        """One of both: a single look for every event."""
        self._open(self._name, predecessor, guid)
        forking.register(self)

    def _open(self, name: str, predecessor: Predecessor | None, guid: bytes | None = None) -> None:
        """Fresh handles, a fresh GUID.  Raises what the driver's ``initialize`` raises."""
        self._lock = threading.Lock()
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        self._is_asleep = False
        self._is_draining = False
        """A caller is sending what is pending, so that the thread need not."""
        self._dirty: deque[OutStream] = deque()
        self._backlog_bytes = 0
        self._last_call_ns = 0
        self._stamp = 0
        self._flood_stamp = 0
        """Up to this timestamp events are stamped without a look at the clock; 0 when there is no flood."""
        self._send_failures = 0
        self._last_failure: DriverError | None = None
        self._queries = 0
        self._bad_queries = 0
        self._resent = 0
        self._confirmer: Confirmer | None = None
        self._confirmed: dict[str, int] = {}
        self._is_link_news = False
        now = time.monotonic()
        self._core = PublisherCore(
            self._settings, guid=guid or os.urandom(frames.GUID_BYTES), name=name, now=now, predecessor=predecessor
        )
        self._streams = self._core.streams
        self._end: PublisherApi = self._driver.get_publisher()
        self._end.initialize(self._on_link)
        if self._driver.capabilities.queries:
            self._end.serve(self._answer)
        with self._lock:
            self._send_out(self._core.start(now, self._clock.tick(time_ns())))
        self._must_reopen = self._is_unusable = False
        self._thread = threading.Thread(target=self._run, name=f"heliograph-publisher-{name}", daemon=True)
        self._thread.start()

    # -- sending

    def send_event(self, event: Event) -> None:
        """Send one event.  Returns when it is handed to the transport or queued behind others; blocks only when the
        backlog is full, and then by sending it.  Delivery is not awaited: what is lost on the way is repaired.

        Raises InvalidEvent, InvalidTopic, LimitReached, Closed, and in a forked child what opening may raise.
        """
        if self._is_unusable:
            self._reopen()
        stamp = self._stamp + 1
        gap_ns = 0
        # In a flood the clock is read once per frame, and the events between count on from there.
        if stamp > self._flood_stamp:
            wall_ns = time_ns()
            stamp = self._clock.tick(max(wall_ns, stamp))
            gap_ns = wall_ns - self._last_call_ns
            self._last_call_ns = wall_ns
        self._stamp = stamp
        try:
            stream = self._streams[event.topic]
        except (KeyError, TypeError):
            stream = self._new_stream(event.topic)
        encoded = encode_event(event, stamp)
        size = len(encoded)
        if size > self._event_bytes_max:
            raise InvalidEvent(
                f"event {event.table}/{event.key} takes {size} bytes, more than frame_bytes_max allows "
                f"({self._event_bytes_max})"
            )
        if gap_ns > _FLOOD_GAP_NS and not self._dirty and self._send_alone(stream, encoded, stamp):
            self._last_call_ns = time_ns()
            return
        pending = stream.pending
        pending.append(encoded)
        self._backlog_bytes += size
        # Append first, look at the flag second; the sender clears the flag first and takes second.  So whatever the
        # interleaving, either the sender takes this event or the stream is listed again.
        if not stream.is_dirty:
            stream.is_dirty = True
            self._dirty.append(stream)
            if gap_ns > _FLOOD_GAP_NS:
                self._try_drain()
                self._last_call_ns = time_ns()
            elif self._is_asleep:
                self._wake()
        elif len(pending) >= self._batch_events_max or self._backlog_bytes > self._backlog_bytes_max:
            self._drain()
            self._last_call_ns = time_ns()
            self._flood_stamp = self._stamp + self._batch_events_max

    def _send_alone(self, stream: OutStream, encoded: bytes, stamp: int) -> bool:
        """Send an event that nothing is queued before, the short way.  False when it has to be queued after all."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if stream.pending:
                return False
            frame = self._core.lone_frame(stream, encoded, stamp)
            try:
                self._end.send(stream.topic, frame)
            except DriverError as error:
                self._refused(1, error)
            else:
                if self._last_failure is not None:
                    self._accepted()
            self._core.keep(stream, frame, 1, time.monotonic(), stamp)
        finally:
            self._lock.release()
        return True

    def _new_stream(self, topic: str) -> OutStream:
        with self._lock:
            return self._core.stream(topic)

    def send_events(self, events: Iterable[Event]) -> None:
        """Send many events, in order.  As `send_event` for each: what precedes a bad one is sent.

        Cheaper than that when they are a list or tuple in which events of one topic follow each other.
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
        is_flood = begun_ns - self._last_call_ns <= _FLOOD_GAP_NS
        stamp = self._clock.tick(max(begun_ns, self._stamp + 1))
        try:
            for event in events:
                if event.topic != topic or len(run) >= self._batch_events_max:
                    self._queue_run(topic, run)
                    topic, run = event.topic, []
                stamp += 1
                run.append(encode_event(event, stamp))
        finally:
            self._stamp = max(self._stamp, stamp)
            self._queue_run(topic, run)
            if is_flood:
                self._leave_to_thread()
            else:
                self._try_drain()
            self._last_call_ns = time_ns()

    def send_encoded(self, topic: str, encoded: Sequence[bytes]) -> None:
        """Send events of one topic that `encode_event` has made already, in order: all of them or, on an error, none.

        For who forwards events of other processes without looking into them.  Blocks and raises as `send_event`.
        """
        self._queue_run(topic, encoded)
        self._leave_to_thread()

    def _queue_run(self, topic: str, encoded: Sequence[bytes]) -> None:
        """Append the events to their stream, and send when that fills a frame or the backlog."""
        if self._is_unusable:
            self._reopen()
        if not encoded:
            return
        try:
            stream = self._streams[topic]
        except (KeyError, TypeError):
            stream = self._new_stream(topic)
        sizes = list(map(len, encoded))
        if max(sizes) > self._event_bytes_max:
            raise InvalidEvent(
                f"an event of topic {topic!r} takes {max(sizes)} bytes, more than frame_bytes_max allows "
                f"({self._event_bytes_max})"
            )
        stream.pending += encoded
        if not stream.is_dirty:  # after appending, as in `send_event`
            stream.is_dirty = True
            self._dirty.append(stream)
        self._backlog_bytes += sum(sizes)
        if len(stream.pending) >= self._batch_events_max or self._backlog_bytes > self._backlog_bytes_max:
            self._drain()

    def _leave_to_thread(self) -> None:
        if self._dirty and self._is_asleep:
            self._wake()

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Return when everything sent before is handed to the transport.

        Raises WaitTimeout, and TransportUnavailable when the transport refused the newest frames: they are kept for
        repair as long as the cache holds them.
        """
        if self._is_unusable:
            self._reopen()
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise WaitTimeout(f"publisher {self._name}: the backlog was not sent within {timeout_s} s")
        try:
            self._drain_locked()
            failure = self._last_failure
        finally:
            self._lock.release()
        if failure is not None:
            raise TransportUnavailable(f"publisher {self._name}: {failure}") from failure

    def confirm(
        self,
        *,
        caches: int = 1,
        services: int | None = None,
        timeout_s: float,
        addresses: Sequence[str] | None = None,
    ) -> None:
        """Return when that many stand-alone caches hold every event sent so far that was not confirmed before.

        Who keeps history counts as a cache.  ``services`` is how many of those must hold an event as well as its topic
        is to be kept, PERSISTENT ones on disk; by default ``[pubsub] min_services``.  What too few of them hold is sent
        again under the same numbers.  ``addresses`` says where they listen on a bind-based driver, by default where
        subscribers would.  Raises WaitTimeout naming a range, and NotSupported when this publisher keeps no cache to
        send from or the driver has no queries.
        """
        if self._is_unusable:
            self._reopen()
        if self._core.cache is None or not self._driver.capabilities.queries:
            raise NotSupported(f"publisher {self._name}: confirmation needs with_cache and a driver with queries")
        self._drain()
        with self._lock:
            heads = self._core.heads()
            if self._confirmer is None:
                self._confirmer = Confirmer(
                    self._driver.get_subscriber(),
                    self._settings.frame,
                    addresses=self._driver.listen_addresses() if addresses is None else addresses,
                )
        wants = [
            Want(self.guid, topic, self._confirmed.get(topic, 0) + 1, head)
            for topic, head in heads.items()
            if head > self._confirmed.get(topic, 0)
        ]
        needed = Needed(caches, self._settings.min_services if services is None else services)
        self._confirmer.confirm(wants, needed, timeout_s=timeout_s, resend=self._resend)
        self._confirmed.update(heads)

    def _resend(self, wants: Sequence[Want]) -> None:
        with self._lock:
            assert self._core.cache is not None
            out = [(want.topic, frame) for want in wants for frame in self._core.cache.want([want])]
            self._resent += len(out)
            self._send_out(out)

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
        """Number, pack and send everything pending."""
        if not self._dirty:
            return
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

    def _accepted(self) -> None:
        """The transport takes frames again."""
        LOG.info("Publisher %s sends again after %d refused frames.", self._name, self._send_failures)
        self._last_failure = None

    # -- the thread

    def _run(self) -> None:
        due = 0.0
        while not self._is_closed:
            if not self._is_draining:
                with self._lock:
                    due = self._work()
            # Lie down first, look second; who drains says that it is done first, and looks at the sleeper second.
            self._is_asleep = True
            if (not self._dirty or self._is_draining) and not self._is_closed:
                self._wakeup.acquire(timeout=max(due - time.monotonic(), 0.001))
            self._is_asleep = False

    def _work(self) -> float:
        """Send what is pending and the hellos that are due; returns when there is more to do, unless it is woken."""
        self._drain_locked()
        self._flood_stamp = 0
        now = time.monotonic()
        if self._is_link_news:
            self._is_link_news = False
            self._core.announce(now)
        self._send_out(self._core.poll(now, self._clock.tick(time_ns())))
        return self._core.next_deadline()

    def _wake(self) -> None:
        self._is_asleep = False
        # Not `contextlib.suppress`, which costs more than what it surrounds, and this is done for every frame.
        try:  # noqa: SIM105
            self._wakeup.release()
        except RuntimeError:
            pass  # Released already: somebody else woke the thread and it is on its way.

    def _on_link(self, report: LinkReport) -> None:
        if isinstance(report, Connected):
            LOG.info("Publisher %s: link to %s is up.", self._name, report.address)
            self._is_link_news = True
            self._wake()
        elif isinstance(report, Disconnected):
            LOG.warning("Publisher %s: link to %s is down: %s", self._name, report.address, report.reason)

    def _answer(self, frame: bytes) -> Iterator[bytes]:
        try:
            header = frames.unpack(frame, bytes_max=self._settings.frame.bytes_max, key=self._settings.frame.key)
            query = messages.decode(messages.Query, frame, header)
            with self._lock:
                self._queries += 1
                return self._core.answer(query, self._clock.tick(time_ns()))
        except (FrameError, InvalidTopic) as error:
            self._bad_queries += 1
            LOG.warning("Publisher %s refused a query: %s", self._name, error)
            return iter(())

    # -- looking at it

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def guid(self) -> bytes:
        return self._core.guid

    @property
    def address(self) -> str:
        """Where subscribers can listen to this publisher."""
        return self._end.address

    def heads(self) -> dict[str, int]:
        """Topic -> number of its last event.  Give it to a successor as `Predecessor` after `close`."""
        with self._lock:
            return self._core.heads()

    def statistics(self) -> PublisherStatistics:
        with self._lock:
            core = self._core
            cache = core.cache
            return PublisherStatistics(
                name=core.name,
                guid=core.guid.hex(),
                address=self._end.address,
                events=core.events,
                frames=core.frames,
                hellos=core.hellos,
                streams=len(core.streams),
                backlog_bytes=self._backlog_bytes,
                send_failures=self._send_failures,
                resent=self._resent,
                queries=self._queries,
                bad_queries=self._bad_queries,
                cached_frames=cache.frames if cache else 0,
                cached_bytes=cache.bytes if cache else 0,
                cache_evictions=cache.evicted if cache else 0,
            )

    # -- ending

    def close(self) -> None:
        """Send what is pending, say goodbye with the final heads, release everything.  Idempotent."""
        if self._is_closed:
            return
        self._is_closed = self._is_unusable = True
        if self._must_reopen:
            return
        with self._lock:
            self._drain_locked()
            self._send_out(self._core.bye(self._clock.tick(time_ns())))
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._confirmer is not None:
            self._confirmer.close()
        self._end.close()

    # -- forking

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._end, self._confirmer, self._thread, self._core, self._lock, self._wakeup))
        self._must_reopen = self._is_unusable = True
        self._lock = threading.Lock()

    def _reopen(self) -> None:
        if self._is_closed:
            raise Closed(f"publisher {self._name} is closed")
        if not self._driver.capabilities.fork_safe:
            raise Forked(
                f"publisher {self._name} was inherited through fork(), which this driver's library does not survive: "
                "publish through the publisher service, or start workers with 'spawn'"
            )
        with self._lock:
            if self._must_reopen:
                self._open(f"{self._name}/{os.getpid()}", None)


def default_name() -> str:
    """Host and program: the same again after a restart."""
    program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    return f"{socket.gethostname()}/{program}"
