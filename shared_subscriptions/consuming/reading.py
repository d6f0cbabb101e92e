"""What a partition gets from the log: reads frames, leaves out what is not for the partition, decodes the rest."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from durable_log.errors import OffsetTooOld
from durable_log.log_api import LogApi, StoredFrame
from pubsub_api.core import frame as frames
from pubsub_api.core.events import GroupEvent
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import FrameError
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from shared_subscriptions.core.consuming.handler import LoanState
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.events import LoanOrigin, PartitionPlace, decode, is_portion

LOG = logging.getLogger(__name__)

_TOPICS_KEPT = 65_536
_FRAME_BYTES_MAX = 1 << 31  # the log has its own bound, and nothing larger is in it


@dataclasses.dataclass
class Piece:
    """A piece of a shard: the events that one filter selects, and where it ends."""

    start: int
    end: int
    events: list[GroupEvent]
    expired: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """What retention has dropped of it, each from the first offset up to but without the second."""
    undecodable: int = 0
    size: int = 0
    """Bytes of the events, about."""
    appended_ns: int = 0
    """When the last of what was read, which lies before `read_to`, was appended."""
    read_to: int = 0


class GroupLogReader:
    """Reads for one group.  Used by one thread."""

    def __init__(self, log: LogApi, declaration: Declaration) -> None:
        self._log = log
        self._declaration = declaration
        self._filters = FilterSet([declaration.topic_filter])
        self._known: dict[str, bool] = {}
        self._log_dropped = RateLimitedLog(LOG)

    def place(self, partition: int) -> PartitionPlace:
        return PartitionPlace.of(partition, self._declaration.lanes)

    def read(self, loan: LoanState, *, events_max: int) -> Piece | None:
        """The next piece of a partition; None at the end of the shard.  Raises LogError."""
        place, start = self.place(loan.partition), loan.delivery.next_offset
        if loan.until >= 0:
            events_max = min(events_max, loan.until - start)
        try:
            stored = self._log.read(place.shard, start, events_max=events_max)
        except OffsetTooOld as error:
            LOG.warning("Group %s: events before %d of shard %d are gone", self._declaration.name, error.start,
                        place.shard)  # fmt: skip
            lost_to = min(error.start, loan.until) if loan.until >= 0 else error.start
            return Piece(start, lost_to, [], expired=[(start, lost_to)])
        if not stored:
            return self._hole(place.shard, start, loan.until)
        piece = Piece(start, stored[-1].end, [], appended_ns=stored[-1].appended_ns, read_to=stored[-1].end)
        origin = LoanOrigin(place.shard if is_portion(loan.partition) else loan.partition, loan.grant, loan.number)
        for item in stored:
            self._take(piece, item, place, origin)
        if 0 <= loan.until < piece.end:
            piece.end = loan.until
            piece.events = [event for event in piece.events if event.offset < loan.until]
        piece.expired = self._expired(place.shard, _holes(stored, start, piece.end))
        return piece

    def _expired(self, shard: int, holes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """What of these was removed because of its age since the group has its place."""
        declared = self._declaration
        found = self._log.dropped(shard, holes, declared.topic_filter, since_ns=declared.placed_ns) if holes else []
        if found:
            self._log_dropped("Group %s: retention has dropped %d events of %s at offsets %d to %d of shard %d",
                              declared.name, sum(end - first for first, end in found), declared.topic_filter,
                              found[0][0], found[-1][1] - 1, shard)  # fmt: skip
        return found

    def _hole(self, shard: int, start: int, until: int) -> Piece | None:
        """The rest of a shard that ends with a hole, left by retention, compaction or a damaged frame; None when it
        just ends."""
        if not self._log.wait({shard: start}, timeout_s=0):
            return None
        end = self._log.state()[shard].end
        if self._log.read(shard, start, events_max=1):
            return None  # it came meanwhile, and is read next
        end = min(end, until) if until >= 0 else end
        return Piece(start, end, [], expired=self._expired(shard, [(start, end)]))

    def _take(self, piece: Piece, item: StoredFrame, place: PartitionPlace, origin: LoanOrigin) -> None:
        try:
            header = frames.unpack(item.frame, bytes_max=_FRAME_BYTES_MAX)
            if not self._is_wanted(header.topic):
                return
            # A frame whose middle was known before is stored twice; each time only its own events count.
            events = decode(item.frame, header, origin, skip=item.skipped, offset=item.offset)[: item.count]
        except FrameError as error:
            # Whatever it was, no attempt will ever decode it: it must not stop the partition for ever.
            piece.undecodable += item.count
            LOG.error("Group %s: events %d to %d of shard %d are left out: %s", self._declaration.name, item.offset,
                      item.end - 1, place.shard, error)  # fmt: skip
            return
        if item.offset < piece.start:
            events = events[piece.start - item.offset :]
        if place.lanes > 1:
            events = [event for event in events if place.owns(event)]
        piece.events += events
        piece.size += len(item.frame) * len(events) // max(1, header.count)

    def _is_wanted(self, topic: str) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _TOPICS_KEPT:
                self._known.clear()
            known = self._known[topic] = self._filters.match(topic)
        return known


def _holes(stored: Sequence[StoredFrame], start: int, end: int) -> list[tuple[int, int]]:
    """Offsets between two that none of the frames has."""
    found: list[tuple[int, int]] = []
    for item in stored:
        if item.offset > start:
            found.append((start, min(item.offset, end)))
        start = item.end
        if start >= end:
            break
    return found


def offer(loan: LoanState, piece: Piece) -> bool:
    """Offer a piece to the loan that it was read for; False when that has moved on meanwhile."""
    delivery = loan.delivery
    if delivery.is_stopped or delivery.next_offset != piece.start:
        return False
    for first, end in piece.expired:
        delivery.expire(first, end)
    delivery.offer(piece.events, piece.size)
    delivery.skip(piece.end)
    return True
