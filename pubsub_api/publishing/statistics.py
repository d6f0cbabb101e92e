"""Counters of a publisher."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class QuestionStatistics:
    """Questions that a publisher hears, and answers to its own."""

    queries: int
    bad_queries: int
    bad_replies: int
    """Answers about what caches hold that were refused, as `bad_frames` of a subscriber are."""
    handler_errors: int
    """Queries of the driver on which the publisher itself raised, which must not happen."""


@dataclasses.dataclass(frozen=True)
class FrameCacheStatistics:
    """The frames that a publisher keeps for repair."""

    frames: int = 0
    bytes: int = 0
    evictions: int = 0


@dataclasses.dataclass(frozen=True)
class PublisherStatistics:
    """Counters since the publisher was made: at the top what one watches, below it by what counts."""

    name: str
    guid: str
    address: str
    events: int
    frames: int
    hellos: int
    streams: int
    backlog_bytes: int
    """Encoded events not yet handed to the transport."""
    send_failures: int
    """Frames the transport refused; they stay in the cache, and subscribers ask for them."""
    refused: int
    """Events that the transport refused for lack of permission; they are not kept."""
    resent: int
    """Frames sent again because too few caches held them."""
    questions: QuestionStatistics
    cache: FrameCacheStatistics
    driver: dict[str, int]
    """What the driver dropped, refused or did again, by the names that it gives it."""
