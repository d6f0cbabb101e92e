"""The events of a partition that were read and are not with the user, and which of them may be next.

Events wait in the order of the log.  In an ordered partition the events of one *object*, a topic and key, wait for each
other: while one of them is with the user, or waits for another attempt, those behind it wait, and the events of all
other objects go on.  In a queue no event waits for another.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from pubsub_api.core.events import GroupEvent

ObjectKey = tuple[str, str]


def object_of(event: GroupEvent) -> ObjectKey:
    return event.topic, event.key


class WaitingEvents:
    """Not thread-safe.

    ========  ==============================================
    fresh     read from the log, in order
    behind    wait for an event of their object
    ready     no event of their object is before them any more
    retries   failed, wait for their next attempt
    ========  ==============================================
    """

    def __init__(self, *, is_ordered: bool) -> None:
        self._is_ordered = is_ordered
        self._fresh: deque[list[GroupEvent]] = deque()
        self._ready: deque[GroupEvent] = deque()
        self._behind: dict[ObjectKey, deque[GroupEvent]] = {}
        """Of objects that are held."""
        self._retries: list[tuple[float, int, GroupEvent]] = []

    def __bool__(self) -> bool:
        """Whether there are events other than retries that may be next."""
        return bool(self._fresh or self._ready)

    @property
    def has_retries(self) -> bool:
        return bool(self._retries)

    def next_retry(self) -> float:
        """When the next attempt is due; infinity when there is none."""
        return self._retries[0][0] if self._retries else float("inf")

    def add(self, events: list[GroupEvent]) -> None:
        self._fresh.append(events)

    def clear(self) -> None:
        self._fresh.clear()
        self._ready.clear()
        self._retries.clear()
        self._behind.clear()

    # -- taking

    def take_retry(self, now: float) -> GroupEvent | None:
        """The next event whose attempt is due.  Its object stays held."""
        return heapq.heappop(self._retries)[2] if self._retries and self._retries[0][0] <= now else None

    def take(self, limit: int) -> list[GroupEvent]:
        """The next events in the order of the log, perhaps several of one object; no object is held for them."""
        if self._ready or self._behind:
            events = [event for event in self._next(limit) if not self._must_wait(event)]
            return sorted(events, key=lambda event: event.offset)
        if not self._fresh:
            return []
        events = self._fresh.popleft()
        if len(events) > limit:
            self._fresh.appendleft(events[limit:])
            return events[:limit]
        return events

    def take_and_hold(self, limit: int) -> list[GroupEvent]:
        """The next events, one of each object, which is held."""
        if not self._is_ordered:
            return list(self._next(limit))
        taken = []
        for event in self._next(limit):
            if not self._must_wait(event):
                self._behind[object_of(event)] = deque()
                taken.append(event)
        return taken

    def _must_wait(self, event: GroupEvent) -> bool:
        """Put an event behind the others of its object when that is held."""
        behind = self._behind.get(object_of(event)) if self._is_ordered else None
        if behind is None:
            return False
        behind.append(event)
        return True

    def _next(self, limit: int) -> Iterator[GroupEvent]:
        """At most ``limit`` events that are ready or fresh.  Those yielded do not wait any more."""
        for _ in range(limit):
            if not self._ready:
                if not self._fresh:
                    return
                self._ready.extend(self._fresh.popleft())
            yield self._ready.popleft()

    # -- holding objects

    def hold(self, event: GroupEvent) -> None:
        """Events of the same object wait from now on."""
        if self._is_ordered:
            self._behind.setdefault(object_of(event), deque())

    def release(self, event: GroupEvent) -> bool:
        """The object of an event is held no more; True when events of it have waited for that."""
        behind = self._behind.pop(object_of(event), None) if self._is_ordered else None
        if not behind:
            return False
        # Before everything else, because they are older; if they must wait for each other, they will when taken.
        self._ready.extendleft(reversed(behind))
        return True

    def retry(self, event: GroupEvent, due: float) -> None:
        """Give an event out again when it is due.  Its object is held."""
        self.hold(event)
        heapq.heappush(self._retries, (due, event.offset, event))

    def put_back(self, events: Sequence[GroupEvent], out: Iterable[GroupEvent]) -> None:
        """Events wait again, before all others of their objects.  ``out`` are those that are still with the user."""
        taken = {object_of(event) for event in out} | {object_of(event) for _, _, event in self._retries}
        for event in reversed(events):
            key = object_of(event)
            if self._is_ordered and key in taken:
                self._behind.setdefault(key, deque()).appendleft(event)
                continue
            self._ready.extendleft(reversed(self._behind.pop(key, ())))
            self._ready.appendleft(event)
