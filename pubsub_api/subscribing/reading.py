"""Reading events one by one: for programs that iterate, or ask for the next event."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from pubsub_api.core.events import Event

Take = Callable[[float | None], Sequence[Event] | None]
"""The next events, within a time; none when it is over, and None when nothing will come any more."""


class EventReader:
    """Keeps the rest of a batch: the next read, by whatever way, gets what follows.  For one thread at a time."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._left: Iterator[Event] = iter(())
        self.is_over = False
        """Nothing will come any more."""

    def get(self, timeout_s: float | None) -> Event | None:
        """The next event; None when the time or everything is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (event := next(self._left, None)) is None:
            rest_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not self._fetch(rest_s):
                return None
        return event

    def __iter__(self) -> Iterator[Event]:
        """Until everything is over."""
        while True:
            yield from self._left
            if not self._fetch(None):
                return

    def _fetch(self, timeout_s: float | None) -> bool:
        events = self._take(timeout_s)
        self.is_over = events is None
        self._left = iter(events or ())
        return bool(events)
