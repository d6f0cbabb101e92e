"""What waits between a subscriber's core and the program: frames, resyncs, and marks among them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from pubsub_api.core.events import Event
from pubsub_api.core.receiving.instream import Delivery
from pubsub_api.core.receiving.resync_requests import Resync


class Mark(enum.Enum):
    """A place in the queue."""

    JOINED = "joined"
    """All that publishers remembered when the subscription came into effect is before it."""


Item = Delivery | Resync | Event | Mark
"""What waits for the dispatcher: a frame, a resync, an event that came without an envelope, or a mark for the gate."""


def size_of(items: Sequence[Item]) -> int:
    """What the items count in the queue: resyncs nothing, and there are few."""
    size = 0
    for item in items:
        if isinstance(item, tuple):
            size += len(item[0])
        elif isinstance(item, Event):
            size += len(item.value or b"")
    return size


def portions(items: Sequence[Item], bytes_max: int) -> Iterator[tuple[list[Item], int]]:
    """What a repair made ready at once, in portions with their sizes: so the dispatcher makes room while it works."""
    portion: list[Item] = []
    size = 0
    for item in items:
        portion.append(item)
        size += size_of((item,))
        if size > bytes_max:
            yield portion, size
            portion, size = [], 0
    if portion:
        yield portion, size
