"""The worker's publisher: hands encoded events to the publisher service of the host.

Encoding happens in the calling thread; a lock, which is never held while anything blocks, guards the window.  An event
that finds nothing under way is written to the socket at once.  While something is, events collect, and leave when a
batch is full or when everything is acknowledged: batching without a timer.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from time import time_ns

from oslo_config import cfg

from publisher_service import config
from publisher_service.core.worker_side import WorkerCore, WorkerSettings
from publisher_service.errors import WindowFull
from publisher_service.ownership import socket_path
from publisher_service.worker.link import WorkerLink
from pubsub_api import settings
from pubsub_api.config import GROUP as PUBSUB
from pubsub_api.config import batch_bytes_max, retry_interval
from pubsub_api.core import frame as frames
from pubsub_api.core.events import (
    ACTIONS,
    CHECK_INTERVAL,
    ENCODING_ERRORS,
    PLAIN_TYPES,
    Event,
    encode_event,
    encode_fields,
)
from pubsub_api.core.headers import NO_HEADERS
from pubsub_api.core.topics import check_topic
from pubsub_api.errors import Closed, InvalidEvent, WaitTimeout
from pubsub_api.publishing.default_name import default_name
from pubsub_api.publishing.multiproc import (
    MultiprocDriver,
    WorkerLinkStatistics,
    WorkerPublisherApi,
    WorkerStatistics,
    WorkerWindowStatistics,
)
from pubsub_api.runtime import forking
from pubsub_api.runtime.backoff import Backoff

LOG = logging.getLogger(__name__)

_TOPICS_MAX = 100_000
"""Topics remembered as sound.  When there are more, all are checked anew."""


def event_bytes_max(conf: cfg.ConfigOpts) -> int:
    """The largest encoded event that a frame takes, also inside the reply of a cache."""
    return settings.frame_settings(conf).event_bytes_max


class IpcMultiproc(MultiprocDriver):
    """The driver ``ipc``: a Unix socket to the publisher service of this host."""

    def worker_publisher(self, *, name: str = "") -> WorkerPublisher:
        return WorkerPublisher(self.conf, name=name)


class WorkerPublisher(WorkerPublisherApi):
    """See `WorkerPublisherApi` for what it promises."""

    def __init__(self, conf: cfg.ConfigOpts, *, name: str = "") -> None:
        config.register(conf)
        options, pubsub = conf[config.GROUP], conf[PUBSUB]
        self._path = socket_path(conf)
        self._name = name or default_name()
        self._event_bytes_max = event_bytes_max(conf)
        self._send_timeout_s: float = options.send_timeout
        self._reconnect_s = (retry_interval(conf), float(pubsub.retry_interval_max))
        self._settings = WorkerSettings(
            window_events_max=config.WINDOW_EVENTS_MAX,
            window_bytes_max=config.WINDOW_BYTES_MAX,
            batch_events_max=pubsub.batch_events_max,
            batch_bytes_max=batch_bytes_max(conf),
        )
        self._is_closing = False
        """No further event is taken; those that were are given the time to be acknowledged."""
        self._is_closed = False
        self._topics: set[str] = set()
        self._new_worker()
        forking.register(self)
        _ALL.add(self)

    def _new_worker(self) -> None:
        """A fresh identity for this process.  Takes no lock but its own: after a fork others may be held for ever."""
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._stamp = 0
        """Of the last event.  No other clock is listened to here, so this is all of a hybrid clock that is needed.
        Taken without the lock: threads that send at the same moment may get equal ones."""
        self._waiters = 0
        """Threads that wait for progress."""
        self._blocked_sends = 0
        self._timeouts = 0
        self._core = WorkerCore(self._settings, guid=os.urandom(frames.GUID_BYTES), name=self._name, pid=os.getpid())
        self._link: WorkerLink | None = None

    # -- sending

    def send_event(self, event: Event) -> int:
        core = self._core
        stamp = time_ns()
        if stamp <= self._stamp:  # the wall clock has not moved, or was set back
            stamp = self._stamp + 1
        self._stamp = stamp
        # `encode_event` is written out here for the usual event of a flood, which finds others in the open batch: that
        # saves a call.  It does what is unusual, and says what is wrong.  Of a flood's dicts one in CHECK_INTERVAL is
        # looked into.
        table = event.table
        key = event.key
        action = event.action
        version = event.version
        value = event.value
        try:
            if (
                core.open
                and core.position % CHECK_INTERVAL
                and (type(value) is dict or type(value) in PLAIN_TYPES)
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
        with self._lock:
            position = core.position + 1
            window_bytes = core.window_bytes + len(encoded)
            # `WorkerCore.add` for an event that reaches no limit, without the call.
            if position < core.quick_position and window_bytes < core.quick_bytes and not self._is_closing:
                try:
                    core.open[event.topic].append(encoded)
                except (KeyError, TypeError):  # the first of its topic in this batch, or a topic that is none
                    return self._add(event, encoded)
                core.position = position
                core.window_bytes = window_bytes
                return position
            return self._add(event, encoded)

    def _add(self, event: Event, encoded: bytes) -> int:
        """Put an event into the window and write what should be written.  With the lock held, which is released while
        the window is full.  Raises as `send_event`."""
        if self._is_closing:
            raise Closed(f"worker {self._name} is closed")
        topic = event.topic
        try:
            if topic not in self._topics:
                self._note_topic(topic)
        except TypeError:  # what cannot be hashed is no topic, and is refused with the same error
            check_topic(topic)
        if len(encoded) > self._event_bytes_max:
            raise InvalidEvent(
                f"event {event.table}/{event.key} takes {len(encoded)} bytes, more than frame_bytes_max allows "
                f"({self._event_bytes_max})"
            )
        core, link = self._core, self._link or self._start_link()
        if core.is_full:
            link.read()  # what is acknowledged by now need not be waited for
            if core.is_full:
                self._wait_for_room(link)
        if core.add(topic, encoded):
            link.write()
        else:
            link.write_behind()
        return core.position

    def send_events(self, events: Iterable[Event]) -> int:
        for event in events:
            self.send_event(event)
        with self._lock:
            return self._core.position

    def _note_topic(self, topic: str) -> None:
        check_topic(topic)
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        self._topics.add(topic)

    def _start_link(self) -> WorkerLink:
        """Raises LimitReached: the next event tries again."""
        backoff = Backoff(*self._reconnect_s, jitter=random.random)
        link = WorkerLink(self._path, self._core, self._lock, self._progress.notify_all, self._has_waiters, backoff)
        link.start()
        self._link = link
        return link

    def _wait_for_room(self, link: WorkerLink) -> None:
        """Releases the lock while it waits.  Raises WindowFull, Closed."""
        self._blocked_sends += 1
        link.write()
        if not self._wait_for(lambda: self._is_closing or not self._core.is_full, self._send_timeout_s):
            self._timeouts += 1
            state = "takes nothing" if link.is_open else "cannot be reached"
            raise WindowFull(
                f"worker {self._name}: the publisher service at {self._path} {state} since {self._send_timeout_s} s, "
                f"and {self._core.waiting} events wait for it: the window is full"
            )
        if self._is_closing:
            raise Closed(f"worker {self._name} is closed")

    # -- progress

    def _has_waiters(self) -> bool:
        return self._waiters > 0

    def _wait_for(self, is_reached: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for progress, with the lock held, which is released meanwhile.  False when the time was over before."""
        self._waiters += 1
        try:
            if self._link is not None:
                self._link.await_answer()
            return self._progress.wait_for(is_reached, timeout_s)
        finally:
            self._waiters -= 1

    def flush(self, *, timeout_s: float | None = None) -> None:
        with self._lock:
            if self._is_closed:
                raise Closed(f"worker {self._name} is closed")
            position = self._core.position
        if not self.wait_acknowledged(position, timeout_s=timeout_s):
            raise WaitTimeout(f"worker {self._name}: the service has not acknowledged everything within {timeout_s} s")

    @property
    def acknowledged(self) -> int:
        with self._lock:
            if self._link is not None:
                self._link.read()
            return self._core.acknowledged

    def wait_acknowledged(self, position: int, *, timeout_s: float | None = None) -> bool:
        with self._lock:
            if self._link is not None:
                self._link.write()
                self._link.read()
            self._wait_for(lambda: self._is_closed or self._core.acknowledged >= position, timeout_s)
            return self._core.acknowledged >= position

    # -- looking at it

    @property
    def guid(self) -> bytes:
        return self._core.guid

    def statistics(self) -> WorkerStatistics:
        with self._lock:
            core, link = self._core, self._link
            if link is not None:
                link.read()
            return WorkerStatistics(
                name=self._name,
                guid=core.guid.hex(),
                is_connected=link is not None and link.is_open,
                events=core.position,
                batches=core.batches,
                acknowledged_events=core.acknowledged,
                refused_events=core.counters.refused_events,
                refused_reason=core.counters.refused_reason,
                window=WorkerWindowStatistics(core.waiting, core.window_bytes, self._blocked_sends, self._timeouts),
                link=WorkerLinkStatistics(
                    link.connects if link else 0,
                    link.disconnects if link else 0,
                    link.refusals if link else 0,
                    core.counters.resent,
                ),
            )

    # -- ending

    def close(self, *, timeout_s: float = 5.0) -> None:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._is_closing = True
            self._progress.notify_all()
            position = self._core.position
        self.wait_acknowledged(position, timeout_s=max(0.0, deadline - time.monotonic()))
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            left = self._core.waiting
            if self._link is not None:
                self._link.stop(with_bye=not left)
            self._progress.notify_all()
        if left:
            LOG.error("Worker %s ends with %d events that the publisher service never took.", self._name, left)
        if self._link is not None:
            self._link.join()

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._link, self._core, self._lock, self._progress))
        self._is_closing = self._is_closed  # it was the parent that was about to close
        self._new_worker()


_ALL: weakref.WeakSet[WorkerPublisher] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A process that ends without closing gives what is in its window a last chance."""
    for publisher in list(_ALL):
        publisher.close()
