"""The publisher as a program sees it: takes events, is opened and closed, forked, looked at.

Theory of operation
-------------------
Batching never waits.  An event sent while nothing else is going on leaves at once, from the calling thread.  Events
that come faster than that, in a *flood*, collect per topic and leave together: in a thread of their own when it gets to
run, or in the calling thread as soon as a frame is full.  So a lone event has the transport's latency and a flood has
its throughput, with no timer between them.

What is done for every event decides the throughput, so `send_event` does next to nothing: it finds the stream, takes a
timestamp, checks, encodes, appends.  Everything else is done once in a *turn*, a frame's worth of events at most:

* With the first event of a flood a caller reserves the timestamps of a whole turn.  The events after it take one each,
  and a call that finds none left looks at the clock, at how much has collected, and sends or reserves the next turn.
* The sizes of small events are not added up.  They are so small that a turn of them fits a frame, and a turn counts in
  the backlog with all that it may hold.  Only a large event is measured.

The thread that sends what has collected also takes back the timestamps that are left.  So the first event after that
looks at the clock again, and a lone event never goes with a flood that is over.

`pubsub_api.publishing.batching` collects and sends, `pubsub_api.publishing.sending` talks to the driver.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from time import time_ns

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.clock import HybridClock
from pubsub_api.core.errors import Closed, Forked, FrameError, InvalidEvent, InvalidTopic
from pubsub_api.core.events import (
    ACTIONS,
    CHECK_INTERVAL,
    ENCODING_ERRORS,
    PLAIN_TYPES,
    Event,
    encode_event,
    encode_fields,
    encode_sound,
)
from pubsub_api.core.headers import NO_HEADERS
from pubsub_api.core.sending.publisher import OutStream, Predecessor, PublisherCore
from pubsub_api.core.sending.replies import Head, select
from pubsub_api.core.settings import PublisherSettings
from pubsub_api.driver import Connected, Disconnected, LinkReport, PubSubApi, SendRefused
from pubsub_api.publishing.batching import Batcher
from pubsub_api.publishing.confirmation import Confirmation, Needed
from pubsub_api.publishing.default_name import default_name
from pubsub_api.publishing.sending import FrameSender
from pubsub_api.publishing.statistics import FrameCacheStatistics, PublisherStatistics, QuestionStatistics
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.plugins import without_password
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

_FLOOD_GAP_NS = 20_000
"""An event that follows the end of the call before more closely than this is part of a flood and is worth batching."""
_SMALL_BYTES = 256
"""A turn has so many events that those of this size at least are small."""
_NO_STAMPS: Iterator[int] = iter(())


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
        self._clock = clock
        self._backlog_bytes_max = backlog_bytes_max
        self._event_bytes_max = settings.frame.event_bytes_max
        self._turn_bytes = min(settings.batch_bytes_max, backlog_bytes_max // 2)
        self._turn_events = max(1, min(settings.batch_events_max, self._turn_bytes // _SMALL_BYTES))
        self._small_bytes_max = min(self._turn_bytes // self._turn_events, self._event_bytes_max)
        self._is_closed = False
        self._must_reopen = False
        self._opening = threading.Lock()
        self._log_bad_query = RateLimitedLog(LOG)
        self._open(self._name, predecessor, guid)
        forking.register(self)

    def _open(self, name: str, predecessor: Predecessor | None, guid: bytes | None = None) -> None:
        """Fresh handles, a fresh GUID.  Raises what the driver's ``initialize`` raises."""
        self._queries = 0
        self._bad_queries = 0
        self._streams: dict[str, OutStream] = {}
        """Those of the core; none while it is unusable, so that `send_event` needs no look of its own for that."""
        self._stamps = _NO_STAMPS
        """Timestamps left in this turn of a flood.  None are left when there is no flood."""
        self._last_call_ns = 0
        self._flood_ns = _FLOOD_GAP_NS
        """A call that finds no timestamp left, and comes no later than this after the last, is part of a flood."""
        guid = guid or os.urandom(frames.GUID_BYTES)
        core = PublisherCore(self._settings, guid=guid, name=name, now=time.monotonic(), predecessor=predecessor)
        self._core = core
        self._end = self._driver.get_publisher()
        self._batcher = Batcher(
            core,
            FrameSender(self._name, self._end),
            name=self._name,
            clock=self._clock,
            batch_events_max=self._settings.batch_events_max,
            backlog_bytes_max=self._backlog_bytes_max,
            on_sent=self._flood_is_over,
        )
        self._confirmation = Confirmation(self._driver, self._settings, self._name, self._batcher)
        self._end.initialize(self._on_link)
        try:
            if self._driver.capabilities.queries:
                self._end.serve(self._answer)
            self._batcher.start()
            self._streams = core.streams
            self._must_reopen = False
            thread = threading.Thread(target=self._batcher.run, name=f"heliograph-publisher-{name}", daemon=True)
            start_thread(thread)
            self._thread = thread
        except BaseException:
            self._end.close()  # an address that is bound would stay so
            raise

    # -- sending

    def send_event(self, event: Event, *, is_sound: bool = False) -> None:
        """Send one event.  Returns when it is handed to the transport or queued behind others; blocks only when the
        backlog is full, and then by sending it.  Delivery is not awaited: what is lost on the way is repaired.
        ``is_sound``: the caller knows that it can be encoded and decoded again, and it has no timestamp yet.

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
            self._send_in_turn(stream, event, is_sound)
            return
        # `encode_event` is written out here for the usual event, which saves a call; it does what is unusual, and
        # says what is wrong.
        table = event.table
        key = event.key
        action = event.action
        version = event.version
        value = event.value
        try:
            if is_sound:
                encoded = encode_sound(event, stamp)
            elif (
                (type(value) is dict or type(value) in PLAIN_TYPES)  # the first one of a turn is looked into
                and type(table) is str
                and type(key) is str
                and action in ACTIONS
                and type(version) is int
                and not version >> 63
                and not event.timestamp
                and event.headers is NO_HEADERS
            ):
                encoded = encode_fields((table, key, action, value, version, stamp))
            else:
                encoded = encode_event(event, stamp)
        except ENCODING_ERRORS:
            encoded = encode_event(event, stamp)
        if len(encoded) > self._small_bytes_max:
            if len(encoded) > self._event_bytes_max:
                raise self._too_large(f"event {event.table}/{event.key}", len(encoded))
            self._batcher.queue(stream, [encoded], len(encoded))
            self._batcher.leave_to_thread()
            return
        # Append first, look at the flag second; the sender clears the flag first and takes second.  So whatever the
        # interleaving, either the sender takes this event or the stream is listed again.
        stream.pending.append(encoded)
        if not stream.is_dirty:
            stream.is_dirty = True
            batcher = self._batcher
            batcher.dirty.append(stream)
            if batcher.is_asleep:
                batcher.wake()
        if self._is_closed:
            self._batcher.check_numbered(stream, encoded)

    def _send_in_turn(self, stream: OutStream, event: Event, is_sound: bool) -> None:
        """Send an event for which no timestamp is left: a lone one, or the first or the last of a turn of a flood."""
        wall_ns = time_ns()
        is_flood = wall_ns - self._last_call_ns <= self._flood_ns
        self._stamps = _NO_STAMPS
        stamp = self._reserve(self._turn_events, wall_ns) if is_flood else self._clock.tick(wall_ns)
        encoded = encode_sound(event, stamp) if is_sound else encode_event(event, stamp)
        size = len(encoded)
        if size > self._event_bytes_max:
            raise self._too_large(f"event {event.table}/{event.key}", size)
        self._last_call_ns = wall_ns
        if is_flood:
            # Before it is queued, because the thread that sends this event takes back what is left of the turn.
            self._flood_ns = _FLOOD_GAP_NS * self._turn_events
            self._stamps = iter(range(stamp + 1, stamp + self._turn_events - 1))
            self._batcher.queue(stream, [encoded], self._turn_bytes + size)
            self._batcher.leave_to_thread()
        elif self._batcher.dirty or not self._batcher.send_alone(stream, encoded, stamp):
            self._batcher.queue(stream, [encoded], size)
            self._batcher.try_drain()
        else:
            self._last_call_ns = time_ns()
            self._flood_ns = _FLOOD_GAP_NS

    def _reserve(self, count: int, wall_ns: int) -> int:
        """The first of so many timestamps, later than all before.  None that was reserved before is used after this."""
        self._stamps = _NO_STAMPS
        first = self._clock.tick(wall_ns)
        if count > 1:
            self._clock.tick(first + count - 1)
        return first

    def _open_stream(self, topic: str) -> OutStream:
        self._check_usable()
        with self._batcher.lock:
            return self._batcher.core.stream(topic)

    def send_events(self, events: Iterable[Event], *, is_sound: bool = False) -> None:
        """Send many events, in order.  As `send_event` for each: what precedes a bad one is sent.

        In a list or tuple, events of one topic that follow each other leave together, also when nothing else goes on.
        """
        if isinstance(events, list | tuple):
            self._send_runs(events, is_sound)
        else:
            # A generator may take its time, and what it has made must not wait for the rest.
            for event in events:
                self.send_event(event, is_sound=is_sound)

    def _send_runs(self, events: Sequence[Event], is_sound: bool) -> None:
        topic, run = "", list[bytes]()
        batch_events_max = self._settings.batch_events_max
        begun_ns = time_ns()
        is_flood = begun_ns - self._last_call_ns <= self._flood_ns
        first_stamp = self._reserve(len(events), begun_ns)
        try:
            for stamp, event in enumerate(events, first_stamp):
                if event.topic != topic or len(run) >= batch_events_max:
                    self._queue_run(topic, run)
                    topic, run = event.topic, []
                if is_sound:
                    run.append(encode_sound(event, stamp))
                else:
                    run.append(encode_event(event, stamp, looks_inside=not (stamp - first_stamp) % CHECK_INTERVAL))
        except AttributeError as error:
            raise _not_an_event(event) from error
        finally:
            self._queue_run(topic, run)
            self._last_call_ns = time_ns()
            if is_flood:
                self._batcher.leave_to_thread()
            else:
                self._batcher.try_drain()

    def send_encoded(self, topic: str, encoded: Sequence[bytes], *, is_flush_next: bool = False) -> None:
        """Send events of one topic that `encode_event` has made already, in order: all of them or, on an error, none.

        For programs that forward events of other processes without looking into them.  Blocks and raises as
        `send_event`.  ``is_flush_next``: the caller promises to call `flush` at once, which sends them; so the
        publisher's thread is not woken, which would only compete with the caller for its locks.
        """
        self._queue_run(topic, encoded)
        if not is_flush_next:
            self._batcher.leave_to_thread()

    def send_encoded_alone(self, topic: str, encoded: bytes) -> bool:
        """`send_encoded` and `flush` of one event, the short way.  False, and nothing is done, when others are pending,
        its topic is new, or anything else is unusual.  `has_untold` says then whether `flush` has anything to tell."""
        stream = self._streams.get(topic)
        if stream is None or self._batcher.dirty or len(encoded) > self._event_bytes_max:
            return False
        return self._batcher.send_alone(stream, encoded, self._clock.tick(time_ns()))

    @property
    def has_untold(self) -> bool:
        """The transport has refused frames, and the next `flush` tells."""
        return self._batcher.sender.has_untold

    def _queue_run(self, topic: str, encoded: Sequence[bytes]) -> None:
        self._check_usable()
        if not encoded:
            return
        try:
            stream = self._streams[topic]
        except (KeyError, TypeError):
            stream = self._open_stream(topic)
        size = sum(map(len, encoded))
        if size > self._event_bytes_max and (largest := max(map(len, encoded))) > self._event_bytes_max:
            raise self._too_large(f"an event of topic {topic!r}", largest)
        self._batcher.queue(stream, encoded, size)

    def _too_large(self, what: str, size: int) -> InvalidEvent:
        return InvalidEvent(f"{what} takes {size} bytes, more than frame_bytes_max allows ({self._event_bytes_max})")

    def _flood_is_over(self) -> None:
        """Everything pending was sent: take back the timestamps that are left of a turn."""
        self._stamps = _NO_STAMPS
        self._flood_ns = _FLOOD_GAP_NS
        self._last_call_ns = time_ns()

    def flush(self, *, timeout_s: float | None = None, awaits_refusals: bool = True) -> None:
        """Return when everything sent before is handed to the transport, and it has said what of that it refuses.

        Raises WaitTimeout, and TransportUnavailable when the transport refused the newest frames: they are kept for
        repair as long as the cache holds them.  Raises NotPermitted, once, when the transport has refused frames for
        lack of permission since the last flush: they are not kept.  Without ``awaits_refusals`` those of the newest
        frames may be told by a later flush.
        """
        self._check_usable()
        self._batcher.flush(timeout_s=timeout_s, awaits_refusals=awaits_refusals)

    def confirm(
        self,
        *,
        caches: int = 1,
        services: int | None = None,
        timeout_s: float,
        addresses: Sequence[str] | None = None,
    ) -> None:
        """Return when that many stand-alone caches hold every event sent so far that was not confirmed before.

        A service that keeps history counts as a cache.  ``services`` is how many of these must hold an event as well as
        its topic is to be kept, PERSISTENT ones on disk; by default ``[pubsub] min_services``.  What too few of them
        hold is sent again under the same numbers.  ``addresses`` says where they listen on a bind-based driver, by
        default where subscribers would.  Raises WaitTimeout naming a range, NotSupported when this publisher keeps no
        cache to send from or the driver has no queries, and UsageError.
        """
        self._check_usable()
        needed = Needed(caches, self._settings.min_services if services is None else services)
        self._confirmation.confirm(needed, timeout_s=timeout_s, addresses=addresses)

    # -- what the driver calls

    def _on_link(self, report: LinkReport) -> None:
        if isinstance(report, Connected):
            LOG.info("Publisher %s: link to %s is up.", self._name, report.address)
            self._batcher.is_link_news = True
            self._batcher.wake()
        elif isinstance(report, Disconnected):
            LOG.warning("Publisher %s: link to %s is down: %s", self._name, report.address, report.reason)
        elif isinstance(report, SendRefused):
            self._batcher.sender.report(report)
            self._batcher.wake()

    def _answer(self, frame: bytes) -> Iterator[bytes]:
        try:
            header = frames.unpack(frame, bytes_max=self._settings.frame.bytes_max, key=self._settings.frame.key)
            query = messages.decode(messages.Query, frame, header)
            stamp = self._clock.tick(time_ns())
            known: list[Head] = []
            with self._batcher.lock:
                self._queries += 1
                self._batcher.sender.take_refusals(self._core)
                if not query.wants:
                    known = self._core.known_heads(stamp)
            # Not under the lock: this looks at every stream, and senders must not wait for questions.
            selected = select(known, query.topics)
            with self._batcher.lock:
                return self._core.answer(query, stamp, time.monotonic(), selected)
        except (FrameError, InvalidTopic) as error:
            with self._batcher.lock:  # a driver may ask on several threads
                self._bad_queries += 1
            self._log_bad_query("Publisher %s refused a query: %s", self._name, error)
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

    def _about(self) -> str:
        return f"{self._name} at {without_password(self._end.address)}"

    def heads(self) -> dict[str, int]:
        """Topic -> number of its last event.  Give it to a successor as `Predecessor` after `close`."""
        with self._batcher.lock:
            return self._core.heads()

    def statistics(self) -> PublisherStatistics:
        of_driver = dict(self._end.counters)  # not under our lock: a driver may have one of its own
        with self._batcher.lock:
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
                backlog_bytes=self._batcher.pending_bytes(),
                send_failures=self._batcher.sender.send_failures,
                refused=self._batcher.sender.events_refused,
                resent=self._confirmation.resent,
                questions=QuestionStatistics(
                    self._queries, self._bad_queries, self._confirmation.bad_replies, self._end.handler_errors
                ),
                cache=FrameCacheStatistics(*((cache.frames, cache.bytes, cache.evicted) if cache else ())),
                driver=of_driver,
            )

    # -- ending

    def close(self) -> None:
        """Send what is pending, say goodbye with the final heads, release everything.  Idempotent.

        An event that another thread sends meanwhile is either among what is sent, or its call raises Closed.
        """
        with self._opening:
            if self._is_closed:
                return
            batcher = self._batcher
            self._is_closed = batcher.is_closed = True
        self._forget_streams()
        if self._must_reopen:
            return
        with batcher.lock:
            batcher.send_last()
        batcher.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._confirmation.close()
        self._end.close()

    # -- forking

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._end, self._confirmation, self._thread, self._batcher))
        self._must_reopen = True
        self._opening = threading.Lock()
        self._forget_streams()
        self._batcher.lock = threading.Lock()  # another thread of the parent may have held it

    def _forget_streams(self) -> None:
        """From now on every call finds that it is closed, or that a forked child has it from its parent."""
        self._streams = {}
        self._stamps = _NO_STAMPS

    def _check_usable(self) -> None:
        """Raises Closed; in a forked child opens it, and raises Forked and what opening may raise."""
        if self._is_closed or self._must_reopen:
            self._reopen()

    def _reopen(self) -> None:
        if self._is_closed:
            raise Closed(f"publisher {self._name} is closed")
        if not self._driver.capabilities.fork_safe:
            raise Forked(
                f"publisher {self._name} was inherited through fork(), which this driver's library does not survive: "
                "publish through the publisher service, or start workers with 'spawn'"
            )
        with self._opening:
            if self._is_closed:
                raise Closed(f"publisher {self._name} is closed")
            if self._must_reopen:
                self._open(f"{self._name}/{os.getpid()}", None)


def _not_an_event(found: object) -> InvalidEvent:
    return InvalidEvent(f"an Event is sent, not an object of type {type(found).__name__}")
