"""The history source of subscribers: it reads what durability services keep.

How a topic is kept, and what the subscriber asks for, decide where history comes from; the weaker of the two counts.
For TRANSIENT and PERSISTENT data services are asked, for TRANSIENT_LOCAL data the publishers.

The source listens to the adverts of services, so that a subscriber reads again when two sides of a split were joined,
or when a service has started where there was none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from durability_service import config
from durability_service.client import DurabilityClient
from durability_service.core.messages import Advert
from durability_service.core.namespaces import intersect
from durability_service.core.reading import ServiceNews, SpaceReading
from durability_service.core.sets.samples import Sample
from durability_service.core.settings import TopicRules
from durability_service.protocol import ServiceStatus
from durability_service.serving.sampling import event_of
from pubsub_api import Session
from pubsub_api import config as pubsub_config
from pubsub_api.core.durability import Durability, HistoryOutcome
from pubsub_api.subscribing.history import HistorySource, Mismatch, OnChange, OnPage

LOG = logging.getLogger(__name__)

_SECOND_READ_PART = 1.5
"""Part of the silence after which a publisher is missed.  Events that were published right before the first read may
not have reached any service yet.  Services report in their adverts events that come later than that silence; for the
others a subscriber reads a second time, after this part of it."""


class DurableHistory(HistorySource):
    """``services`` are the addresses of services, for bind-based drivers.  The default is ``[durability] fellows`` or,
    where that is empty, the addresses of the publishers.  Raises InvalidConfig."""

    def __init__(
        self, session: Session, topics: Sequence[str], durability: Durability, *, services: Sequence[str] | None = None
    ) -> None:
        config.register(session.conf)
        self._rules = config.topic_rules(session.conf)
        self._no_service_s: float = session.conf[config.GROUP].no_service_time
        self._asked = durability
        self._topics = list(topics)
        self._asks_publishers = Durability.TRANSIENT_LOCAL in self._kinds(topics)
        self._lock = threading.Lock()
        self._news = ServiceNews()
        self._readings: dict[str, SpaceReading] = {}
        """Name-space -> what was read of it.  A later read takes only buckets that differ."""
        self._second_read_s = _SECOND_READ_PART * pubsub_config.silence_timeout(session.conf)
        self._second_read: threading.Timer | None = None
        self._is_without_service = False
        """No service answered the last read."""
        self._mismatches: list[Mismatch] = []
        self._on_change: OnChange | None = None
        self._client: DurabilityClient | None = None
        if durability >= Durability.TRANSIENT:
            self._client = DurabilityClient(session, addresses=services, on_advert=self._on_advert)

    @property
    def asks_publishers(self) -> bool:
        return self._asks_publishers

    @property
    def publishers_wait_s(self) -> float | None:
        return self._no_service_s

    def read(self, topics: Sequence[str], on_page: OnPage, *, timeout_s: float) -> HistoryOutcome:
        if self._topics != list(topics):
            self._topics, self._readings = list(topics), {}
        if self._client is None or max(self._kinds(topics)) < Durability.TRANSIENT:
            return HistoryOutcome.COMPLETE

        def on_samples(samples: Sequence[Sample]) -> None:
            on_page([event_of(sample) for sample in samples])

        outcome = self._client.read(
            topics, on_samples, timeout_s=timeout_s, on_services=self._note_services, readings=self._readings
        )
        self._is_without_service = outcome is HistoryOutcome.NO_SERVICE
        if outcome is HistoryOutcome.COMPLETE and self._second_read is None:
            self._second_read = threading.Timer(self._second_read_s, self._read_again)
            self._second_read.daemon = True
            self._second_read.start()
        return outcome

    def _read_again(self) -> None:
        if self._on_change is not None:
            self._on_change(False)

    def watch(self, on_change: OnChange) -> None:
        self._on_change = on_change

    def mismatches(self) -> Sequence[Mismatch]:
        with self._lock:
            return list(self._mismatches)

    def close(self) -> None:
        if self._second_read is not None:
            self._second_read.cancel()
        if self._client is not None:
            self._client.close()

    def _kinds(self, topics: Sequence[str]) -> set[Durability]:
        """The kinds of data that the subscriber may get of these topics, by the rules of this process."""
        return {min(self._asked, kind) for topic in topics for _, kind in self._rules.kinds_within(topic)}

    # -- what services report

    def _note_services(self, services: Sequence[ServiceStatus]) -> None:
        """Called before these services are read."""
        with self._lock:
            for service in services:
                for space in service.name_spaces:
                    self._news.note(service.node, space.name, (service.incarnation, space.joins, space.replacements))
            found = list(find_mismatches(self._topics, self._asked, services))
            is_news = found != self._mismatches
            self._mismatches = found
        if is_news:
            for mismatch in found:
                LOG.warning("History of %s.", mismatch)

    def _on_advert(self, advert: Advert) -> None:
        """Called by the driver's thread."""
        with self._lock:
            wanted = [
                space
                for space in advert.name_spaces
                if any(intersect(one, own) for one in self._topics for own in space.filters)
            ]
            is_joined, is_replaced = self._news.note_advert(advert, [space.name for space in wanted])
            is_joined = is_joined or (self._is_without_service and any(space.is_complete for space in wanted))
        if self._on_change is not None and (is_joined or is_replaced):
            self._is_without_service = False
            if is_replaced:
                self._readings = {}  # what was delivered may be gone: everything is read again
            self._on_change(is_replaced)


def find_mismatches(topics: Sequence[str], asked: Durability, services: Sequence[ServiceStatus]) -> list[Mismatch]:
    """Where these services, which have the same rules, keep less of the topics than was asked for."""
    if not services:
        return []
    rules = TopicRules(
        kinds=tuple((wanted, Durability[kind]) for wanted, kind in services[0].kinds),
        default_kind=Durability[services[0].default_kind],
    )
    found: dict[Mismatch, None] = {}
    for topic in topics:
        for part, kind in rules.kinds_within(topic):
            kept = (
                Durability[space.durability]
                for service in services
                for space in service.name_spaces
                if any(intersect(part, own) for own in space.filters)
            )
            offered = min(kind, max(kept, default=Durability.VOLATILE))
            if offered < asked:
                found[Mismatch(part, asked, offered)] = None
    return list(found)
