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
from durability_service.core.samples import Sample
from durability_service.core.settings import TopicRules
from durability_service.protocol import ServiceStatus
from durability_service.recorder import event_of
from pubsub_api import Session
from pubsub_api.core.durability import Durability, HistoryOutcome
from pubsub_api.history import HistorySource, Mismatch, OnChange, OnPage

LOG = logging.getLogger(__name__)

_SERVICES_MAX = 10_000

_News = tuple[int, int, int]
"""Incarnation of a service, and in one of its name-spaces how often data of another side came in, or replaced it."""


class DurableHistory(HistorySource):
    """``services`` are addresses of services on a bind-based driver; by default ``[durability] fellows``, or the
    publishers'.  Raises InvalidConfig."""

    def __init__(
        self,
        session: Session,
        topics: Sequence[str],
        durability: Durability,
        *,
        services: Sequence[str] | None = None,
    ) -> None:
        config.register(session.conf)
        self._rules = config.topic_rules(session.conf)
        self._asked = durability
        self._topics = list(topics)
        self._asks_publishers = Durability.TRANSIENT_LOCAL in self._kinds(topics)
        self._lock = threading.Lock()
        self._news: dict[tuple[str, str], _News] = {}
        """Node and name-space -> how it stood when it was last heard."""
        self._is_nobody_there = False
        self._mismatches: list[Mismatch] = []
        self._on_change: OnChange | None = None
        self._client: DurabilityClient | None = None
        if durability >= Durability.TRANSIENT:
            self._client = DurabilityClient(session, addresses=services, on_advert=self._heard)

    @property
    def asks_publishers(self) -> bool:
        return self._asks_publishers

    def read(self, topics: Sequence[str], on_page: OnPage, *, timeout_s: float) -> HistoryOutcome:
        self._topics = list(topics)
        if self._client is None or max(self._kinds(topics)) < Durability.TRANSIENT:
            return HistoryOutcome.COMPLETE

        def on_samples(samples: Sequence[Sample]) -> None:
            on_page([event_of(sample) for sample in samples])

        outcome = self._client.read(topics, on_samples, timeout_s=timeout_s, on_services=self._answered)
        self._is_nobody_there = outcome is HistoryOutcome.NO_SERVICE
        return outcome

    def watch(self, on_change: OnChange) -> None:
        self._on_change = on_change

    def mismatches(self) -> Sequence[Mismatch]:
        with self._lock:
            return list(self._mismatches)

    def close(self) -> None:
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
                    news = (service.incarnation, space.joins, space.replacements)
                    self._note((service.node, space.name), news)
            found = list(find_mismatches(self._topics, self._asked, services))
            is_news = found != self._mismatches
            self._mismatches = found
        if is_news:
            for mismatch in found:
                LOG.warning("History of %s.", mismatch)

    def _heard(self, advert: Advert) -> None:
        """From the driver's thread."""
        is_joined = is_replaced = False
        with self._lock:
            for space in advert.name_spaces:
                if not any(intersect(one, own) for one in self._topics for own in space.filters):
                    continue
                news = (advert.incarnation, space.joins, space.replacements)
                known = self._note((advert.node, space.name), news)
                if known is not None and known[0] == news[0]:
                    is_joined = is_joined or news[1] > known[1]
                    is_replaced = is_replaced or news[2] > known[2]
                is_joined = is_joined or (self._is_nobody_there and space.is_complete)
        if self._on_change is not None and (is_joined or is_replaced):
            self._is_nobody_there = False
            self._on_change(is_replaced)

    def _note(self, key: tuple[str, str], news: _News) -> _News | None:
        """Remember how a service stands; what was known before."""
        known = self._news.pop(key, None)
        if len(self._news) >= _SERVICES_MAX:
            del self._news[next(iter(self._news))]
        self._news[key] = max(news, known) if known else news  # an older one that comes late says nothing
        return known


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
