"""The receiving end: a link per address, and one thread that calls the receiver."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping

from drivers.pubsub.zenoh.config import ZenohSettings, check_address
from drivers.pubsub.zenoh.connection import COUNTED
from drivers.pubsub.zenoh.link import ZenohLink
from drivers.pubsub.zenoh.session import PROCESS
from pubsub_api.driver import Asked, Receiver, SubscriberApi
from pubsub_api.driver_kit.counting import Tally
from pubsub_api.driver_kit.guarding import GuardedReceiver
from pubsub_api.driver_kit.inbox import Inbox
from pubsub_api.driver_kit.reach import Reach
from pubsub_api.errors import Closed, TransportUnavailable, UsageError


class ZenohSubscriber(SubscriberApi):
    """See `SubscriberApi`.  Link and channel threads per address, one thread for the receiver."""

    def __init__(self, settings: ZenohSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._receiver: GuardedReceiver | None = None
        self._filters: dict[str, None] = {}
        self._links: dict[str, ZenohLink | None] = {}
        """None until the subscriber runs."""
        self._ending: list[ZenohLink] = []
        # It drops rather than wait: that would keep a thread of Zenoh, and with it the answers and the signs of life of
        # everybody on that link.
        self._inbox = Inbox(settings.common.receive_queue_bytes_max, name="zenoh receiver")
        self._tally = Tally(*COUNTED, "barriers_repeated", "frames_misplaced", "queries_dropped", "queries_failed")
        self._is_running = False
        self._is_closed = False

    def initialize(self, receiver: Receiver) -> None:
        self._check_usable()
        self._receiver = GuardedReceiver(receiver)

    def register_topic(self, topic_filter: str) -> bool:
        self._settings.keys.interest(topic_filter)  # raises InvalidTopic
        self._check_usable()
        with self._lock:
            if topic_filter in self._filters:
                return False
            self._filters[topic_filter] = None
            for link in self._running_links():
                link.add(topic_filter)
            return True

    def unregister_topic(self, topic_filter: str) -> bool:
        self._check_usable()
        with self._lock:
            if topic_filter not in self._filters:
                return False
            del self._filters[topic_filter]
            for link in self._running_links():
                link.remove(topic_filter)
            return True

    def register_listen_address(self, address: str) -> bool:
        check_address(address)
        self._check_usable()
        with self._lock:
            if address in self._links:
                return False
            self._links[address] = self._start_link(address) if self._is_running else None
            return True

    def unregister_listen_address(self, address: str) -> bool:
        self._check_usable()
        with self._lock:
            if address not in self._links:
                return False
            link = self._links.pop(address)
            if link is not None:
                link.stop()
                self._ending = [ending for ending in self._ending if ending.is_alive] + [link]
            return True

    def daemonize(self) -> None:
        self._check_usable()
        if self._receiver is None:
            raise UsageError("initialize() comes before daemonize(): there is nobody to call yet")
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
            PROCESS.ends.add(self)
            self._inbox.start(self._receiver)
            for address in self._links:
                self._links[address] = self._start_link(address)

    @property
    def is_running(self) -> bool:
        return not PROCESS.is_forked and self._inbox.is_running

    @property
    def receiver_errors(self) -> int:
        return self._receiver.errors if self._receiver is not None else 0

    @property
    def counters(self) -> Mapping[str, int]:
        return {"frames_dropped": self._inbox.dropped, **self._tally.counts()}

    def query(self, frame: bytes) -> int | None:
        """Zenoh tells when a query has ended: only then is it known how many have answered."""
        self._check_usable()
        with self._lock:
            links = [link for link in self._running_links() if link.is_connected]
            reach = Reach(len(links), lambda total: self._tell_reach(frame, total))
            is_asked = reach.ask(functools.partial(link.query, frame) for link in links)
        if not is_asked:
            raise TransportUnavailable("no link is up that could carry the query")
        return None

    def _tell_reach(self, frame: bytes, responders: int) -> None:
        """Behind the answers themselves, which wait in the inbox."""
        self._inbox.put_report(Asked(next(iter(self._links), ""), frame, responders))

    def close(self) -> None:
        if PROCESS.is_forked:
            return
        with self._lock:
            self._is_closed = True
            links = [*self._running_links(), *self._ending]
            self._links.clear()
        self._inbox.close()
        for link in links:
            link.stop()
        for link in links:
            link.join()
        self._inbox.join()
        PROCESS.ends.discard(self)

    def _start_link(self, address: str) -> ZenohLink:
        link = ZenohLink(self._settings, address, self._filters, self._inbox, self._tally)
        link.start()
        return link

    def _running_links(self) -> list[ZenohLink]:
        return [link for link in self._links.values() if link is not None]

    def _check_usable(self) -> None:
        PROCESS.check()
        if self._is_closed:
            raise Closed("the subscriber is closed")
