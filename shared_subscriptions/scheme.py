"""How a session comes to shared subscriptions: the entry points ``shared`` and ``queue``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import durable_log
from pubsub_api.subscribing.scheme import OnGroupEvent, OnGroupEvents, SubscriptionScheme
from shared_subscriptions import config
from shared_subscriptions.consuming.subscriber import GroupSubscriber
from shared_subscriptions.leading.recording import Recording

if TYPE_CHECKING:
    from pubsub_api import Session


class SharedScheme(SubscriptionScheme):
    """``$shared/GROUP/FILTER`` and ``$queue/GROUP/FILTER``.  The log is the one that ``[log] url`` names."""

    def subscriber(
        self,
        session: Session,
        topics: Sequence[str],
        *,
        on_event: OnGroupEvent | None,
        on_events: OnGroupEvents | None,
        auto_ack: bool,
        member: str,
    ) -> GroupSubscriber:
        return subscribe(
            session, topics, on_event=on_event, on_events=on_events, auto_ack=auto_ack, member=member
        )  # fmt: skip


def subscribe(
    session: Session,
    topics: Sequence[str],
    *,
    on_event: OnGroupEvent | None = None,
    on_events: OnGroupEvents | None = None,
    auto_ack: bool = True,
    member: str = "",
) -> GroupSubscriber:
    """A member of several groups, by filters ``$shared/GROUP/FILTER`` and ``$queue/GROUP/FILTER``; close it yourself.

    Raises InvalidTopic, InvalidConfig, GroupExists, LogError.
    """
    conf = config.register(session.conf)
    log = durable_log.open(conf=conf)
    claim_time_s = config.lease_settings(conf).claim_time_s
    recording = Recording(session, log, claim_time_s=claim_time_s) if conf[config.GROUP].record else None
    try:
        return GroupSubscriber(
            log, conf, topics, on_event=on_event, on_events=on_events, auto_ack=auto_ack, name=member,
            recording=recording,
        )  # fmt: skip
    except BaseException:
        log.close()
        raise
