"""The sending end of the ``memory`` driver."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from oslo_config import cfg

from drivers.pubsub.memory import bus
from drivers.pubsub.memory.bus import ITEM_BYTES, REGISTRY, SCHEME, Bus, Endpoint, ListeningMember, Mailbox
from pubsub_api.driver import Connected, Disconnected, PublisherApi, PublisherReport, QueryHandler
from pubsub_api.driver_kit.counting import Tally
from pubsub_api.driver_kit.guarding import GuardedHandler
from pubsub_api.errors import Closed, LimitReached, TransportUnavailable, UsageError


class MemoryPublisher(Endpoint, PublisherApi):
    """The sending end.  It has a thread only after `serve`, to answer queries."""

    def __init__(self, options: cfg.ConfigOpts.GroupAttr) -> None:
        super().__init__(options)
        self._address = f"{SCHEME}://{self._options.name}"
        self._bus: Bus | None = None
        self._is_closed = False
        self._report: PublisherReport | None = None
        # Held while reporting, so that reports come in the order of the changes; reentrant, so that a report may close.
        self._report_lock = threading.RLock()
        self._is_reported_up = False
        self._handler: GuardedHandler | None = None
        self._tally = Tally("queries_dropped")
        self._queries: Mailbox[tuple[bytes, ListeningMember]] | None = None

    def initialize(self, report: PublisherReport) -> None:
        self._check_usable()
        if self._bus is not None:
            raise UsageError("initialize was called already")
        joined = REGISTRY.get(self._options.name)
        joined.join_publisher(self)
        self._bus = joined
        self._report = report
        self.on_bus_changed(joined)

    @property
    def address(self) -> str:
        return self._address

    def send(self, topic: str, frame: bytes) -> None:
        joined = self._joined()
        if len(frame) > bus.QUEUE_BYTES_MAX - ITEM_BYTES:
            raise LimitReached(f"a frame of {len(frame)} bytes does not fit a queue of the memory driver")
        if not joined.is_up:
            raise TransportUnavailable(f"{self._address} is disconnected")
        joined.publish(topic, frame)

    def serve(self, handler: QueryHandler) -> None:
        self._joined()
        if self._queries is not None:
            raise UsageError("serve was called already")
        self._handler = GuardedHandler(handler)
        self._queries = Mailbox(f"memory-serve-{self._options.name}", bus.QUEUE_BYTES_MAX, self._answer)
        self._queries.start()

    @property
    def handler_errors(self) -> int:
        return self._handler.errors if self._handler is not None else 0

    @property
    def counters(self) -> Mapping[str, int]:
        return self._tally.counts()

    def close(self) -> None:
        self._is_closed = True
        if self._is_inherited:
            return
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

    def _check_usable(self) -> None:
        self._check_process()
        if self._is_closed:
            raise Closed(f"the publisher of {self._address} is closed")
