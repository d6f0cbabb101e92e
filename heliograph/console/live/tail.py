"""Events as they pass on the bus: the newest ones, and how many others there were.

A tail subscribes while a page shows it.  It decodes a bounded number of events a second, and counts the others by the
headers of their frames.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from heliograph.console.markup import cut
from heliograph.output import compact
from pubsub_api.core.events import Event, decode_events
from pubsub_api.core.topics import check_filter
from pubsub_api.errors import LimitReached, UndecodableBody, UsageError
from pubsub_api.runtime.closing import Closeable

if TYPE_CHECKING:
    from pubsub_api import Resync, Session
    from pubsub_api.core.receiving.instream import Delivery

EVENTS_KEPT = 50
EVENTS_PER_S = 50
"""How many events of one second are decoded and kept; later ones of that second are only counted."""
FRAME_BYTES_MAX = 256 * 1024
"""Larger frames are counted, not decoded."""
TAILS_MAX = 8
UNSEEN_S = 10.0
"""A tail that no page has shown for this long ends."""


class TailEvent(NamedTuple):
    topic: str
    action: str
    table: str
    key: str
    version: int
    timestamp: int
    value: str | None
    """None when the console may not show values."""


class EventTail(Closeable):
    """The newest events of one topic filter.  Making one raises what `Session.frames` raises."""

    def __init__(
        self, session: Session, topic_filter: str, *, shows_values: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shows_values = shows_values
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: collections.deque[TailEvent] = collections.deque(maxlen=EVENTS_KEPT)
        self._second, self._taken = 0, 0
        self._is_closed = False
        self.passed = self.left_out = self.undecodable = self.resyncs = 0
        self.seen_at = clock()
        """When a page last showed it, by the clock."""
        self._subscriber = session.frames([topic_filter], self._on_frames, on_resync=self._on_resync)

    def newest(self) -> list[TailEvent]:
        """The kept events, newest first."""
        self.seen_at = self._clock()
        with self._lock:
            return list(self._kept)[::-1]

    def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        self._subscriber.close()

    def _on_frames(self, deliveries: Sequence[Delivery]) -> None:
        for frame, header, skipped in deliveries:
            count = header.count - skipped
            self.passed += count
            second = int(self._clock())
            if second != self._second:
                self._second, self._taken = second, 0
            room = EVENTS_PER_S - self._taken
            if room <= 0 or len(frame) > FRAME_BYTES_MAX:
                self.left_out += count
                continue
            try:
                events = decode_events(frame, header, skip=skipped)[-room:]
            except UndecodableBody:
                self.undecodable += count
                continue
            self._taken += len(events)
            self.left_out += count - len(events)
            with self._lock:
                self._kept.extend(map(self._shown, events))

    def _on_resync(self, resync: Resync) -> None:
        if resync.reason.value != "initial":
            self.resyncs += 1

    def _shown(self, event: Event) -> TailEvent:
        value = cut(compact(event.value)) if self._shows_values else None
        return TailEvent(
            cut(event.topic), event.action, cut(event.table), cut(event.key), event.version, event.timestamp, value
        )


class TailRegistry(Closeable):
    """The tails that pages show.  May be called from any thread."""

    def __init__(self, open_session: Callable[[], Session], *, shows_values: bool) -> None:
        self._open_session = open_session
        self.shows_values = shows_values
        self._lock = threading.Lock()
        self._tails: dict[str, EventTail] = {}
        self._is_closed = False

    def get(self, topic_filter: str) -> EventTail:
        """The tail of a filter; without one, make it and begin to listen.  Raises InvalidTopic, UsageError,
        LimitReached, and what opening the bus raises."""
        if topic_filter.startswith("$"):
            raise UsageError(f"{topic_filter}: a tail does not handle events, so it cannot join a group")
        check_filter(topic_filter)
        with self._lock:
            found = self._tails.get(topic_filter)
            if found is None:
                if self._is_closed or len(self._tails) >= TAILS_MAX:
                    raise LimitReached(f"{TAILS_MAX} tails are open already: close the page of another one")
                found = EventTail(self._open_session(), topic_filter, shows_values=self.shows_values)
                self._tails[topic_filter] = found
            return found

    def close_unseen(self) -> None:
        """Close the tails that no page has shown for `UNSEEN_S`."""
        with self._lock:
            oldest = time.monotonic() - UNSEEN_S
            unseen = [self._tails.pop(name) for name, one in list(self._tails.items()) if one.seen_at < oldest]
        for one in unseen:
            one.close()

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._is_closed = True
            tails = list(self._tails.values())
            self._tails = {}
        for one in tails:
            one.close()
