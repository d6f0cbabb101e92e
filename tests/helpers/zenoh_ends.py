"""Ends of the Zenoh driver for tests, and Zenoh as a stranger to Heliograph uses it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import zenoh

from pubsub_api import loading
from pubsub_api.driver import PublisherApi, PubSubApi, SubscriberApi
from pubsub_api.testing.receivers import RecordingReceiver

QUICK = "retry_interval_max=0.1&link_timeout=180"
"""A lost link is tried again soon, and only the end of a connection counts as a loss: a loaded machine is not one."""


def build(url: str) -> PubSubApi:
    return loading.build_driver(loading.conf_from_url(url))


class Ends:
    """Opens publishers and subscribers, and closes them."""

    def __init__(self) -> None:
        self._opened = contextlib.ExitStack()

    def publisher(self, url: str, *, is_up: bool = False) -> tuple[PublisherApi, RecordingReceiver]:
        """With ``is_up`` a connect-based publisher is awaited."""
        publisher, reports = build(url).get_publisher(), RecordingReceiver()
        self._opened.callback(publisher.close)
        publisher.initialize(reports.on_link)
        if is_up:
            reports.wait_connected(publisher.address)
        return publisher, reports

    def subscriber(
        self,
        url: str,
        *filters: str,
        address: str | None = None,
        is_up: bool = True,
        heard: RecordingReceiver | None = None,
    ) -> tuple[SubscriberApi, RecordingReceiver]:
        driver = build(url)
        subscriber, heard = driver.get_subscriber(), heard or RecordingReceiver()
        self._opened.callback(subscriber.close)
        subscriber.initialize(heard)
        for topic_filter in filters:
            subscriber.register_topic(topic_filter)
        address = address or driver.listen_addresses()[0]
        subscriber.register_listen_address(address)
        subscriber.daemonize()
        if is_up:
            heard.wait_connected(address)
        return subscriber, heard

    def close(self) -> None:
        self._opened.close()


def plain_session(
    mode: str,
    *,
    listen: Sequence[str] = (),
    connect: Sequence[str] = (),
    settings: Mapping[str, object] = MappingProxyType({}),
) -> zenoh.Session:
    """Open a session of plain Zenoh with nothing on that was not asked for.  ``settings`` are of its configuration."""
    config = zenoh.Config()
    values: dict[str, object] = {
        "mode": mode,
        "listen/endpoints": list(listen),
        "connect/endpoints": list(connect),
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "scouting/delay": 0,
        **settings,
    }
    for key, value in values.items():
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)
