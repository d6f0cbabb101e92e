"""The subscriber: receives frames from a driver, lets the core put them in order, and calls the user.

Three threads meet here.  The driver's brings frames and runs the core under a lock, a few operations per frame.  The
timers' runs the core when time has passed.  The dispatcher, on a shared one, takes whole frames from a bounded queue,
decodes them and calls the user; a callback may be slow without delaying anything but itself.  When the queue is full,
frames wait in the core, and follow as the dispatcher makes room; when there are too many even for that, they are
discarded and counted, and a resync follows.

A frame that comes alone while nothing waits need not go to the dispatcher: where the driver lends its thread, that one
calls the user (`pubsub_api.subscribing.inline_dispatch`), and receiving goes on in another when the callback lasts.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from pubsub_api import tracing
from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.clock import HybridClock
from pubsub_api.core.data_frames import data_reader, header_reader
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.core.errors import Closed, DriverError, Forked, UsageError, WaitTimeout
from pubsub_api.core.events import Action, Event
from pubsub_api.core.frame import Header, Kind
from pubsub_api.core.receiving.resync_requests import LostRange, Reason, Resync
from pubsub_api.core.receiving.subscriber import SubscriberCore
from pubsub_api.core.settings import SubscriberSettings
from pubsub_api.core.topics import CONTROL_TOPIC
from pubsub_api.driver import Asked, Connected, Disconnected, LinkReport, PubSubApi, Subscribed
from pubsub_api.driver_kit.threads import join_thread
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.plugins import without_password
from pubsub_api.runtime.shared_threads import THREADS, SharedTimer, run_soon
from pubsub_api.subscribing.diagnosis import RefusedFrames, explain
from pubsub_api.subscribing.dispatching import Callbacks, Dispatcher
from pubsub_api.subscribing.history import Mismatch
from pubsub_api.subscribing.history_gate import HistoryGate
from pubsub_api.subscribing.inline_dispatch import LOCK_WAIT_S, InlineDispatch, Relieve
from pubsub_api.subscribing.items import Item, Mark, portions, size_of
from pubsub_api.subscribing.reading import EventReader
from pubsub_api.subscribing.statistics import HistoryStatistics, SubscriberStatistics

LOG = logging.getLogger(__name__)

_PORTION_BYTES = 1024 * 1024
"""What the dispatcher takes at once, somewhat more at most: room is made when all of it is done."""


class Subscriber(Closeable):
    """Receives events.  Every method may be called from any thread; made by `Session.subscriber`.

    With ``on_event`` or ``on_events`` the user is called, one call at a time, from the dispatcher thread or from the
    one that received; a program may take its time in either.  Without, read: ``for event in subscriber`` yields events
    until it is closed, `get` waits for the next one, and resyncs go to ``on_resync``.  A program that only
    stores or passes on what was sent takes ``on_frames`` instead, and nothing is decoded.
    """

    def __init__(
        self,
        driver: PubSubApi,
        settings: SubscriberSettings,
        topics: Sequence[str],
        callbacks: Callbacks,
        *,
        addresses: Sequence[str],
        gate: HistoryGate | None,
        clock: HybridClock,
    ) -> None:
        if not topics:
            raise UsageError("a subscriber needs at least one topic filter")
        self._settings = settings
        self._gate = gate
        self._queue_bytes_max = settings.queue_bytes_max
        self._hybrid_clock = clock
        self._guid = os.urandom(frames.GUID_BYTES)
        self._core = SubscriberCore(
            settings, topics, guid=self._guid, now=time.monotonic(), jitter=random.Random().random
        )
        self._lock = threading.Lock()
        self._queue_bytes = 0
        self._waiting = 0
        """Calls of the user that are under way or to be made, each with a batch."""
        self._is_overrun = False
        self._inline = InlineDispatch(self._lock)
        self._dispatcher = Dispatcher(
            callbacks,
            gate=gate,
            inline=self._inline,
            handled=self._handled,
            undecodable=self._on_undecodable,
            resync_failed=self._on_resync_failed,
        )
        self._read = data_reader(settings.frame) if callbacks.on_frames is None else header_reader(settings.frame)
        self._reader = EventReader(gate.take if gate is not None else self._dispatcher.take)
        # Not with history: its reader calls the user too, and a driver's thread would wait for it, even when it closes.
        self._borrows = gate is None and self._dispatcher.task is not None
        self._refused_frames = RefusedFrames(LOG)
        self._addresses = set(addresses)
        self._links: dict[str, str | None] = {}  # why each is down; None: it is up
        self._ready = threading.Event()
        self._is_closed = self._is_inherited = False
        self._timer = SharedTimer(self._tick)
        self._timer_due = -math.inf
        self._repairs = tracing.active.repairs() if tracing.active is not None else None
        self._end = driver.get_subscriber()
        self._end.initialize(self)
        for topic_filter in (*topics, CONTROL_TOPIC):
            self._end.register_topic(topic_filter)
        for address in addresses:
            self._end.register_listen_address(address)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        """Raises LimitReached, and what the driver's ``daemonize`` raises."""
        forking.register(self)
        if self._dispatcher.task is not None:
            self._dispatcher.task.start()
        THREADS.add_timer(self._timer)
        THREADS.set_timer(self._timer, time.monotonic())
        self._end.daemonize()
        if self._gate is not None:
            self._gate.start(self)

    # -- what the driver calls

    def on_frames(self, received: Sequence[bytes]) -> None:
        with self._lock:
            self._core.room.bytes_left = self._queue_bytes_max - self._queue_bytes
            self._core.on_frames(received, time.monotonic())
            self._hybrid_clock.observe(self._core.newest_timestamp, time.time_ns())
            queries = self._collect()
        if queries:
            self._ask(queries)

    def on_frames_lent(self, received: Sequence[bytes], relieve: Relieve) -> bool:
        """The ordinary case is a lone frame while nothing waits, that the user is called with here and now.  It takes
        the long way when something is before it, or when more is to be done with it than a look."""
        is_ordinary = len(received) == 1 and self._borrows and not self._waiting
        data = self._read(received[0]) if is_ordinary else None
        if data is None:
            self.on_frames(received)
            return False
        inline, dispatcher, stream = self._inline, self._dispatcher, None
        began, wall_ns = time.monotonic(), time.time_ns()
        with self._lock:
            if not self._waiting and inline.begin(relieve, began):
                stream = self._core.accept_next(data, began)
                if stream is None:
                    inline.end(began)
        if stream is None:
            self.on_frames(received)
            return False
        self._hybrid_clock.observe(data.timestamp, wall_ns)
        ended = began
        try:
            if isinstance(data, Header):
                dispatcher.hand_over([(received[0], data, 0)])
                ended = time.monotonic()
            else:
                for event in data.events:
                    event.topic = stream.topic
                dispatcher.received += data.count
                ended = dispatcher.tell(data.events, began, wall_ns)
        finally:
            with self._lock:
                is_relieved = inline.end(ended)
        return is_relieved

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        with self._lock:
            if not self._core.filters.match(topic):
                return
            if self._settings.frame.key:
                self._core.counters.count_bad_frame("BadSignature")
                return
            if self._core.room.is_full or self._dispatcher.on_frames is not None:
                self._core.counters.intake.foreign_discarded += 1
            else:
                self._core.counters.intake.foreign += 1
                action: Action = "delete" if payload is None else "set"
                event = Event(topic=topic, table="", key="", action=action, value=payload)
                self._enqueue([event], len(payload or b""))

    def on_link(self, report: LinkReport) -> None:
        if isinstance(report, Asked):
            self._on_asked(report)
            return
        now = time.monotonic()
        with self._lock:
            if isinstance(report, Connected):
                self._links[report.address] = None
                self._core.link_up(report.address, now, report.arrivals)
            elif isinstance(report, Disconnected):
                self._links[report.address] = report.reason
                self._core.link_down(report.address)
            elif isinstance(report, Subscribed):
                self._core.filter_up(report.topic_filter, now)
            queries = self._collect()
        LOG.log(logging.WARNING if isinstance(report, Disconnected) else logging.INFO, "Subscriber: %s", report)
        self._ask(queries)

    def _on_asked(self, report: Asked) -> None:
        header = frames.unpack(report.query, bytes_max=self._settings.frame.bytes_max)
        query = messages.decode(messages.Query, report.query, header)
        with self._lock:
            self._core.asked(query.id, report.responders, time.monotonic())
            queries = self._collect()
        self._ask(queries)

    # -- between core, driver and queue

    def _collect(self) -> list[messages.Query]:
        """Under the lock, after the core was called: queue what it delivers, return what is to be asked."""
        out, queries = self._core.take()
        if self._repairs is not None:
            self._repairs.look(out, queries, self._core.counters)
        if out:
            size = size_of(out)
            if size > _PORTION_BYTES:
                for portion, portion_size in portions(out, _PORTION_BYTES):
                    self._enqueue(portion, portion_size)
            else:
                self._enqueue(out, size)
            if not self._ready.is_set() and self._core.is_ready:
                self._ready.set()
                if self._gate is not None:
                    self._enqueue([Mark.JOINED], 0)
        if self._core.room.is_overrun is not self._is_overrun:
            self._is_overrun = self._core.room.is_overrun
            if self._is_overrun:
                LOG.warning("Subscriber: the callback is too slow and events are discarded. A resync will follow.")
        due = self._core.next_deadline()
        if due < self._timer_due:
            self._timer_due = due
            THREADS.set_timer(self._timer, due)
        return queries

    def _enqueue(self, items: Sequence[Item], size: int) -> None:
        self._waiting += 1
        self._queue_bytes += size
        self._dispatcher.put(items)

    def _ask(self, queries: list[messages.Query]) -> None:
        for query in queries:
            frame = frames.pack(
                Kind.QUERY, self._guid, query.scope, messages.encode(query), key=self._settings.frame.key
            )
            try:
                responders = self._end.query(frame)
            except (DriverError, Closed) as error:
                LOG.debug("Subscriber: query %d went nowhere: %s", query.id, error)
                responders = None
            with self._lock:
                self._core.asked(query.id, responders, time.monotonic())
                more = self._collect()
            self._ask(more)

    def _tick(self) -> float:
        """The timers' thread, which others wait for, runs the core.  Returns when it has to be run again."""
        if not self._lock.acquire(timeout=LOCK_WAIT_S):
            return time.monotonic() + LOCK_WAIT_S
        try:
            self._timer_due = -math.inf  # what comes next is returned
            self._core.poll(time.monotonic())
            queries = self._collect()
            due = self._timer_due = max(self._core.next_deadline(), time.monotonic() + 0.001)
        finally:
            self._lock.release()
        if queries:
            run_soon(functools.partial(self._ask, queries))  # a driver may take its time
        self._refused_frames.look(self._core.counters.bad_frames)
        return due

    # -- what the dispatcher calls

    def _handled(self, size: int) -> None:
        with self._lock:
            self._done(size)

    def _done(self, size: int) -> None:
        """Under the lock: the user was called with items of that size."""
        self._waiting -= 1
        self._queue_bytes -= size
        if self._core.room.is_full:
            self._make_room()

    def _make_room(self) -> None:
        """Under the lock: the queue was full and is shorter now, so what waits in the core may follow."""
        room_bytes = self._queue_bytes_max - self._queue_bytes
        self._core.room.make_room(room_bytes, is_half_empty=room_bytes >= self._queue_bytes_max // 2)
        self._collect()

    def _on_undecodable(self, header: Header, ranges: Sequence[tuple[int, int]]) -> None:
        with self._lock:
            self._core.undecodable(header, ranges, time.monotonic())
            self._collect()

    def _on_resync_failed(self, resync: Resync) -> None:
        with self._lock:
            self._core.resync_failed(resync, time.monotonic())
            self._collect()

    # -- what the user calls

    def __iter__(self) -> Iterator[Event]:
        """Events until the subscriber is closed.  One reading thread at a time; another iteration goes on."""
        self._check_reading()
        yield from self._reader

    def get(self, *, timeout_s: float | None = None) -> Event | None:
        """The next event, None when none came within the time; resyncs go to ``on_resync`` meanwhile.

        One reading thread at a time.  Without a time it waits as long as it takes.  Raises Closed.
        """
        self._check_reading()
        event = self._reader.get(timeout_s)
        if event is None and self._reader.is_over:
            raise Closed("the subscriber was closed")
        return event

    def _check_reading(self) -> None:
        if self._dispatcher.task is not None and not (self._gate and self._gate.is_iterated):
            raise UsageError("this subscriber calls back; make one without a callback to read")
        self._check_usable()

    def wait_ready(self, *, timeout_s: float) -> None:
        """Return when the subscription is in effect: what is published from now on is delivered, or its loss is told.

        Raises WaitTimeout when no publisher or server could be reached in time; it goes on trying.
        """
        self._check_usable()
        if not self._ready.wait(timeout_s):
            with self._lock:
                state = explain(sorted(self._addresses), self._links, self._core.counters.bad_frames)
            raise WaitTimeout(f"the subscription was not in effect within {timeout_s} s ({state})")

    def wait_for_historical_data(self, timeout_s: float) -> HistoryOutcome:
        """Block until history has been delivered, it is clear that no service keeps it, or the time is over.

        History is delivered whether a thread waits for it or not.  Without ``durability`` there is none, and this
        returns COMPLETE at once.  For a subscriber that is iterated over, delivered means at hand: a history of many
        megabytes is at hand only while a thread iterates.  Not for callbacks: history waits for them.
        """
        self._check_usable()
        return self._gate.wait(timeout_s) if self._gate else HistoryOutcome.COMPLETE

    def durability_mismatches(self) -> Sequence[Mismatch]:
        """Where less is kept than ``durability`` asks for; what is kept is delivered all the same."""
        return self._gate.mismatches() if self._gate else ()

    def history_replaced(self) -> None:
        """Have a resync told, because what was delivered from history may be gone.  For sources of history."""
        with self._lock:
            self._core.ask_resync(Reason.HISTORY_REPLACED, time.monotonic())
            self._collect()

    def ask_again(self, lost: Iterable[LostRange]) -> None:
        """Ask caches once more for what a resync said is lost.  What they have comes to ``on_frames``, if it takes
        repeats."""
        self._check_usable()
        with self._lock:
            self._core.ask_again(lost, time.monotonic())
            queries = self._collect()
        self._ask(queries)

    def subscribe(self, topic_filter: str) -> bool:
        """Add a filter; True when it is new.  A resync for it follows once it is in effect.  Raises InvalidTopic."""
        self._check_usable()
        with self._lock:
            is_new = self._core.filter_added(topic_filter)
        return is_new and self._end.register_topic(topic_filter)

    def unsubscribe(self, topic_filter: str) -> bool:
        """Drop a filter; True when it was there.  What no other filter selects is no longer delivered."""
        self._check_usable()
        with self._lock:
            was_there = self._core.filter_removed(topic_filter)
        return was_there and self._end.unregister_topic(topic_filter)

    def listen_to(self, address: str) -> bool:
        """Listen to a further publisher; True when it is new.  Raises InvalidConfig."""
        self._check_usable()
        is_new = self._end.register_listen_address(address)
        self._addresses.add(address)
        return is_new

    def stop_listening_to(self, address: str) -> bool:
        """Stop listening to a publisher; True when it was listened to."""
        self._check_usable()
        with self._lock:
            self._core.link_removed(address)
            self._links.pop(address, None)
            self._addresses.discard(address)
        return self._end.unregister_listen_address(address)

    def _about(self) -> str:
        up = sum(reason is None for reason in list(self._links.values()))
        addresses = ", ".join(map(without_password, sorted(self._addresses)))
        return f"of {addresses or 'no address'}, {up} links up,"

    @property
    def topics(self) -> list[str]:
        """The filters in use."""
        with self._lock:
            return sorted(self._core.filters)

    def heads(self) -> dict[tuple[bytes, str], int]:
        """(Publisher, topic) -> its last number that is known to exist, for every stream that is known."""
        with self._lock:
            streams = [one for publisher in self._core.publishers.values() for one in publisher.streams.values()]
            return {(one.guid, one.topic): one.head for one in streams}

    def has_more(self) -> bool:
        """Asked from within ``on_events``: whether more waits, which is usually further events."""
        dispatcher = self._dispatcher
        return dispatcher.left > 0 or not dispatcher.queue.empty()

    def statistics(self) -> SubscriberStatistics:
        of_driver = dict(self._end.counters)  # not under our lock: a driver may have one of its own
        with self._lock:
            counters = self._core.counters
            # Not `dataclasses.asdict`, which takes ten times as long: this is also asked for while nothing happens.
            parts = {
                "bad_frames": dict(counters.bad_frames),
                "intake": dataclasses.replace(counters.intake, relieved=self._inline.relieved),
                "repair": dataclasses.replace(counters.repair, parked_bytes=self._core.parked_bytes),
                "peers": dataclasses.replace(counters.peers, publishers=len(self._core.publishers)),
            }
            return SubscriberStatistics(
                received=self._dispatcher.received,
                links_up=(links_up := list(self._links.values()).count(None)),
                links_down=max(len(self._addresses), len(self._links)) - links_up,
                lag=counters.delivered - self._dispatcher.received,
                queue_bytes=self._queue_bytes,
                callback_errors=self._dispatcher.callback_errors,
                receiver_errors=self._end.receiver_errors,
                delay_seconds=self._dispatcher.delay_seconds.read(),
                callback_seconds=self._dispatcher.callback_seconds.read(),
                driver=of_driver,
                history=self._gate.statistics() if self._gate else HistoryStatistics(),
                **{**vars(counters), **parts},
            )

    def close(self) -> None:
        """Stop receiving; no callback runs after it returns (unless it is called from one).  Idempotent."""
        if self._is_closed or self._is_inherited:
            return
        self._is_closed = self._dispatcher.is_closed = True
        self._end.close()
        THREADS.remove_timer(self._timer)
        self._dispatcher.put(None)
        inline, task = self._inline, self._dispatcher.task
        is_calling = inline.is_borrower or (task is not None and task.is_mine)
        if self._gate is not None:
            is_history = self._gate.is_calling
            is_calling |= is_history
            self._gate.close()
            join_thread(None if is_history else self._gate.thread)
        if task is not None:
            task.close(wait=not is_calling)  # one that waits for its turn may wait for this very call
        if self._borrows and not is_calling:
            with inline.calling:
                pass  # a thread that was calling the user has returned

    def _check_usable(self) -> None:
        if self._is_closed:
            raise Closed("the subscriber is closed")
        if self._is_inherited:
            raise Forked("a subscriber does not live on in a forked child: make a new one there")

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._end, self._dispatcher, self._lock, self._gate))
        self._is_inherited = True
        self._lock = threading.Lock()
