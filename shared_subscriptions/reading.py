"""From the log to the lanes of a stream: reads frames, leaves out what is not for the stream, decodes the rest."""

from __future__ import annotations

import dataclasses
import logging

from durable_log.errors import OffsetTooOld
from durable_log.log_api import LogApi, StoredFrame
from pubsub_api.core import frame as frames
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import FrameError
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.events import GroupEvent, Origin, Place, decode
from shared_subscriptions.core.handler import LoanState

LOG = logging.getLogger(__name__)

_TOPICS_KEPT = 65_536
_FRAME_BYTES_MAX = 1 << 31  # the log has its own bound, and nothing larger is in it


@dataclasses.dataclass
class Portion:
    """A piece of a shard: the events that one filter selects, and where it ends."""

    start: int
    end: int
    events: list[GroupEvent]
    expired_to: int = 0
    """Retention has dropped what lies before this offset; 0 when it has not."""
    undecodable: int = 0


class Reader:
    """Reads for one group.  Used by one thread."""

    def __init__(self, log: LogApi, declaration: Declaration) -> None:
        self._log = log
        self._declaration = declaration
        self._filters = FilterSet([declaration.topic_filter])
        self._known: dict[str, bool] = {}

    def place(self, stream: int) -> Place:
        return Place.of(stream, self._declaration.lanes)

    def read(self, loan: LoanState, *, events_max: int) -> Portion | None:
        """The next piece of a stream; None at the end of the shard.  Raises LogError."""
        place, start = self.place(loan.stream), loan.lanes.next_offset
        try:
            stored = self._log.read(place.shard, start, events_max=events_max)
        except OffsetTooOld as error:
            LOG.warning("Group %s: events before %d of shard %d are gone", self._declaration.name, error.start,
                        place.shard)  # fmt: skip
            return Portion(start, error.start, [], expired_to=error.start)
        if not stored:
            return None
        portion = Portion(start, stored[-1].end, [])
        origin = Origin(loan.stream, loan.grant, loan.number)
        for item in stored:
            self._take(portion, item, place, origin)
        if 0 <= loan.until < portion.end:
            portion.end = loan.until
            portion.events = [event for event in portion.events if event.offset < loan.until]
        return portion

    def _take(self, portion: Portion, item: StoredFrame, place: Place, origin: Origin) -> None:
        mode = self._declaration.mode
        try:
            header = frames.unpack(item.frame, bytes_max=_FRAME_BYTES_MAX)
            if not self._is_wanted(header.topic) or not place.may_own(item.offset, item.end, mode):
                return
            # A frame whose middle was known before is stored twice; each time only its own events count.
            events = decode(item.frame, header, origin, skip=item.skipped, offset=item.offset)[: item.count]
        except FrameError as error:
            # Whatever it was, no attempt will ever decode it: it must not stop the stream for ever.
            portion.undecodable += item.count
            LOG.error("Group %s: events %d to %d of shard %d are left out: %s", self._declaration.name, item.offset,
                      item.end - 1, place.shard, error)  # fmt: skip
            return
        if item.offset < portion.start:
            events = events[portion.start - item.offset :]
        if place.lanes > 1:
            events = [event for event in events if place.owns(event, mode)]
        portion.events += events

    def _is_wanted(self, topic: str) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _TOPICS_KEPT:
                self._known.clear()
            known = self._known[topic] = self._filters.match(topic)
        return known


def offer(loan: LoanState, portion: Portion) -> bool:
    """Put a piece into the lanes it was read for; False when they have moved on meanwhile."""
    lanes = loan.lanes
    if lanes.is_stopped or lanes.next_offset != portion.start:
        return False
    if portion.expired_to:
        lanes.expire(portion.expired_to)
        return True
    lanes.offer(portion.events)
    lanes.skip(portion.end)
    return True
