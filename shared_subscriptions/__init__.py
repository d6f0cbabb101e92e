"""Durable shared subscriptions: several consumers share the events of a topic filter, and nothing is lost.

    with pubsub_api.open(config_files=["etc/heliograph.conf"]) as session:
        with session.group("billing", "tenant-7/#", on_event) as member:
            ...

`subscribe` joins several groups at once.  Operators use `shared_subscriptions.groups` or ``heliograph group``.
"""

from pubsub_api.core.events import GroupEvent
from shared_subscriptions.consuming.statistics import GroupSubscriberStatistics
from shared_subscriptions.consuming.subscriber import GroupSubscriber
from shared_subscriptions.errors import GroupDestroyed, GroupError, GroupExists, GroupNotFound
from shared_subscriptions.scheme import subscribe

__all__ = [
    "GroupDestroyed",
    "GroupError",
    "GroupEvent",
    "GroupExists",
    "GroupNotFound",
    "GroupSubscriber",
    "GroupSubscriberStatistics",
    "subscribe",
]
