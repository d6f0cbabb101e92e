"""The settings of the core, as plain values.  The runtime makes them from oslo.config, the simulator directly."""

from __future__ import annotations

import dataclasses

from pubsub_api.core.frame import FRAME_OVERHEAD_BYTES_MAX


@dataclasses.dataclass(frozen=True)
class FrameSettings:
    bytes_max: int = 1024 * 1024
    key: bytes | None = None

    @property
    def event_bytes_max(self) -> int:
        """The largest encoded event.  Twice the overhead, because the frame must also fit into the reply of a cache."""
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
    """Repeated hellos of idle streams, per second, all streams together: about 1% of one core."""
    min_services: int = 0
    confirm_interval_s: float = 0.1
    confirm_interval_max_s: float = 2.0
    """First and longest wait before `Publisher.confirm` asks, and sends, again; it doubles."""
    forget_time_s: float = 300.0
    scopes_max: int = 0
    """As in `SubscriberSettings`, for the queries of confirmation."""
    batch_events_max: int = 1024
    batch_bytes_max: int = 256 * 1024
    streams_max: int = 1_000_000


@dataclasses.dataclass(frozen=True)
class History:
    """Past events for a new subscriber: the newest of each stream, those since a timestamp, or all."""

    newest: int = 0
    since: int = 0


@dataclasses.dataclass(frozen=True)
class SubscriberSettings:
    frame: FrameSettings = FrameSettings()
    max_idle_time_s: float = 5.0
    message_delay_window_s: float = 0.05
    catch_up_time_s: float = 0.05
    """When a subscriber is later than this, because it got no processor time, it first reads for this time the frames
    that have arrived meanwhile: it must not ask again for an answer that has arrived."""
    silence_timeout_s: float = 15.0
    forget_time_s: float = 300.0
    ready_timeout_s: float = 1.0
    resync_jitter_s: float = 1.0
    resync_interval_min_s: float = 1.0
    pending_bytes_max: int = 64 * 1024 * 1024
    streams_max: int = 1_000_000
    publishers_max: int = 100_000
    """Bounds memory, about 1 kB each, when a host sends frames of invented publishers."""
    repair: bool = True
    repair_timeout_s: float = 0.5
    repair_attempts_max: int = 5
    questions_max: int = 1000
    """Queries that wait for answers.  Beyond this, the oldest is given up, and counted."""
    query_interval_s: float = 0.0
    scopes_max: int = 0
    """Most queries that one query is divided into by scope; 0 where the driver does not ask by scope."""
    verify_after_reconnect: bool = False
    """After a reconnection no resync is needed if the heads of the publishers at that address match ours.  Correct only
    where no other publisher could have used the link meanwhile: on a bind-based driver.  On other drivers a
    reconnection needs no resync if the link proves that no publisher has connected (`Connected.arrivals`)."""
    history: History | None = None
    takes_repeats: bool = False
    """Deliver, too, what was delivered or given up before, whenever it comes."""
    queue_bytes_max: int = 64 * 1024 * 1024
    """Frames that wait for the callback.  When there are more, others wait in the core, `pending_bytes_max` at most."""
