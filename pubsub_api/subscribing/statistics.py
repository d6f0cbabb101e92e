"""What a subscriber tells of itself: plain data, for programs and for metrics."""

from __future__ import annotations

import dataclasses

from pubsub_api.runtime.durations import DurationHistogram


@dataclasses.dataclass(frozen=True)
class SubscriberStatistics:
    """Counters since the subscriber was made; the names are those of `pubsub_api.core.receiving.statistics`."""

    received: int
    """Events handed to the user."""
    delivered: int
    """Events taken into order; what is not received yet waits in the queue."""
    frames: int
    duplicates: int
    repeats: int
    unwanted: int
    foreign: int
    """Messages of other programs, without an envelope, passed on unnumbered."""
    foreign_discarded: int
    """Such messages dropped, because the queue was full or frames were asked for: nobody numbers them, so nobody can
    ask for them again."""
    hellos: int
    gaps: int
    closed_by_waiting: int
    closed_by_repair: int
    repaired: int
    lost: int
    skipped: int
    discarded: int
    unparked: int
    queries: int
    replies: int
    late_replies: int
    questions_evicted: int
    resyncs: int
    restarts: int
    silences: int
    freezes: int
    put_off: int
    contradictions: int
    verified_reconnects: int
    streams: int
    streams_evicted: int
    publishers: int
    publishers_forgotten: int
    links_up: int
    links_down: int
    """Addresses that are listened to, and that cannot be reached now."""
    lag: int
    """Events in the queue before the callback."""
    queue_bytes: int
    """Size of the frames in that queue."""
    parked_bytes: int
    """Frames waiting behind holes, or for room in that queue."""
    callback_errors: int
    receiver_errors: int
    """Calls of the driver in which the subscriber itself raised, which must not happen."""
    relieved: int
    """How often a callback lasted so long that the driver had to go on receiving in another thread."""
    bad_frames: dict[str, int]
    driver: dict[str, int]
    """What the driver dropped, refused or did again, by the names that it gives it."""
    historical: int
    """Events delivered from history."""
    history_duplicates: int
    """Events that were delivered already, or are older than what was delivered of their object."""
    history_reads: int
    """How often history was read."""
    history_forgotten: int
    """Objects of which it is not remembered any more what was delivered."""
    history_errors: int
    """Calls of the user with history that raised, and reads that did."""
    delay_seconds: DurationHistogram
    """From the publication of the newest event of a call until the callback was called, by the clocks of both hosts."""
    callback_seconds: DurationHistogram
    """How long calls of the event callback took."""
