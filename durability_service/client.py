"""History, deletion, snapshots and status, for processes that run no durability service of their own.

`DurabilityClient` asks services by queries of the bus.  A program that wants history and then live events makes a
subscriber with ``past``; see `durability_service.clients.history`.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable, Sequence

from durability_service import config, protocol
from durability_service.clients.asking import Asker
from durability_service.core.messages import Advert
from durability_service.core.namespaces import intersect
from durability_service.core.reading import SpaceReading
from durability_service.core.sets.samples import Sample
from durability_service.errors import AdministrationRefused, DurabilityError, NoService
from durability_service.protocol import Answer, Ask, SamplePage, ServiceStatus
from durability_service.serving.administration import OFF, STALE, proof
from pubsub_api import Session
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.core.errors import UsageError
from pubsub_api.core.topics import check_filter
from pubsub_api.runtime.backoff import Backoff
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.1
_ASK_AGAIN_S_MAX = 1.0


@dataclasses.dataclass(frozen=True)
class Within:
    """The part of history that is wanted.  Times are timestamps of publishers in nanoseconds; 0 means no bound."""

    since: int = 0
    until: int = 0
    newest: int = 0
    """How many samples of each object, the newest ones; 0 for all that are kept."""


class DurabilityClient(Closeable):
    """Asks services.  Any thread may call.  Each call blocks for its ``timeout_s`` at most.

    ``addresses`` are those of the services, for bind-based drivers.  The default is ``[durability] fellows`` or, where
    that is empty, the addresses of the publishers.
    """

    def __init__(
        self,
        session: Session,
        *,
        addresses: Sequence[str] | None = None,
        on_advert: Callable[[Advert], None] | None = None,
    ) -> None:
        """``on_advert`` is called, from the driver's thread, with each advert that services send to each other."""
        self._asker = Asker(session, addresses, on_advert)
        self._no_service_s: float = session.conf[config.GROUP].no_service_time
        self._page_s: float = config.PAGE_TIMEOUT_S
        self._domain: str = session.conf[config.GROUP].domain
        self._admin_key = config.admin_key(session.conf)

    # -- what the user calls

    def status(self, *, timeout_s: float | None = None, topics: Sequence[str] = ()) -> list[ServiceStatus]:
        """The state of every service that answers, sorted by name.

        Empty if none answers within ``timeout_s``.  The default is ``[durability] no_service_time``.
        """
        timeout_s = self._no_service_s if timeout_s is None else timeout_s
        found = self._asker.ask(Ask(id=0, durability=protocol.STATUS, topics=list(topics)), timeout_s=timeout_s)
        return sorted((one.status for one in found if one.status), key=lambda status: status.node)

    def delete_historical_data(self, topics: Sequence[str], *, timeout_s: float = 10.0) -> None:
        """Delete what was published on these topics up to now, in every service.

        Returns when the deletion is durable at one service.  The others get it from there, also those that are
        unreachable now.  Live subscribers are not affected.  Needs ``[durability] admin_key``.  Raises NoService,
        AdministrationRefused, DurabilityError.
        """
        self._act(protocol.DELETE, topics, timeout_s)

    def snapshot(self, topics: Sequence[str] = ("#",), *, timeout_s: float = 60.0) -> str:
        """Have a service write the complete sets of these topics to its snapshot directory.  Returns the path there.

        Needs ``[durability] admin_key``.  Raises NoService, AdministrationRefused, and DurabilityError with the reason
        if the service cannot do it.
        """
        return self._act(protocol.SNAPSHOT, topics, timeout_s)

    def history(
        self, topics: Sequence[str], *, timeout_s: float, within: Within | None = None
    ) -> tuple[HistoryOutcome, list[Sample]]:
        """Everything that services keep of these topics, the samples of each object oldest first."""
        samples: dict[bytes, Sample] = {}
        received = 0

        def take(page: Sequence[Sample]) -> None:
            nonlocal received
            received += len(page)
            samples.update((sample.digest, sample) for sample in page)

        outcome = self.read(topics, take, timeout_s=timeout_s, within=within)
        found = list(samples.values())
        if received > len(found):  # several services were read
            found.sort(key=lambda sample: sample.order)
        return outcome, found

    def read(
        self,
        topics: Sequence[str],
        on_samples: Callable[[Sequence[Sample]], None],
        *,
        timeout_s: float,
        on_services: Callable[[Sequence[ServiceStatus]], None] | None = None,
        within: Within | None = None,
        readings: dict[str, SpaceReading] | None = None,
    ) -> HistoryOutcome:
        """As `history`, but ``on_samples`` is called with each page.

        Everything is read from one service, and from each other one the buckets in which it differs.  So a sample may
        come twice, and an older sample of an object after a newer one.

        ``readings`` is, by name-space, what was read before; it is updated.  Of a name-space in it only buckets that
        differ are read.  Services apply ``within``.  ``on_services`` is called with the services that answered, before
        one of them is read.
        """
        _check(topics)
        deadline = time.monotonic() + timeout_s
        done_spaces: set[str] = set()
        readings = {} if readings is None else readings
        pauses = Backoff(_ASK_AGAIN_S, _ASK_AGAIN_S_MAX)
        has_found_service = False
        while True:
            services = self._services(topics, deadline, settle_s=0.05 if has_found_service else 0.2)
            has_found_service = has_found_service or bool(services)
            if services and on_services is not None:
                on_services(services)
            if not has_found_service and time.monotonic() >= min(deadline, deadline - timeout_s + self._no_service_s):
                return HistoryOutcome.NO_SERVICE
            wanted = _wanted_spaces(services, topics)
            for name in sorted(wanted - done_spaces):
                bounds = within or Within()
                ask = Ask(
                    id=0, durability=protocol.HISTORY, topics=list(topics), name_space=name,
                    since=bounds.since, until=bounds.until, newest=bounds.newest,
                )  # fmt: skip
                if self._read_all(services, ask, readings.setdefault(name, SpaceReading()), on_samples, deadline):
                    done_spaces.add(name)
            if services and wanted <= done_spaces:
                return HistoryOutcome.COMPLETE
            if time.monotonic() >= deadline or self._asker.is_closed:
                return HistoryOutcome.TIMED_OUT if has_found_service else HistoryOutcome.NO_SERVICE
            self._asker.pause(min(pauses.next_s(), deadline - time.monotonic()))

    def close(self) -> None:
        """Idempotent."""
        self._asker.close()

    # -- asking

    def _services(self, topics: Sequence[str], deadline: float, *, settle_s: float) -> list[ServiceStatus]:
        ask = Ask(id=0, durability=protocol.STATUS, topics=list(topics), wants_data=True)
        left_s = max(0.0, deadline - time.monotonic())
        found = self._asker.ask(
            ask,
            timeout_s=min(left_s, self._no_service_s),
            settle_s=settle_s,
            is_settled=_have_all_answered,
        )
        return [one.status for one in found if one.status]

    def _read_all(
        self,
        services: Sequence[ServiceStatus],
        ask: Ask,
        reading: SpaceReading,
        on_samples: Callable[[Sequence[Sample]], None],
        deadline: float,
    ) -> bool:
        """Read one name-space from one service, and from the others what differs.  False if not all could be read."""
        sets: dict[str, list[str]] = {}
        """Digest of a complete set -> the services that have it.  One of these is enough."""
        for service in services:
            for space in service.name_spaces:
                if space.name == ask.name_space and space.is_complete:
                    sets.setdefault(space.digest, []).append(service.node)
        is_whole = bool(sets)
        for nodes in random.sample(list(sets.values()), len(sets)):
            random.shuffle(nodes)
            is_whole &= any(self._read_space(node, ask, reading, on_samples, deadline) for node in nodes[:2])
        return is_whole

    def _read_space(
        self,
        source: str,
        ask: Ask,
        reading: SpaceReading,
        on_samples: Callable[[Sequence[Sample]], None],
        deadline: float,
    ) -> bool:
        """Read the buckets of one service that were not read yet in this state.  False if one of them is left."""
        ask.durability, ask.to, ask.bucket, ask.after, ask.only = protocol.HISTORY, source, 0, None, []
        if reading.is_begun:
            ask.durability = protocol.DIGESTS
            page = self._ask_one(ask, deadline)
            if page is None or not page.is_complete:
                return False
            ask.durability, ask.only = protocol.HISTORY, reading.differing(page.digests)
            reading.note_deletions(page.deletions)
            if not ask.only:
                return True
        digests: dict[int, bytes] = {}
        while ask.bucket >= 0:
            page = self._ask_one(ask, deadline)
            if page is None or not page.is_complete:
                return False
            digests |= page.digests
            reading.note_deletions(page.deletions)
            samples = reading.wanted(page.samples)
            if samples:
                on_samples(samples)
            ask.bucket, ask.after = page.bucket, page.after
        reading.note_read(digests)
        return True

    def _ask_one(self, ask: Ask, deadline: float) -> SamplePage | None:
        left_s = deadline - time.monotonic()
        found = self._asker.ask(ask, timeout_s=min(left_s, self._page_s), enough=lambda answer: answer.page is not None)
        return next((answer.page for answer in found if answer.page is not None), None)

    def _act(self, what: str, topics: Sequence[str], timeout_s: float) -> str:
        """Have one service do an action, and block until it has reported the outcome.

        The service answers the first question, for its status, with a challenge.  The request proves with it that we
        have the key.  The same request is repeated until the status of the service has an outcome for the action.
        """
        _check(topics)
        if self._admin_key is None:
            raise AdministrationRefused(f"to {what}, set [durability] admin_key here and in the services")
        deadline = time.monotonic() + timeout_s
        action = random.getrandbits(63) | 1
        target = self._best(topics, min(timeout_s, self._no_service_s))
        ask = Ask(id=0, durability=protocol.STATUS, to=target)
        while time.monotonic() < deadline:
            left_s = deadline - time.monotonic()
            for answer in self._asker.ask(ask, timeout_s=left_s, enough=lambda answer: answer.status is not None):
                outcome = answer.status.actions.get(str(action), "") if answer.status else ""
                if outcome.startswith("failed"):
                    raise DurabilityError(f"{target} could not do it: {outcome}")
                if outcome:
                    return outcome
                if answer.refused not in ("", STALE) or not answer.challenge:
                    raise AdministrationRefused(f"{target}: {answer.refused or OFF}")
                if answer.refused or ask.durability == protocol.STATUS:
                    ask = self._request(what, topics, target, action, answer.challenge)
                else:
                    self._asker.pause(_ASK_AGAIN_S)
        raise NoService(f"{target} did not report within {timeout_s} s that it was done")

    def _request(self, what: str, topics: Sequence[str], target: str, action: int, challenge: bytes) -> Ask:
        """A request for a deletion or a snapshot, with the proof that we have the key."""
        assert self._admin_key is not None
        ask = Ask(
            id=0, durability=what, domain=self._domain, topics=list(topics), to=target, action=action,
            challenge=challenge,
        )  # fmt: skip
        ask.proof = proof(self._admin_key, ask, challenge)
        return ask

    def _best(self, topics: Sequence[str], timeout_s: float) -> str:
        """The service to ask: one with complete sets of these topics, if possible their master."""
        found = self.status(timeout_s=timeout_s, topics=topics)
        if not found:
            raise NoService(f"no durability service answered within {timeout_s} s")
        return max(found, key=lambda one: (_rank(one, topics), one.node)).node


def _check(topics: Sequence[str]) -> None:
    if isinstance(topics, str) or not topics:
        raise UsageError("topics is a list of topic filters, with at least one")
    for topic in topics:
        check_filter(topic)


def _wanted_spaces(services: Sequence[ServiceStatus], topics: Sequence[str]) -> set[str]:
    return {
        space.name
        for service in services
        for space in service.name_spaces
        if any(intersect(one, own) for one in topics for own in space.filters)
    }


def _have_all_answered(answers: Sequence[Answer]) -> bool:
    """Whether services have answered, and all connected peers of these, too."""
    found = [one.status for one in answers if one.status]
    expected = {peer.node for one in found for peer in one.peers if peer.is_connected and not peer.incompatibility}
    return bool(found) and expected <= {one.node for one in found}


def _rank(service: ServiceStatus, topics: Sequence[str]) -> tuple[int, int]:
    spaces = [one for one in service.name_spaces if one.name in _wanted_spaces([service], topics)]
    return sum(one.is_complete for one in spaces), sum(one.master == service.node for one in spaces)
