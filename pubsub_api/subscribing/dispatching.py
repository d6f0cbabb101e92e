"""Calling the user: what waits in a subscriber's queue is decoded and handed over, in order, one call at a time.

The thread that does it is one that the process shares, or that of a program that iterates.  A driver's thread may call
the user with a frame that came alone (`pubsub_api.subscribing.inline_dispatch`): it uses `decode` and `tell` as well.
"""

from __future__ import annotations

import logging
import math
import operator
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pubsub_api.core.errors import UndecodableBody, UsageError
from pubsub_api.core.events import Event, decode_events
from pubsub_api.core.frame import Header
from pubsub_api.core.receiving.instream import Delivery
from pubsub_api.core.receiving.resync_requests import Resync
from pubsub_api.runtime.durations import DurationCounter
from pubsub_api.runtime.shared_threads import SharedTask
from pubsub_api.subscribing.decoding import decode
from pubsub_api.subscribing.history_gate import HistoryGate
from pubsub_api.subscribing.inline_dispatch import InlineDispatch
from pubsub_api.subscribing.items import Item, Mark, size_of

LOG = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]
OnEvents = Callable[[Sequence[Event]], None]
OnResync = Callable[[Resync], None]
OnFrames = Callable[[Sequence[Delivery]], None]
"""Gets whole frames, in order, each with its header and how many of its first events were delivered before."""


class Callbacks(NamedTuple):
    """What a program gives to be called with: events or frames, or neither when it iterates."""

    on_events: OnEvents | None = None
    on_frames: OnFrames | None = None
    on_resync: OnResync | None = None


class Dispatcher:
    """The queue between the core and the user.  `put` is for any thread; the rest for the one that calls the user."""

    def __init__(
        self,
        callbacks: Callbacks,
        *,
        gate: HistoryGate | None,
        inline: InlineDispatch,
        handled: Callable[[int], None],
        undecodable: Callable[[Header, Sequence[tuple[int, int]]], None],
        resync_failed: Callable[[Resync], None],
    ) -> None:
        """Tells the owner when the user was called with a batch of that size, which numbers of a frame cannot be
        decoded, and which resync the user could not act on."""
        self._handled = handled
        self._undecodable = undecodable
        self._resync_failed = resync_failed
        self.on_events = callbacks.on_events
        self.on_frames = callbacks.on_frames
        self._on_resync = callbacks.on_resync
        self._gate = gate
        self.queue: queue.SimpleQueue[Sequence[Item] | None] = queue.SimpleQueue()
        self._reading: Iterator[Item] | None = None
        """What is left of the batch that a user reads, which counts in the queue until it was read."""
        self._size = 0
        """Of that batch."""
        self.left = 0
        """Items that are left of a batch."""
        self.received = self.callback_errors = 0
        self.delay_seconds = DurationCounter()
        self.callback_seconds = DurationCounter()
        self.is_closed = False
        self._inline = inline
        self.task: SharedTask | None = None
        """None when the user iterates."""
        if self.on_events is not None or self.on_frames is not None:
            self.task = SharedTask(self._call_with_all)

    def put(self, items: Sequence[Item] | None) -> None:
        """Queue a batch; None ends iterations."""
        self.queue.put(items)
        if self.task is not None:
            self.task.wake()

    def _call_with_all(self) -> float:
        """The work of the shared thread: what waits."""
        while True:
            try:
                items = self.queue.get_nowait()
            except queue.Empty:
                return math.inf
            if items is not None:
                with self._inline.calling:
                    self._call_user(items)
                self._handled(size_of(items))

    def _call_user(self, items: Sequence[Item]) -> None:
        if self.on_frames is not None:
            self._hand_over_all(items)
            return
        for events in self._events_of(items):
            self.tell(events, time.monotonic(), time.time_ns())

    def tell(self, events: list[Event], began: float, wall_ns: int) -> float:
        """Call the user, at this time by either clock.  Returns when that has ended.  Never raises."""
        assert self.on_events is not None
        published = events[-1].timestamp
        try:
            self.on_events(events)
        except BaseException:  # on this thread no exception means more than that it was raised
            self.callback_errors += 1
            LOG.exception("Subscriber: the event callback raised; going on with the next events.")
        ended = time.monotonic()
        self.callback_seconds.add(ended - began)
        if published > 0:  # what comes without an envelope has none
            self.delay_seconds.add((wall_ns - published) * 1e-9 if wall_ns > published else 0.0)
        return ended

    def _hand_over_all(self, items: Sequence[Item]) -> None:
        """Hand over whole frames, as many together as are at hand; resyncs are told on the way."""
        run: list[Delivery] = []
        for item in items:
            if self.is_closed:
                return
            if isinstance(item, tuple):
                run.append(item)
            elif isinstance(item, Resync):
                self.hand_over(run)
                run = []
                self._tell_resync(item)
        self.hand_over(run)

    def hand_over(self, deliveries: list[Delivery]) -> None:
        """Call a user that takes whole frames.  Never raises."""
        if not deliveries or self.is_closed:
            return
        assert self.on_frames is not None
        self.received += sum(header.count - already for _, header, already in deliveries)
        try:
            self.on_frames(deliveries)
        except BaseException:
            self.callback_errors += 1
            LOG.exception("Subscriber: the frame callback raised; going on with the next frames.")

    def take(self, timeout_s: float | None) -> list[Event] | None:
        """For a user that reads: the next events (`pubsub_api.subscribing.reading`); resyncs are told on the way.

        When telling one is interrupted, what follows it comes with the next call.
        """
        while True:
            if self._reading is None:
                try:
                    items = self.queue.get(timeout=timeout_s)
                except queue.Empty:
                    return []
                if items is None:
                    self.queue.put(None)
                    return None
                self._reading, self._size = iter(items), size_of(items)
            for events in self._events_of(self._reading):
                return events
            self._reading = None
            self._handled(self._size)

    def _events_of(self, items: Sequence[Item] | Iterator[Item]) -> Iterator[list[Event]]:
        """The events of the items, in order; resyncs are told on the way.  Ends early when it is closed."""
        self.left = operator.length_hint(items)
        for item in items:
            if self.is_closed:
                return
            self.left -= 1
            if isinstance(item, tuple):
                if events := self.decode(item):
                    yield events
            elif isinstance(item, Resync):
                self._tell_resync(item)
            elif isinstance(item, Mark):
                if self._gate is not None:
                    self._gate.joined()
            else:
                self.received += 1
                yield [item]

    def decode(self, delivery: Delivery) -> list[Event]:
        """The events of a frame, counted as received."""
        frame, header, already = delivery
        try:
            events = decode_events(frame, header, skip=already)
        except UndecodableBody:
            events = self._decode_rest(delivery)
        self.received += len(events)
        return events

    def _decode_rest(self, delivery: Delivery) -> list[Event]:
        """Those events of a frame that can be decoded; the owner is told of the others."""
        events, undecodable = decode(delivery)
        if undecodable is not None:
            _, header, _ = delivery
            LOG.error(
                "Subscriber: %d events of topic %r of publisher %s cannot be decoded, a resync will follow: %s",
                undecodable.count, header.topic, header.guid.hex(), undecodable.reason,
            )  # fmt: skip
            self._undecodable(header, undecodable.ranges)
        return events

    def _tell_resync(self, resync: Resync) -> None:
        LOG.log(
            logging.WARNING if resync.lost else logging.INFO,
            "Subscriber: resync %d (%s) of %d topics%s", resync.generation, resync.reason.value, len(resync.topics),
            "".join(("; lost ", "; ".join(map(str, resync.lost)))) if resync.lost else "",
        )  # fmt: skip
        if self._on_resync is not None:
            try:
                self._on_resync(resync)
            except BaseException as error:
                LOG.exception("Subscriber: the resync callback raised; it will be told again.")
                self.callback_errors += 1
                self._resync_failed(resync)
                if self.task is None and not isinstance(error, Exception):
                    raise  # the thread is that of the program, which iterates


def in_batches(on_event: OnEvent | None, on_events: OnEvents | None) -> OnEvents | None:
    """The callback for batches that does the same, None when there is no callback.  Raises UsageError for both."""
    if on_event is None:
        return on_events
    if on_events is not None:
        raise UsageError("give one of on_event and on_events")

    def call(events: Sequence[Event]) -> None:
        for event in events:
            on_event(event)

    return call
