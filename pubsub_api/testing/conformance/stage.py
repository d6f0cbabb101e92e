"""Publishers and subscribers for a conformance test, and the frames that they exchange.

A `Stage` opens them, and closes all of them at the end of the test.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from pubsub_api.core.frame import Kind
from pubsub_api.driver import Capabilities, PublisherApi, PubSubApi, QueryHandler, Subscribed, SubscriberApi
from pubsub_api.errors import TransportUnavailable, WaitTimeout
from pubsub_api.testing.frames import Frames, header
from pubsub_api.testing.receivers import WAIT_S, RecordingReceiver, eventually, send_until_accepted

_query_numbers = itertools.count(1)
"""Shared by all listeners, so that a listener can recognize an answer to the query of another one."""


class Speaker:
    """The sending end of a driver, its reports, and the frames that it sends."""

    def __init__(self, api: PublisherApi, reports: RecordingReceiver) -> None:
        self.api = api
        self.reports = reports
        self.frames = Frames()

    @property
    def address(self) -> str:
        return self.api.address

    def send(self, topic: str, size: int = 40) -> bytes:
        """Send a new DATA frame and return it."""
        frame = self.frames.data(topic, size)
        self.send_frame(topic, frame)
        return frame

    def send_frame(self, topic: str, frame: bytes) -> None:
        send_until_accepted(self.api, topic, frame)

    def echo(self, parts: int = 1, size: int = 10) -> QueryHandler:
        """A handler that answers every query with ``parts`` replies of this publisher."""
        return lambda query: [self.frames.reply(query, part, size) for part in range(parts)]


class Listener:
    """The receiving end of a driver, and what it received."""

    def __init__(self, api: SubscriberApi, heard: RecordingReceiver) -> None:
        self.api = api
        self.heard = heard
        self.addresses: list[str] = []
        self._frames = Frames()

    def listen_to(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            self.api.register_listen_address(address)
            self.addresses.append(address)

    def start(self, *, timeout_s: float = WAIT_S) -> None:
        """Begin to receive, and block until every link is up."""
        self.api.daemonize()
        for address in self.addresses:
            self.heard.wait_connected(address, timeout_s=timeout_s)

    def add_topic(self, topic_filter: str) -> None:
        """Register a new filter on live links, and wait until it is in effect on all of them."""
        assert self.api.register_topic(topic_filter)
        for address in self.addresses:
            self.heard.wait_link(Subscribed(address, topic_filter))

    def new_query(self) -> tuple[int, bytes]:
        """A new QUERY, and its number."""
        number = next(_query_numbers)
        return number, self._frames.query(number)

    def ask(self) -> int:
        """Ask a new query; return its number, by which `answers` finds the replies."""
        number, query = self.new_query()
        self.api.query(query)
        return number

    def answers(self, number: int) -> list[tuple[bytes, int]]:
        """The replies to that query: (GUID, part) in order of arrival."""
        headers = [header(frame) for frame in tuple(self.heard.frames)]
        return [(seen.guid, seen.after) for seen in headers if seen.kind == Kind.REPLY and seen.first == number]

    def wait_answers(self, number: int, count: int) -> list[tuple[bytes, int]]:
        """Wait until that query has ``count`` answers; return all it has."""
        self.heard.wait_until(lambda: len(self.answers(number)) >= count, f"{count} answers to query {number}")
        return self.answers(number)


class Stage:
    """Opens ends of one driver object, and closes all of them at the end."""

    def __init__(self, driver: PubSubApi, reopen: Callable[[str], PubSubApi], second_url: str) -> None:
        self.driver = driver
        self.capabilities: Capabilities = driver.capabilities
        self._reopen = reopen
        self._second_url = second_url
        self.speakers: list[Speaker] = []
        self.listeners: list[Listener] = []

    def at(self, url: str) -> PubSubApi:
        """Another driver object of the same kind, configured by another URL."""
        return self._reopen(url)

    def publisher(self, driver: PubSubApi | None = None) -> Speaker:
        """An initialized publisher; if it is connect-based, its link is up."""
        speaker = self.unopened_publisher(driver)
        speaker.api.initialize(speaker.reports.on_link)
        if not self.capabilities.bind_based:
            speaker.reports.wait_connected(speaker.address)
        return speaker

    def second_publisher(self) -> Speaker:
        """A further publisher, at an address of its own where drivers are bind-based."""
        return self.publisher(self.at(self._second_url))

    def unopened_publisher(self, driver: PubSubApi | None = None) -> Speaker:
        """A publisher that was not initialized."""
        speaker = Speaker((driver or self.driver).get_publisher(), RecordingReceiver())
        self.speakers.append(speaker)
        return speaker

    def subscriber(self, *filters: str, to: Sequence[Speaker] | None = None) -> Listener:
        """A running subscriber with links to these publishers, by default to all; the links are up."""
        listener = self.unstarted_subscriber(*filters)
        listener.listen_to(self.addresses(self.speakers if to is None else to))
        listener.start()
        return listener

    def unstarted_subscriber(self, *filters: str, receiver: RecordingReceiver | None = None) -> Listener:
        """A subscriber with filters, no address, not started."""
        heard = receiver or RecordingReceiver()
        listener = Listener(self.driver.get_subscriber(), heard)
        self.listeners.append(listener)
        listener.api.initialize(heard)
        for topic_filter in filters:
            assert listener.api.register_topic(topic_filter)
        return listener

    def addresses(self, speakers: Sequence[Speaker]) -> list[str]:
        """The addresses to listen to for these publishers."""
        if self.capabilities.bind_based:
            return [speaker.address for speaker in speakers]
        return self.driver.listen_addresses()

    def close(self) -> None:
        """Close all ends, also when closing one of them fails; the first failure is raised at the end."""
        failures: list[Exception] = []
        closes = [listener.api.close for listener in self.listeners] + [speaker.api.close for speaker in self.speakers]
        for close in closes:
            try:
                close()
            except Exception as error:  # noqa: BLE001 - raised below, after the others were closed
                failures.append(error)
        if failures:
            raise failures[0]


def wait_routed(listener: Listener, speakers: Sequence[Speaker]) -> None:
    """Block until each of these publishers has answered a query: no driver reports when queries can reach them."""
    wanted = {speaker.frames.guid for speaker in speakers}

    def is_answered() -> bool:
        try:
            number = listener.ask()
            listener.heard.wait_until(lambda: wanted <= {guid for guid, _ in listener.answers(number)}, "answers", 1.0)
        except (TransportUnavailable, WaitTimeout):
            return False
        return True

    eventually(is_answered, f"a query reaches {len(speakers)} publishers")
