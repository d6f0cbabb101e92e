"""Publishers and subscribers of the Redis driver, for tests that do something to the server between them."""

from __future__ import annotations

from pubsub_api import loading
from pubsub_api.driver import Disconnected, PublisherApi, PubSubApi, SubscriberApi
from pubsub_api.errors import TransportUnavailable
from pubsub_api.testing.frames import Frames, header
from pubsub_api.testing.receivers import RecordingReceiver
from tests.helpers.waiting import wait_until

PATIENT = "retry_interval_max=0.2&link_timeout=360&connect_timeout=60"
"""Nothing but the end of a connection is taken for a loss: a loaded machine must not look like one."""
NERVOUS = "retry_interval_max=0.2&link_timeout=3&connect_timeout=0.5"
"""Silence is noticed soon, also that of a server which stands still for a moment."""


class Ends:
    """Opens publishers and subscribers, and closes them."""

    def __init__(self) -> None:
        self._opened: list[PublisherApi | SubscriberApi] = []

    def publisher(self, url: str, *, is_up: bool = True) -> tuple[PublisherApi, RecordingReceiver]:
        publisher, reports = build(url).get_publisher(), RecordingReceiver()
        self._opened.append(publisher)
        publisher.initialize(reports.on_link)
        if is_up:
            reports.wait_connected(publisher.address)
        return publisher, reports

    def subscriber(
        self, url: str, *filters: str, is_up: bool = True, heard: RecordingReceiver | None = None
    ) -> tuple[SubscriberApi, RecordingReceiver]:
        driver = build(url)
        subscriber, heard = driver.get_subscriber(), heard or RecordingReceiver()
        self._opened.append(subscriber)
        subscriber.initialize(heard)
        for topic_filter in filters:
            subscriber.register_topic(topic_filter)
        (address,) = driver.listen_addresses()
        subscriber.register_listen_address(address)
        subscriber.daemonize()
        if is_up:
            heard.wait_connected(address)
        return subscriber, heard

    def close(self) -> None:
        for end in self._opened:
            end.close()


def build(url: str) -> PubSubApi:
    return loading.build_driver(loading.conf_from_url(url))


def refusal(publisher: PublisherApi, topic: str = "t", frame: bytes | None = None) -> str:
    """Send until the transport refuses, and return what it says."""

    def refused() -> str:
        try:
            publisher.send(topic, frame or Frames().data(topic))
        except TransportUnavailable as error:
            return str(error)
        return ""

    return wait_until(refused, 60, "the transport to refuse a frame")


def reasons(heard: RecordingReceiver) -> list[str]:
    """Why the link went down each time."""
    return [link.reason for link in tuple(heard.links) if isinstance(link, Disconnected)]


def reason(heard: RecordingReceiver) -> str:
    """Why the link went down last."""
    heard.wait_until(lambda: bool(reasons(heard)), "a Disconnected")
    return reasons(heard)[-1]


def is_answered(subscriber: SubscriberApi, heard: RecordingReceiver) -> bool:
    """Ask, and see whether anything was answered since the last time this was called."""
    before = sum(header(frame).count == 0 for frame in tuple(heard.frames))
    try:
        subscriber.query(Frames().query(1))
        heard.wait_until(lambda: sum(header(frame).count == 0 for frame in heard.frames) > before, "", timeout_s=0.5)
    except (TransportUnavailable, TimeoutError):
        return False
    return True
