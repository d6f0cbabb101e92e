"""The sending end of the ``memory`` driver."""

from __future__ import annotations

import threading

from oslo_config import cfg

from heliograph_drivers.pubsub.memory import bus
from heliograph_drivers.pubsub.memory.bus import ITEM_BYTES, REGISTRY, SCHEME, Bus, ListeningMember, Mailbox
from pubsub_api.driver import Connected, Disconnected, PublisherReport
from pubsub_api.driver_kit import DriverPublisher, GuardedHandler, Tally
from pubsub_api.errors import LimitReached, TransportUnavailable, UsageError


class MemoryPublisher(DriverPublisher):
    """The sending end.  It has a thread only after `serve`, to answer queries."""

    def __init__(self, options: cfg.ConfigOpts.GroupAttr) -> None:
        super().__init__(f"{SCHEME}://{options.name}", Tally("queries_dropped"))
        self._options = options
        self._bus: Bus | None = None
        # Held while reporting, so that reports have the order of the changes; reentrant, because a report may close.
        self._report_lock = threading.RLock()
        self._is_reported_up = False
        self._queries: Mailbox[tuple[bytes, ListeningMember]] | None = None

    def _open(self, report: PublisherReport) -> None:  # noqa: ARG002 - `on_bus_changed` reports
        joined = REGISTRY.get(self._options.name)
        joined.join_publisher(self)
        self._bus = joined
        self.on_bus_changed(joined)

    def send(self, topic: str, frame: bytes) -> None:
        joined = self._joined()
        if len(frame) > bus.QUEUE_BYTES_MAX - ITEM_BYTES:
            raise LimitReached(f"a frame of {len(frame)} bytes does not fit a queue of the memory driver")
        if not joined.is_up:
            raise TransportUnavailable(f"{self._address} is disconnected")
        joined.publish(topic, frame)

    def _serve(self, handler: GuardedHandler) -> None:  # noqa: ARG002 - `_answer` asks it
        self._queries = Mailbox(f"memory-serve-{self._options.name}", bus.QUEUE_BYTES_MAX, self._answer)
        self._queries.start()

    def _close(self) -> None:
        joined, self._bus = self._bus, None
        if joined is not None:
            joined.leave(self)
        if self._queries is not None:
            self._queries.close()

    @property
    def is_serving(self) -> bool:
        return self._queries is not None and self._queries.is_alive

    def offer_query(self, query: bytes, asker: ListeningMember) -> None:
        """Called by the bus, which asks `is_serving` first."""
        joined, queries = self._bus, self._queries
        if joined is not None and queries is not None and not queries.put((query, asker), len(query)):
            joined.count_overflow(1)
            self._tally.add("queries_dropped")

    def on_bus_changed(self, changed: Bus) -> None:
        """Called by the bus."""
        with self._report_lock:
            is_up = changed.is_up
            if self._report is None or self._is_closed or is_up == self._is_reported_up:
                return
            self._is_reported_up = is_up
            self._report(Connected(self._address) if is_up else Disconnected(self._address, "the bus was disconnected"))

    def _answer(self, queries: list[tuple[bytes, ListeningMember]]) -> None:
        for query, asker in queries:
            joined = self._bus
            if joined is None or self._handler is None:
                return
            asker.offer_replies(joined, list(self._handler(query)))

    def _joined(self) -> Bus:
        self._check_usable()
        joined = self._bus
        if joined is None:
            raise UsageError("initialize was not called")
        return joined
