"""Counters of a subscriber: everything that was dropped, repaired, retried or resynced, as plain numbers.

They are grouped by what counts them.  At the top are those to watch, and those that are counted for every frame.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class IntakeStatistics:
    """What arrived, and was not an event in its turn."""

    hellos: int = 0
    duplicates: int = 0
    """Events that came again and were dropped."""
    repeats: int = 0
    """Events that came again, or after they had been given up, and were handed over to a consumer that takes them."""
    unwanted: int = 0
    """Frames of topics that no filter selects: the transport delivers too much."""
    foreign: int = 0
    """Messages of other programs, without an envelope, passed on unnumbered."""
    foreign_discarded: int = 0
    """Such messages dropped, because the queue was full or frames were asked for: they have no numbers, so they
    cannot be asked for again."""
    put_off: int = 0
    """How often this process came late for what was due, and read what had come before it decided anything."""
    relieved: int = 0
    """How often a callback lasted so long that the driver had to go on receiving in another thread."""


@dataclasses.dataclass
class RepairStatistics:
    """Holes, and the questions to caches that close them."""

    gaps: int = 0
    """Holes seen."""
    closed_by_waiting: int = 0
    """Holes that late frames closed."""
    closed_by_repair: int = 0
    """Holes that caches closed."""
    repaired: int = 0
    """Events that came from caches."""
    skipped: int = 0
    """Numbers that a publisher or mailbox left out on purpose."""
    unparked: int = 0
    """Events of a stream with a hole that found no room, to be asked for in their turn."""
    parked_bytes: int = 0
    """Frames waiting behind holes, or for room in the queue before the callback, now."""
    queries: int = 0
    replies: int = 0
    late_replies: int = 0
    questions_evicted: int = 0
    """Queries given up unanswered, because too many others were open."""


@dataclasses.dataclass
class PeerStatistics:
    """Publishers and their streams, as far as they are known."""

    publishers: int = 0
    """Publishers known now."""
    publishers_forgotten: int = 0
    restarts: int = 0
    """Publishers that came back under a new GUID."""
    silences: int = 0
    contradictions: int = 0
    """How often a publisher contradicted what had been heard of it, so that a stream was started again."""
    verified_reconnects: int = 0
    """Links that came back and had lost nothing that could not be repaired."""
    streams: int = 0
    """Streams known now."""
    streams_evicted: int = 0


@dataclasses.dataclass
class SubscriberCounters:
    frames: int = 0
    """DATA frames received, also repeated and unwanted ones."""
    delivered: int = 0
    """Events handed to the consumer."""
    lost: int = 0
    """Events in holes that no cache could close; a resync covers them."""
    discarded: int = 0
    """Events dropped because the consumer did not keep up and there was no room left; a resync covers them."""
    resyncs: int = 0
    freezes: int = 0
    """How often this process itself stood still."""
    bad_frames: dict[str, int] = dataclasses.field(default_factory=dict)
    """Frames refused, by the name of the error."""
    intake: IntakeStatistics = dataclasses.field(default_factory=IntakeStatistics)
    repair: RepairStatistics = dataclasses.field(default_factory=RepairStatistics)
    peers: PeerStatistics = dataclasses.field(default_factory=PeerStatistics)

    def count_bad_frame(self, error: str) -> None:
        self.bad_frames[error] = self.bad_frames.get(error, 0) + 1
