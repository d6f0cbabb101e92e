"""How many events of a group are not done: counted in the log, because offsets are those of all topics and lanes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from durable_log.errors import LogCorrupt, OffsetTooOld
from durable_log.log_api import LogApi, ShardState, StoredFrame
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import FrameError
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.events import LoanOrigin, decode, lane_of
from shared_subscriptions.core.progress import AcknowledgedOffsets

LOG = logging.getLogger(__name__)

OFFSETS_MAX = 100_000
"""Offsets of a shard that are looked at: about a second.  All that lie behind them count as events of the group."""
_BYTES_MAX = 256 << 20
_READ_EVENTS_MAX = 10_000
_NOBODY = LoanOrigin(0, 0, 0)


@dataclasses.dataclass
class Lag:
    """Of one partition."""

    events: int = 0
    """Events that are not done; with `unread`, as many at most."""
    unread: int = 0
    """Of these, offsets that were not looked at."""
    oldest_ns: int | None = None
    """When the oldest of them was appended, by the clock of the log's store; None when none was found."""


class ShardLag:
    """Counts one shard for all its lanes.  ``done`` is what each lane has done."""

    def __init__(
        self, log: LogApi, declaration: Declaration, state: ShardState, done: Mapping[int, AcknowledgedOffsets]
    ):
        self.lags = {lane: Lag() for lane in done}
        self.total = 0
        """Of all lanes: an event is in one of them."""
        self._log = log
        self._lanes = declaration.lanes
        self._state = state
        self._done = done
        self._filters = FilterSet([declaration.topic_filter])

    def count(self, offsets_max: int) -> None:
        """Raises LogUnavailable."""
        end = self._state.end
        offset = min((done.low for done in self._done.values()), default=end)
        offset = self._read(max(offset, self._state.start), offsets_max)
        counted = sum(lag.events for lag in self.lags.values())
        for lane, lag in self.lags.items():
            lag.unread = self._done[lane].missing(offset, end)
            lag.events += lag.unread
        unread = sum(lag.unread for lag in self.lags.values())
        self.total = counted + min(unread, max(0, end - offset))

    def _read(self, offset: int, offsets_max: int) -> int:
        """Returns how far it came."""
        stop, size = min(self._state.end, offset + offsets_max), 0
        while offset < stop and size < _BYTES_MAX:
            try:
                stored = self._log.read(self._state.shard, offset, events_max=min(_READ_EVENTS_MAX, stop - offset))
            except OffsetTooOld as error:
                offset = error.start
                continue
            except LogCorrupt as error:
                LOG.warning("What waits for the group cannot be counted from there on: %s", error)
                break
            for item in stored:
                self._take(item)
                size += len(item.frame)
            offset = stored[-1].end if stored else self._state.end
        return offset

    def _take(self, item: StoredFrame) -> None:
        try:
            header = item.header()
            if not self._filters.match(header.topic):
                return
            if self._lanes == 1:
                self._add(0, item, self._done[0].missing(item.offset, item.end))
                return
            events = decode(item.frame, header, _NOBODY, skip=item.skipped, offset=item.offset)[: item.count]
        except FrameError:
            return  # members leave it out too, and say so
        for event in events:
            lane = lane_of(event.topic, event.key, self._lanes)
            if event.offset not in self._done[lane]:
                self._add(lane, item, 1)

    def _add(self, lane: int, item: StoredFrame, events: int) -> None:
        lag = self.lags[lane]
        lag.events += events
        if events and lag.oldest_ns is None:
            lag.oldest_ns = item.appended_ns
