"""From oslo.config options to the plain values that the core is made with."""

from __future__ import annotations

from oslo_config import cfg

from pubsub_api.config import GROUP, IDLE_TIMES_MAX, batch_bytes_max, forget_time, reply_bytes_max, silence_timeout
from pubsub_api.core.scopes import SCOPES_MAX
from pubsub_api.core.settings import CacheSettings, FrameSettings, PublisherSettings, SubscriberSettings
from pubsub_api.driver import Capabilities

CLOCK_SKEW_MAX_S = 60.0
"""Timestamps of other hosts that are further in the future do not change our clock: NTP keeps clocks far closer."""


def frame_settings(conf: cfg.ConfigOpts) -> FrameSettings:
    pubsub = conf[GROUP]
    return FrameSettings(
        bytes_max=pubsub.frame_bytes_max,
        key=pubsub.hmac_key.encode() if pubsub.hmac_key else None,
    )


def cache_settings(conf: cfg.ConfigOpts) -> CacheSettings:
    pubsub = conf[GROUP]
    return CacheSettings(
        events_max=pubsub.history,
        bytes_max=pubsub.cache_bytes_max,
        age_max_s=pubsub.cache_age_max,
        reply_bytes_max=reply_bytes_max(conf),
    )


def publisher_settings(conf: cfg.ConfigOpts, capabilities: Capabilities) -> PublisherSettings:
    pubsub = conf[GROUP]
    return PublisherSettings(
        frame=frame_settings(conf),
        cache=cache_settings(conf) if pubsub.with_cache else None,
        max_idle_time_s=pubsub.max_idle_time,
        idle_time_limit_s=IDLE_TIMES_MAX * pubsub.max_idle_time,
        min_services=pubsub.min_services,
        forget_time_s=forget_time(conf),
        scopes_max=SCOPES_MAX if capabilities.asks_by_scope else 0,
        batch_events_max=pubsub.batch_events_max,
        batch_bytes_max=batch_bytes_max(conf),
        streams_max=pubsub.streams_max,
    )


def subscriber_settings(conf: cfg.ConfigOpts, capabilities: Capabilities) -> SubscriberSettings:
    pubsub = conf[GROUP]
    return SubscriberSettings(
        frame=frame_settings(conf),
        max_idle_time_s=pubsub.max_idle_time,
        message_delay_window_s=pubsub.message_delay_window,
        silence_timeout_s=silence_timeout(conf),
        forget_time_s=forget_time(conf),
        ready_timeout_s=pubsub.ready_timeout,
        resync_jitter_s=pubsub.resync_jitter,
        resync_interval_min_s=pubsub.resync_jitter,
        pending_bytes_max=pubsub.pending_bytes_max,
        queue_bytes_max=pubsub.receive_queue_bytes_max,
        streams_max=pubsub.streams_max,
        repair=capabilities.queries,
        repair_timeout_s=pubsub.repair_timeout,
        repair_attempts_max=pubsub.repair_attempts_max,
        query_interval_s=pubsub.query_interval,
        scopes_max=SCOPES_MAX if capabilities.asks_by_scope else 0,
        verify_after_reconnect=capabilities.bind_based and capabilities.queries and not capabilities.relays,
    )
