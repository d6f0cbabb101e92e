"""Heliograph's publish/subscribe interface: open a session, make publishers and subscribers.

    import pubsub_api

    with pubsub_api.open("zmq://127.0.0.1:8866") as session:
        publisher = session.publisher()
        publisher.send_event(pubsub_api.Event(topic="tenant-7/port", table="port", key="p1", action="set", value={}))

The contract for drivers is in `pubsub_api.driver`, errors are in `pubsub_api.errors`.
"""

from pubsub_api.core.durability import Durability, HistoryOutcome
from pubsub_api.core.events import Event
from pubsub_api.core.publisher import Predecessor
from pubsub_api.core.receiving.resync_requests import LostRange, Reason, Resync
from pubsub_api.core.settings import History
from pubsub_api.driver import Capabilities, PublisherApi, PubSubApi, SubscriberApi
from pubsub_api.publishing.publisher import Publisher
from pubsub_api.publishing.statistics import PublisherStatistics
from pubsub_api.session import Session, open
from pubsub_api.subscribing.history import HistorySource, Mismatch
from pubsub_api.subscribing.statistics import SubscriberStatistics
from pubsub_api.subscribing.subscriber import Subscriber

__all__ = [
    "Capabilities",
    "Durability",
    "Event",
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
