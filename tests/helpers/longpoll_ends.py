"""Ends of the long-poll driver for tests, and what they leave behind: at the end of a test that must be nothing."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pubsub_api import loading
from pubsub_api.driver import PublisherApi, SubscriberApi
from pubsub_api.testing.frames import Frames
from pubsub_api.testing.receivers import RecordingReceiver
from tests.helpers.waiting import wait_until

URL = "longpoll://127.0.0.1:0"
QUICK = "link_timeout=1.5&retry_interval_max=0.5"
"""Times after which a dead side is noticed.  On a loaded machine a living one may seem dead for a while."""


class BlockedReceiver(RecordingReceiver):
    """A consumer that stands still until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.is_held = threading.Event()

    def on_frames(self, frames: Sequence[bytes]) -> None:
        self.is_held.set()
        assert self.gate.wait(60)
        super().on_frames(frames)


class Ends:
    """Publishers and subscribers that are closed at the end."""

    def __init__(self) -> None:
        self.frames = Frames()
        self.publishers: list[Any] = []
        self.subscribers: list[Any] = []
        self.gates: list[threading.Event] = []

    def publisher(self, url: str = URL) -> Any:
        """An initialized one.  `Any`, because tests look into it (`state_of`)."""
        publisher: PublisherApi = loading.build_driver(loading.conf_from_url(url)).get_publisher()
        publisher.initialize(lambda _report: None)
        self.publishers.append(publisher)
        return publisher

    def subscriber(
        self,
        address: str,
        *filters: str,
        url: str = URL,
        heard: RecordingReceiver | None = None,
        is_awaited: bool = True,
    ) -> tuple[Any, RecordingReceiver]:
        """A running one, whose link is up.  When it is closed its publisher knows, however late it answers."""
        subscriber: SubscriberApi = loading.build_driver(loading.conf_from_url(url)).get_subscriber()
        heard = heard or RecordingReceiver()
        if isinstance(heard, BlockedReceiver):
            self.gates.append(heard.gate)
        self.subscribers.append(subscriber)
        subscriber.initialize(heard)
        for topic_filter in filters:
            subscriber.register_topic(topic_filter)
        subscriber.register_listen_address(address)
        subscriber.daemonize()
        if is_awaited:
            heard.wait_connected(address)
        return subscriber, heard

    def send(self, publisher: Any, topic: str, count: int = 1, size: int = 40) -> list[bytes]:
        sent = [self.frames.data(topic, size) for _ in range(count)]
        publisher.send_many([(topic, frame) for frame in sent])
        return sent

    def close(self) -> None:
        """Close everything; when the subscribers have left, the publishers must hold nothing of them."""
        for gate in self.gates:
            gate.set()
        for subscriber in self.subscribers:
            subscriber.close()
        for publisher in self.publishers:
            if not publisher._is_closed:
                wait_until(lambda publisher=publisher: _held(publisher) == (0, 0, 0), 60, "an empty publisher")  # type: ignore[misc]
            publisher.close()
        wait_until(lambda: not _threads(), 30, f"the threads {_threads()} end")


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("longpoll")]


@dataclasses.dataclass(frozen=True)
class PublisherState:
    """What a publisher holds now, and its counters since its start."""

    sessions: int
    subscriptions: int
    mailbox_frames: int
    mailbox_bytes: int
    counters: Any
    """`PublisherCounters` of the driver, which helpers of tests must not import."""


def state_of(publisher: Any) -> PublisherState:
    with publisher._lock:
        core = publisher._core
        mailboxes = [session.mailbox for session in core.sessions.values()]
        return PublisherState(
            sessions=len(mailboxes),
            subscriptions=len(core.index),
            mailbox_frames=sum(map(len, mailboxes)),
            mailbox_bytes=sum(mailbox.held_bytes for mailbox in mailboxes),
            counters=core.counters(),
        )


def counters_of(subscriber: Any) -> list[Any]:
    """The counters of each link."""
    return [dataclasses.replace(link.counters) for link in tuple(subscriber._links.values())]


def _held(publisher: Any) -> tuple[int, int, int]:
    state = state_of(publisher)
    return state.sessions, state.subscriptions, state.mailbox_bytes


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.LINGER_S", 20.0)  # publishers may answer late
    made = Ends()
    try:
        yield made
    finally:
        made.close()
