"""Families of scenarios: which faults a simulation may have.

A `Profile` has ranges, and the seed picks within them.  Counts are upper bounds; rates are upper bounds of
probabilities.
"""

from __future__ import annotations

import dataclasses

from pubsub_api.core.settings import CacheSettings, FrameSettings, PublisherSettings, SubscriberSettings
from pubsub_api.testing.simulator.seeds import profile_for

Range = tuple[int, int]

BIG_CACHE = CacheSettings(events_max=100_000, bytes_max=16 * 1024 * 1024, age_max_s=600.0)
SMALL_CACHE = CacheSettings(events_max=8, bytes_max=1200, age_max_s=2.0)

PUBLISHER = PublisherSettings(
    cache=BIG_CACHE,
    max_idle_time_s=1.0,
    idle_time_limit_s=4.0,
    hello_rate_max=200,
    batch_events_max=3,
)
SUBSCRIBER = SubscriberSettings(
    max_idle_time_s=1.0,
    message_delay_window_s=0.1,
    silence_timeout_s=3.0,
    forget_time_s=8.0,
    ready_timeout_s=0.5,
    resync_jitter_s=0.3,
    resync_interval_min_s=0.3,
    pending_bytes_max=64 * 1024,
    repair_timeout_s=0.2,
    repair_attempts_max=4,
)


@dataclasses.dataclass(frozen=True)
class Profile:
    """One family of scenarios."""

    name: str
    mode: str = "any"
    """``bind``: each publisher is an address of its own.  ``broker``: one shared link.  ``any``: the seed decides."""
    publishers: Range = (1, 3)
    subscribers: Range = (1, 3)
    caches: Range = (0, 2)
    topics: Range = (2, 6)
    bursts: Range = (4, 14)
    """Bursts of events, per publisher."""
    duration_s: tuple[float, float] = (4.0, 12.0)
    """How long the time with faults is."""
    drop: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    """Frames that overtake or are overtaken."""
    late_s: float = 0.4
    question_drop: float = 0.0
    """Loss of queries, and of replies."""
    tells_arrivals: bool = False
    """The broker reports whether a publisher has connected since, and loses no frame to connected subscribers."""
    unreached: float = 0.0
    """Responders that a query does not reach, and that are not counted."""
    forged: int = 0
    """Forged or damaged hellos, with heads that do not exist."""
    has_early_events: bool = False
    """A publisher that restarts publishes at once, before any subscriber can receive it."""
    closes_while_sending: bool = False
    """A publisher that is closed has accepted events that have no number yet."""
    partitions: int = 0
    blackouts: int = 0
    """Partitions that no driver reports."""
    restarts: int = 0
    closes: int = 0
    subscriber_restarts: int = 0
    freezes: int = 0
    slow: int = 0
    filter_changes: int = 0
    cache_crashes: int = 0
    corrupt: float = 0.0
    """Frames of which one bit changes in transit.  Only a signature finds every such change."""
    poison: float = 0.0
    """Events that no subscriber can decode."""
    cache_sizes: tuple[CacheSettings | None, ...] = (BIG_CACHE, BIG_CACHE, SMALL_CACHE, None)
    """Caches of publishers; the seed picks."""
    cache_feed_drop: float = 0.0
    """Loss of frames to stand-alone caches."""
    publisher: PublisherSettings = PUBLISHER
    subscriber: SubscriberSettings = SUBSCRIBER
    over_delivery: bool = True
    """The transport may deliver topics that no filter selects; the seed decides."""
    late_start: bool = True
    """Publishers and subscribers may start in the middle; the seed decides."""
    history: bool = True
    """Subscribers may ask for history; the seed decides."""
    queue_bytes_max: int = 0
    """Size of the queue before each consumer; 0: no queue, the consumer takes every frame at once."""
    consume_s: tuple[float, float] = (0.0, 0.0)
    """How long a consumer with such a queue needs for a frame."""
    is_faultless: bool = False
    """No faults: there must be no frames but data, hellos and the queries of joins, and no resyncs but those of joins.
    """
    is_repairable: bool = False
    """Queries are always answered: an event that a cache has must never be given up."""
    keeps_up: bool = False
    """Consumers are fast enough on average: no resync may say that one is too slow."""
    is_join_sure: bool = False
    """The number of responders is known, and so few queries are lost that a join is always answered: no stream may ever
    be unknown."""
    delivers_new_lives: bool = False
    """Every event of a living publisher must be delivered, not only covered by a resync, to subscribers that were ready
    before the publisher started."""
    is_hello_sure: bool = False
    """Hellos are never lost: loss is noticed within ``max_idle_time`` + ``message_delay_window``."""
    quiet_extra_s: float = 0.0


# Without caches: a cache may report a publisher before the link to it is up; events published meanwhile are a hole.
CALM = Profile(name="calm", is_faultless=True, bursts=(3, 8), mode="bind", caches=(0, 0))
CALM_BROKER = Profile(name="calm_broker", is_faultless=True, bursts=(3, 8), mode="broker")
LOSSY = Profile(
    name="lossy", drop=0.4, duplicate=0.3, late=0.4, question_drop=0.4, cache_feed_drop=0.3, closes=1, filter_changes=1,
)  # fmt: skip
REPAIR = Profile(
    name="repair", drop=0.25, duplicate=0.1, caches=(0, 2), cache_feed_drop=0.3, is_repairable=True, history=False,
)  # fmt: skip
TAIL = Profile(name="tail", drop=0.5, duplicate=0.1, question_drop=0.3, is_hello_sure=True, late_start=False)
PARTITION = Profile(
    name="partition", mode="bind", drop=0.1, late=0.1, partitions=4, blackouts=2, restarts=1, filter_changes=2,
    question_drop=0.1,
)  # fmt: skip
BROKER = Profile(
    name="broker", mode="broker", drop=0.15, duplicate=0.1, late=0.2, partitions=4, blackouts=2, restarts=1,
    filter_changes=1, question_drop=0.2,
)  # fmt: skip
RESTART = Profile(
    name="restart", drop=0.2, late=0.2, restarts=4, closes=2, subscriber_restarts=2, partitions=1, cache_crashes=1,
    question_drop=0.2,
)  # fmt: skip
REBIRTH = Profile(
    name="rebirth", mode="bind", publishers=(1, 1), subscribers=(1, 2), caches=(0, 0), restarts=8, closes=6,
    partitions=3, bursts=(12, 20), duration_s=(8.0, 14.0),
)  # fmt: skip
SLOW_CONSUMER = Profile(
    name="slow_consumer", drop=0.3, late=0.1, slow=4, freezes=2, bursts=(8, 20), poison=0.02, question_drop=0.3,
    subscriber=dataclasses.replace(SUBSCRIBER, pending_bytes_max=300),
)  # fmt: skip
BURSTS = Profile(
    name="bursts", drop=0.25, duplicate=0.1, caches=(0, 2), cache_feed_drop=0.3, bursts=(10, 25), freezes=1,
    history=False, is_repairable=True, keeps_up=True, queue_bytes_max=500, consume_s=(0.001, 0.02),
    subscriber=dataclasses.replace(SUBSCRIBER, pending_bytes_max=16 * 1024),
)  # fmt: skip
OVERRUN = Profile(
    name="overrun", drop=0.2, late=0.1, question_drop=0.2, bursts=(10, 25), queue_bytes_max=500, consume_s=(0.02, 0.25),
    subscriber=dataclasses.replace(SUBSCRIBER, pending_bytes_max=1000), quiet_extra_s=5.0,
)  # fmt: skip
TINY_CACHES = Profile(
    name="tiny_caches", drop=0.3, late=0.1, caches=(1, 3), cache_sizes=(SMALL_CACHE, None), cache_crashes=3,
    cache_feed_drop=0.3, partitions=1, question_drop=0.3,
)  # fmt: skip
UNREPAIRED = Profile(
    name="unrepaired", drop=0.1, late=0.2, bursts=(8, 20), caches=(0, 0),
    subscriber=dataclasses.replace(SUBSCRIBER, pending_bytes_max=300, repair=False),
)  # fmt: skip
FEW_STREAMS = Profile(
    name="few_streams", drop=0.2, late=0.1, topics=(6, 12), subscriber=dataclasses.replace(SUBSCRIBER, streams_max=3),
    quiet_extra_s=8.0,
)  # fmt: skip
UNREACHED = Profile(
    name="unreached", drop=0.25, duplicate=0.1, unreached=0.2, caches=(0, 0), cache_sizes=(BIG_CACHE,), history=False,
    is_repairable=True,
    subscriber=dataclasses.replace(SUBSCRIBER, repair_attempts_max=8),
)  # fmt: skip
JOINS = Profile(
    name="joins", drop=0.2, late=0.1, question_drop=0.08, subscriber_restarts=4, history=False, is_join_sure=True,
)  # fmt: skip
ARRIVALS = Profile(
    name="arrivals", mode="broker", late=0.2, tells_arrivals=True, partitions=8, restarts=3, closes=2,
    question_drop=0.1, has_early_events=True, duration_s=(10.0, 20.0),
)  # fmt: skip
NEW_LIVES = Profile(
    name="new_lives", drop=0.2, late=0.1, question_drop=0.05, restarts=4, closes=4, caches=(0, 0), history=False,
    cache_sizes=(BIG_CACHE,), has_early_events=True, closes_while_sending=True, delivers_new_lives=True,
    subscriber=dataclasses.replace(SUBSCRIBER, repair_attempts_max=7),
)  # fmt: skip
FORGED = Profile(
    name="forged", drop=0.15, duplicate=0.2, late=0.3, question_drop=0.1, forged=6, restarts=1, closes=1,
    bursts=(8, 20), quiet_extra_s=4.0,
)  # fmt: skip
SIGNED = Profile(
    name="signed", corrupt=0.3, drop=0.1, late=0.1, restarts=1,
    publisher=dataclasses.replace(PUBLISHER, frame=FrameSettings(key=b"a shared secret")),
    subscriber=dataclasses.replace(SUBSCRIBER, frame=FrameSettings(key=b"a shared secret")),
)  # fmt: skip
CHAOS = Profile(
    name="chaos", drop=0.2, duplicate=0.2, late=0.3, question_drop=0.3, unreached=0.2, has_early_events=True,
    closes_while_sending=True, partitions=3, blackouts=2, restarts=2, closes=1,
    subscriber_restarts=1, freezes=2, slow=2, filter_changes=3, cache_crashes=2, poison=0.01, cache_feed_drop=0.2,
    duration_s=(8.0, 16.0),
)  # fmt: skip
MANY_HEADS = Profile(
    name="many_heads", publishers=(1, 2), subscribers=(1, 2), topics=(101, 250), bursts=(0, 0), drop=0.4, late=0.2,
    restarts=2, closes=1, partitions=1, filter_changes=1, question_drop=0.2, duration_s=(4.0, 8.0),
)  # fmt: skip
MANY_TOPICS = Profile(
    name="many_topics", publishers=(1, 1), subscribers=(1, 1), caches=(0, 0), topics=(10_000, 10_000), bursts=(0, 0),
    duration_s=(12.0, 12.0), drop=0.01, late_start=False, history=False, over_delivery=False, is_hello_sure=True,
    publisher=dataclasses.replace(PUBLISHER, hello_rate_max=500),
)  # fmt: skip

PROFILES = {
    profile.name: profile
    for profile in (
        CALM, CALM_BROKER, LOSSY, REPAIR, TAIL, PARTITION, BROKER, RESTART, REBIRTH, SLOW_CONSUMER, BURSTS, OVERRUN,
        TINY_CACHES, UNREPAIRED, FEW_STREAMS, UNREACHED, JOINS, ARRIVALS, NEW_LIVES, FORGED, SIGNED, CHAOS, MANY_HEADS,
        MANY_TOPICS,
    )
}  # fmt: skip

_LARGE = {MANY_TOPICS.name: 1000, MANY_HEADS.name: 25}
"""Profiles that take long -> run one of so many seeds with it."""


def profile_of(seed: int) -> Profile:
    """The profile that a seed selects."""
    return profile_for(seed, PROFILES, _LARGE)
