"""What stands between a subscriber and its user when the past is wanted too: history first, then live events.

Live events are held back, in the subscriber's own bounded queue, until history has been delivered or it is clear that
there is none; when that takes longer than ``hold_s`` they pass, and history is merged with them as it comes.  An event
that is not newer than what was delivered of its object is not delivered: so each comes once, in order for each object,
whichever way it came.  After a resync history is read again, and what is new in it is delivered.

Two threads meet here: the subscriber's dispatcher brings live events and resyncs, the reader brings history.  The user
is called by one of them at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.core.errors import Closed, WaitTimeout
from pubsub_api.core.events import Event
from pubsub_api.core.receiving.resync_requests import Reason, Resync
from pubsub_api.subscribing.history import HistorySource, Mismatch
from pubsub_api.subscribing.statistics import HistoryStatistics

LOG = logging.getLogger(__name__)

_READY_S = 1.0
"""How long history waits for the live subscription: what is published in between must come one way or the other."""
_BATCHES_MAX = 64
"""Batches that wait for an iterating user."""

InstanceKey = tuple[str, str, str]


class LiveSide(Protocol):
    """What the gate needs of the subscriber."""

    @property
    def topics(self) -> list[str]: ...

    def wait_ready(self, *, timeout_s: float) -> None: ...

    def history_replaced(self) -> None:
        """Have a resync told: what was delivered from history may be gone."""


class DeliveredObjects:
    """Which version of each object was delivered last, of ``objects_max`` objects at most.  Not thread-safe."""

    def __init__(self, objects_max: int) -> None:
        self._objects_max = objects_max
        self._newest: dict[InstanceKey, int] = {}
        self.duplicates = self.forgotten = 0

    def new_of(self, events: Sequence[Event]) -> list[Event]:
        """Those that are newer than what was delivered of their object; they count as delivered from now on."""
        fresh = [event for event in events if self._is_new(event)]
        self.duplicates += len(events) - len(fresh)
        return fresh

    def clear(self) -> None:
        """Whatever comes next is new."""
        self._newest.clear()

    def _is_new(self, event: Event) -> bool:
        if not event.timestamp:  # from a program that does not know our envelope
            return True
        instance = (event.topic, event.table, event.key)
        known = self._newest.pop(instance, 0)
        if not known and len(self._newest) >= self._objects_max:
            del self._newest[next(iter(self._newest))]
            self.forgotten += 1
        self._newest[instance] = max(known, event.timestamp)
        return event.timestamp > known


class BatchQueue:
    """Batches that wait for an iterating user.  Any thread may call."""

    def __init__(self) -> None:
        self._waiting: deque[Sequence[Event]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, events: Sequence[Event]) -> None:
        """Blocks while the queue is full, until it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < _BATCHES_MAX or self._is_closed)
            self._waiting.append(events)
            self._changed.notify_all()

    def take(self, timeout_s: float | None) -> Sequence[Event] | None:
        """See `pubsub_api.subscribing.reading`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting or self._is_closed, timeout_s):
                return ()
            if not self._waiting:
                return None
            self._changed.notify_all()
            return self._waiting.popleft()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class HistoryGate:
    """Made closed; `start` begins to read.  ``on_events`` None: the user reads by `take`."""

    def __init__(
        self,
        source: HistorySource,
        on_events: Callable[[Sequence[Event]], None] | None,
        on_resync: Callable[[Resync], None] | None,
        *,
        hold_s: float,
        objects_max: int,
        read_timeout_s: float,
        retry_s: float,
    ) -> None:
        self._source = source
        self._queue = BatchQueue()
        self._is_iterated = on_events is None
        self._on_events = on_events or self._queue.put
        self._on_resync = on_resync
        self._hold_s = hold_s
        self._read_timeout_s = read_timeout_s
        self._retry_s = retry_s
        self._hold_until = time.monotonic() + hold_s
        self._delivered = DeliveredObjects(objects_max)
        self._turn = threading.RLock()
        """Held by the thread that delivers, from the look at what is new until the user has it: so the order stays."""
        self._changed = threading.Condition()
        self._is_open = False
        self._caller = 0
        """The thread that is calling the user."""
        self._is_late = False
        """The first read began before the live subscription was in effect."""
        self._is_no_service_there = False
        """It was said that no publisher is there."""
        self._outcome = HistoryOutcome.TIMED_OUT
        self._done = threading.Event()
        self._joined = threading.Event()
        self._again = threading.Event()
        self._closing = threading.Event()
        self._historical = self._reads = self._errors = 0
        self.thread: threading.Thread | None = None

    @property
    def is_iterated(self) -> bool:
        return self._is_iterated

    @property
    def asks_publishers(self) -> bool:
        return self._source.asks_publishers

    def start(self, live: LiveSide) -> None:
        """Begin to read."""

        def on_change(is_replaced: bool) -> None:
            if is_replaced:
                live.history_replaced()
            else:
                self._again.set()

        self._source.watch(on_change)
        self.thread = threading.Thread(target=self._run, args=(live,), name="heliograph-history", daemon=True)
        self.thread.start()

    # -- what the subscriber calls

    def live(self, events: Sequence[Event]) -> None:
        """Live events: wait until history has been delivered, then pass on what is new."""
        with self._changed:
            left_s = max(0.0, self._hold_until - time.monotonic())
            if not self._changed.wait_for(lambda: self._is_open or self._closing.is_set(), left_s):
                LOG.warning("History: not complete after %s s; live events are delivered meanwhile.", self._hold_s)
                self._is_open = True
        with self._turn:
            self._pass_on(events)

    def resync(self, resync: Resync) -> None:
        """Tell the user; then history makes up for what was lost."""
        with self._turn:
            if self._on_resync is not None:
                self._call(self._on_resync, resync)
            if Reason.HISTORY_REPLACED in resync.reasons:
                self._delivered.clear()
        if self._is_late or Reason.INITIAL not in resync.reasons:
            self._again.set()

    def joined(self) -> None:
        """The live subscription is in effect, and what publishers remembered then has been passed on."""
        self._joined.set()
        if self._is_no_service_there:
            self._is_no_service_there = False
            self._again.set()

    @property
    def is_calling(self) -> bool:
        """Whether the user asks this while it is being called.  Then no thread that waits for the call to return, and
        both may, can be waited for."""
        return self._caller == threading.get_ident()

    def wait(self, timeout_s: float) -> HistoryOutcome:
        return self._outcome if self._done.wait(timeout_s) else HistoryOutcome.TIMED_OUT

    def mismatches(self) -> Sequence[Mismatch]:
        return self._source.mismatches()

    def take(self, timeout_s: float | None) -> Sequence[Event] | None:
        """For a user that reads: history, then live events (`pubsub_api.subscribing.reading`)."""
        return self._queue.take(timeout_s)

    def statistics(self) -> HistoryStatistics:
        return HistoryStatistics(
            events=self._historical,
            duplicates=self._delivered.duplicates,
            reads=self._reads,
            forgotten=self._delivered.forgotten,
            errors=self._errors,
        )

    def close(self) -> None:
        """End every wait.  Idempotent."""
        self._closing.set()
        self._source.close()
        self._queue.close()
        for waited_for in (self._again, self._joined, self._done):
            waited_for.set()
        with self._changed:
            self._changed.notify_all()

    # -- delivering

    def _pass_on(self, events: Sequence[Event]) -> int:
        """Hand over what is new; returns how many that was.  In turn."""
        fresh = self._delivered.new_of(events)
        if fresh and not self._closing.is_set():
            self._call(self._on_events, fresh)
        return len(fresh)

    def _call(self, callback: Callable[[Any], None], what: Any) -> None:
        self._caller = threading.get_ident()
        try:
            callback(what)
        finally:
            self._caller = 0

    # -- the reader

    def _run(self, live: LiveSide) -> None:
        try:
            live.wait_ready(timeout_s=_READY_S)
        except WaitTimeout:
            self._is_late = True
        except Closed:
            return
        self._settle(self._read(live))
        while not self._closing.is_set():
            self._again.wait()
            self._again.clear()
            if not self._closing.is_set():
                self._settle(self._read(live))

    def _read(self, live: LiveSide) -> HistoryOutcome:
        """Until history was read whole, or there is none."""
        outcome = HistoryOutcome.TIMED_OUT
        self._reads += 1
        while outcome is HistoryOutcome.TIMED_OUT and not self._closing.is_set():
            outcome = self._read_once(live)
        return outcome

    def _read_once(self, live: LiveSide) -> HistoryOutcome:
        try:
            return self._source.read(live.topics, self._on_page, timeout_s=self._read_timeout_s)
        except BaseException:  # whatever a plug-in raises, live events must not wait for it for ever
            self._errors += 1
            LOG.exception("History: it could not be read; trying again.")
            self._closing.wait(self._retry_s)
            return HistoryOutcome.TIMED_OUT

    def _settle(self, outcome: HistoryOutcome) -> None:
        if self._closing.is_set():
            return
        with self._changed:
            self._is_open = True
            self._changed.notify_all()
        if self._source.asks_publishers and not self._joined.wait(self._source.publishers_wait_s):
            # What publishers remember comes as if it were live, and no publisher is there.
            self._is_no_service_there = True
            outcome = HistoryOutcome.NO_SERVICE if outcome is HistoryOutcome.COMPLETE else outcome
        if not (self._done.is_set() and outcome is HistoryOutcome.NO_SERVICE):
            self._outcome = outcome
        self._done.set()

    def _on_page(self, events: Sequence[Event]) -> None:
        with self._turn:
            try:
                self._historical += self._pass_on(events)
            except BaseException:
                self._errors += 1
                LOG.exception("Subscriber: the event callback raised on history; going on with the next events.")
