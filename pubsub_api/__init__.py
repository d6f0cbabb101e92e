"""Heliograph's publish/subscribe interface: open a session, make publishers and subscribers.

    import pubsub_api

    with pubsub_api.open("zmq://127.0.0.1:8866") as session:
        publisher = session.publisher()
        publisher.send_event(pubsub_api.Event(topic="tenant-7/port", table="port", key="p1", action="set", value={}))

The contract for drivers is in `pubsub_api.driver`, errors are in `pubsub_api.errors`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pubsub_api.core.durability import Durability, HistoryOutcome
    from pubsub_api.core.events import Event, GroupEvent
    from pubsub_api.core.receiving.resync_requests import LostRange, Reason, Resync
    from pubsub_api.core.sending.publisher import Predecessor
    from pubsub_api.core.settings import History
    from pubsub_api.driver import Capabilities, PublisherApi, PubSubApi, SubscriberApi
    from pubsub_api.publishing.publisher import Publisher
    from pubsub_api.publishing.statistics import PublisherStatistics
    from pubsub_api.session import Session, open
    from pubsub_api.subscribing.history import HistorySource, Mismatch
    from pubsub_api.subscribing.scheme import GroupMember
    from pubsub_api.subscribing.statistics import SubscriberStatistics
    from pubsub_api.subscribing.subscriber import Subscriber

__all__ = [
    "Capabilities",
    "Durability",
    "Event",
    "GroupEvent",
    "GroupMember",
    "History",
    "HistoryOutcome",
    "HistorySource",
    "LostRange",
    "Mismatch",
    "Predecessor",
    "PubSubApi",
    "Publisher",
    "PublisherApi",
    "PublisherStatistics",
    "Reason",
    "Resync",
    "Session",
    "Subscriber",
    "SubscriberApi",
    "SubscriberStatistics",
    "open",
]

_HOMES = {
    "Capabilities": "pubsub_api.driver",
    "Durability": "pubsub_api.core.durability",
    "Event": "pubsub_api.core.events",
    "GroupEvent": "pubsub_api.core.events",
    "GroupMember": "pubsub_api.subscribing.scheme",
    "History": "pubsub_api.core.settings",
    "HistoryOutcome": "pubsub_api.core.durability",
    "HistorySource": "pubsub_api.subscribing.history",
    "LostRange": "pubsub_api.core.receiving.resync_requests",
    "Mismatch": "pubsub_api.subscribing.history",
    "Predecessor": "pubsub_api.core.sending.publisher",
    "PubSubApi": "pubsub_api.driver",
    "Publisher": "pubsub_api.publishing.publisher",
    "PublisherApi": "pubsub_api.driver",
    "PublisherStatistics": "pubsub_api.publishing.statistics",
    "Reason": "pubsub_api.core.receiving.resync_requests",
    "Resync": "pubsub_api.core.receiving.resync_requests",
    "Session": "pubsub_api.session",
    "Subscriber": "pubsub_api.subscribing.subscriber",
    "SubscriberApi": "pubsub_api.driver",
    "SubscriberStatistics": "pubsub_api.subscribing.statistics",
    "open": "pubsub_api.session",
}
"""Name -> its module, which is imported when the name is first used: a program that needs only the errors, or only a
help text, need not wait for the import of the rest."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, without those that are only imported here."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
