"""What the core needs to know, as plain values.  The runtime fills these from oslo.config; the simulator by hand."""

from __future__ import annotations

import dataclasses

from pubsub_api.core.frame import FRAME_OVERHEAD_BYTES_MAX


@dataclasses.dataclass(frozen=True)
class FrameSettings:
    bytes_max: int = 1024 * 1024
    key: bytes | None = None

    @property
    def event_bytes_max(self) -> int:
        """The largest encoded event.  Twice the overhead: the frame must also fit, whole, into the reply of a cache."""
        return self.bytes_max - 2 * FRAME_OVERHEAD_BYTES_MAX - 128


@dataclasses.dataclass(frozen=True)
class CacheSettings:
    events_max: int = 1_000_000
    bytes_max: int = 128 * 1024 * 1024
    age_max_s: float = 300.0
    reply_bytes_max: int = 512 * 1024


@dataclasses.dataclass(frozen=True)
class PublisherSettings:
    frame: FrameSettings = FrameSettings()
    cache: CacheSettings | None = CacheSettings()
    max_idle_time_s: float = 5.0
    idle_time_limit_s: float = 80.0
    hello_rate_max: int = 500
    """Repeated hellos of long-idle streams, all together, per second: about 1% of one core."""
    min_services: int = 0
    confirm_interval_s: float = 0.1
    confirm_interval_max_s: float = 2.0
    """First and longest wait before `Publisher.confirm` asks, and sends, again; it doubles."""
    forget_time_s: float = 300.0
    scopes_max: int = 0
    """As of a subscriber, for confirmation."""
    batch_events_max: int = 1024
    batch_bytes_max: int = 256 * 1024
    streams_max: int = 1_000_000


@dataclasses.dataclass(frozen=True)
class SubscriberSettings:
    frame: FrameSettings = FrameSettings()
    max_idle_time_s: float = 5.0
    message_delay_window_s: float = 0.05
    catch_up_time_s: float = 0.05
    """A subscriber that comes later than this for what is due, because it got no processor, first reads for as long
    what has come meanwhile: an answer that is there already is not asked for again."""
    silence_timeout_s: float = 15.0
    forget_time_s: float = 300.0
    ready_timeout_s: float = 1.0
    resync_jitter_s: float = 1.0
    resync_interval_min_s: float = 1.0
    pending_bytes_max: int = 64 * 1024 * 1024
    streams_max: int = 1_000_000
    publishers_max: int = 100_000
    """Bounds memory, about 1 kB each, when frames of invented publishers come."""
    repair: bool = True
    repair_timeout_s: float = 0.5
    repair_attempts_max: int = 5
    questions_max: int = 1000
    """Queries that wait for answers.  With more, the oldest is given up, and counted."""
    query_interval_s: float = 0.0
    scopes_max: int = 0
    """Questions that one is divided into by scope; 0 where the driver does not ask by scope."""
    verify_after_reconnect: bool = False
    """A link that comes back is trusted when its publishers' heads match ours.  Sound only where nobody else could have
    published through that link meanwhile, that is, on a bind-based driver.  Elsewhere a link is trusted that proves
    that nobody has come."""


@dataclasses.dataclass(frozen=True)
class History:
    """What a new subscriber wants of the past: the newest events of each stream, those since a timestamp, or all."""

    newest: int = 0
    since: int = 0
