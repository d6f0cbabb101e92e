"""What a subscriber tells of itself: plain data, for programs and for metrics."""

from __future__ import annotations

import dataclasses

from pubsub_api.core.receiving.statistics import IntakeStatistics, PeerStatistics, RepairStatistics
from pubsub_api.runtime.durations import DurationHistogram


@dataclasses.dataclass(frozen=True)
class HistoryStatistics:
    """What was read of the past."""

    events: int = 0
    """Events delivered from history."""
    duplicates: int = 0
    """Events that were delivered already, or are older than what was delivered of their object."""
    reads: int = 0
    """How often history was read."""
    forgotten: int = 0
    """Objects of which it is not remembered any more what was delivered."""
    errors: int = 0
    """Calls of the user with history that raised, and reads that did."""


@dataclasses.dataclass(frozen=True)
class SubscriberStatistics:
    """Counters since the subscriber was made: at the top what one watches, below it by what counts.

    The parts of the core are explained in `pubsub_api.core.receiving.statistics`.
    """

    received: int
    """Events handed to the user."""
    delivered: int
    """Events taken into order; what is not received yet waits in the queue."""
    frames: int
    lag: int
    """Events in the queue before the callback."""
    queue_bytes: int
    """Size of the frames in that queue."""
    lost: int
    discarded: int
    resyncs: int
    freezes: int
    links_up: int
    links_down: int
    """Addresses that are listened to, and that cannot be reached now."""
    callback_errors: int
    receiver_errors: int
    """Calls of the driver in which the subscriber itself raised, which must not happen."""
    bad_frames: dict[str, int]
    driver: dict[str, int]
    """What the driver dropped, refused or did again, by the names that it gives it."""
    delay_seconds: DurationHistogram
    """From the publication of the newest event of a call until the callback was called, by the clocks of both hosts."""
    callback_seconds: DurationHistogram
    """How long calls of the event callback took."""
    intake: IntakeStatistics
    repair: RepairStatistics
    peers: PeerStatistics
    history: HistoryStatistics
