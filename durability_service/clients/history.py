"""The past, for subscribers that ask for it: what durability services keep.

The kind of a topic, and how much the subscriber asks for, decide where its past comes from: the weaker of the two
counts.  TRANSIENT and PERSISTENT data is asked of services, TRANSIENT_LOCAL data of the publishers themselves.

Services tell each other all the time how they stand.  A source listens, so that a reader learns when two sides of a
split were joined, or when a service came up where there was none.
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

_SECOND_LOOK_PART = 1.5
"""Of the silence after which a publisher is missed.  What was published right before a reader came may still be on its
way to every service.  What takes longer than that silence is noticed and told by the services; for the rest a
reader looks once more."""


class DurableHistory(HistorySource):
    """``services`` are addresses of services on a bind-based driver; by default ``[durability] fellows``, or the
    publishers'.  Raises InvalidConfig."""

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
        self._read_topics = self._topics
        self._readings: dict[str, SpaceReading] = {}
        """What was read, by name-space: later only what differs is."""
        self._second_look_s = _SECOND_LOOK_PART * pubsub_config.silence_timeout(session.conf)
        self._second_look: threading.Timer | None = None
        self._is_nobody_there = False
        self._mismatches: list[Mismatch] = []
        self._on_change: OnChange | None = None
        self._client: DurabilityClient | None = None
        if durability >= Durability.TRANSIENT:
            self._client = DurabilityClient(session, addresses=services, on_advert=self._heard)

    @property
    def asks_publishers(self) -> bool:
        return self._asks_publishers

    @property
    def publishers_wait_s(self) -> float | None:
        return self._no_service_s

    def read(self, topics: Sequence[str], on_page: OnPage, *, timeout_s: float) -> HistoryOutcome:
        self._topics = list(topics)
        if self._client is None or max(self._kinds(topics)) < Durability.TRANSIENT:
            return HistoryOutcome.COMPLETE

        def on_samples(samples: Sequence[Sample]) -> None:
            on_page([event_of(sample) for sample in samples])

        if self._read_topics != self._topics:
            self._read_topics, self._readings = self._topics, {}
        readings = self._readings
        outcome = self._client.read(
            topics, on_samples, timeout_s=timeout_s, on_services=self._answered, readings=readings
        )
        self._is_nobody_there = outcome is HistoryOutcome.NO_SERVICE
        if outcome is HistoryOutcome.COMPLETE and self._second_look is None:
            self._second_look = threading.Timer(self._second_look_s, self._look_again)
            self._second_look.daemon = True
            self._second_look.start()
        return outcome

    def _look_again(self) -> None:
        if self._on_change is not None:
            self._on_change(False)

    def watch(self, on_change: OnChange) -> None:
        self._on_change = on_change

    def mismatches(self) -> Sequence[Mismatch]:
        with self._lock:
            return list(self._mismatches)

    def close(self) -> None:
        if self._second_look is not None:
            self._second_look.cancel()
        if self._client is not None:
            self._client.close()

    def _kinds(self, topics: Sequence[str]) -> set[Durability]:
        """The kinds in which the past of these topics may reach the reader, by the rules known here."""
        return {min(self._asked, kind) for topic in topics for _, kind in self._rules.kinds_within(topic)}

    # -- what services say

    def _answered(self, services: Sequence[ServiceStatus]) -> None:
        """They are about to be read: what they have now will be known."""
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

    def _heard(self, advert: Advert) -> None:
        """From the driver's thread."""
        with self._lock:
            wanted = [
                space
                for space in advert.name_spaces
                if any(intersect(one, own) for one in self._topics for own in space.filters)
            ]
            is_joined, is_replaced = self._news.heard(advert, [space.name for space in wanted])
            is_joined = is_joined or (self._is_nobody_there and any(space.is_complete for space in wanted))
        if self._on_change is not None and (is_joined or is_replaced):
            self._is_nobody_there = False
            if is_replaced:
                self._readings = {}  # what was delivered may be gone, and is told again
            self._on_change(is_replaced)


def find_mismatches(topics: Sequence[str], asked: Durability, services: Sequence[ServiceStatus]) -> list[Mismatch]:
    """Where these services keep less of the topics than was asked for.  They all have the same rules."""
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
