"""The receiving end: a link per address, and one thread that calls the receiver."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from heliograph_drivers.pubsub.zenoh.config import ZenohSettings, check_address
from heliograph_drivers.pubsub.zenoh.connection import COUNTED
from heliograph_drivers.pubsub.zenoh.link import ZenohLink
from heliograph_drivers.pubsub.zenoh.session import PROCESS
from pubsub_api.driver import Asked
from pubsub_api.driver_kit import DriverSubscriber, GuardedReceiver, Inbox, ResponderCount, Tally
from pubsub_api.errors import TransportUnavailable


class ZenohSubscriber(DriverSubscriber):
    """See `SubscriberApi`.  Each address has a thread for the link and one for its channel; one thread calls the
    receiver."""

    def __init__(self, settings: ZenohSettings) -> None:
        super().__init__(
            Tally(*COUNTED, "barriers_repeated", "frames_misplaced", "queries_dropped", "queries_failed"),
            guard=PROCESS,
        )
        self._settings = settings
        self._links: dict[str, ZenohLink] = {}
        self._ending: list[ZenohLink] = []
        # A full inbox drops frames and does not wait: waiting would block a thread of Zenoh, and with it the answers
        # and the keep-alives of every peer on that link.
        self._inbox = Inbox(settings.common.receive_queue_bytes_max, name="zenoh receiver")

    @property
    def counters(self) -> Mapping[str, int]:
        return {"frames_dropped": self._inbox.dropped, **super().counters}

    def query(self, frame: bytes) -> int | None:
        """Hand the query to every link that is up.  How many publishers have answered is reported at the end of the
        query, as `Asked`."""
        with self._usable():
            links = [link for link in self._links.values() if link.is_connected]
            responders = ResponderCount(len(links), lambda total: self._report_responders(frame, total))
            is_asked = responders.ask(functools.partial(link.query, frame) for link in links)
        if not is_asked:
            raise TransportUnavailable("no link is up that could carry the query")
        return None

    def _report_responders(self, frame: bytes, responders: int) -> None:
        """Put the report into the inbox, behind the answers."""
        self._inbox.put_report(Asked(next(iter(self._links), ""), frame, responders))

    def _check_filter(self, topic_filter: str) -> None:
        self._settings.keys.interest(topic_filter)

    def _check_address(self, address: str) -> None:
        check_address(address)

    def _open(self, receiver: GuardedReceiver) -> None:
        PROCESS.ends.add(self)
        self._inbox.start(receiver)

    def _is_alive(self) -> bool:
        return self._inbox.is_running

    def _add_filter(self, topic_filter: str) -> None:
        for link in self._links.values():
            link.add(topic_filter)

    def _remove_filter(self, topic_filter: str) -> None:
        for link in self._links.values():
            link.remove(topic_filter)

    def _add_link(self, address: str) -> None:
        link = ZenohLink(self._settings, address, self._filters, self._inbox, self._tally)
        link.start()
        self._links[address] = link

    def _remove_link(self, address: str) -> None:
        link = self._links.pop(address)
        link.stop()
        self._ending = [ending for ending in self._ending if ending.is_alive] + [link]

    def _close(self) -> None:
        with self._lock:
            links = [*self._links.values(), *self._ending]
            self._links.clear()
        self._inbox.close()
        for link in links:
            link.stop()
        for link in links:
            link.join()
        self._inbox.join()
        PROCESS.ends.discard(self)
