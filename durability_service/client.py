"""History, deletion, snapshots and status, for processes that run no durability service of their own.

`DurabilityClient` asks services over the bus's queries.  A program that wants history and live events in one asks
for ``durability`` when it makes a subscriber, see `durability_service.clients.history`.
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
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.1
_ASK_AGAIN_S_MAX = 1.0


Outcome = HistoryOutcome


@dataclasses.dataclass(frozen=True)
class Within:
    """What part of history is wanted.  Times are those that publishers stamped, in nanoseconds; 0: no bound."""

    since: int = 0
    until: int = 0
    newest: int = 0
    """Of each object the newest so many; 0 for all that are kept."""


class DurabilityClient(Closeable):
    """Asks services.  Any thread may call; each call blocks for as long as it says.  Close it when done.

    ``addresses`` are those of services on a bind-based driver; by default ``[durability] fellows`` or the publishers'.
    """

    def __init__(
        self,
        session: Session,
        *,
        addresses: Sequence[str] | None = None,
        on_advert: Callable[[Advert], None] | None = None,
    ) -> None:
        """``on_advert`` is called, from any thread, with what services say of themselves to each other."""
        self._asker = Asker(session, addresses, on_advert)
        self._no_service_s: float = session.conf[config.GROUP].no_service_time
        self._page_s: float = config.PAGE_TIMEOUT_S
        self._domain: str = session.conf[config.GROUP].domain
        self._admin_key = config.admin_key(session.conf)

    # -- what the user calls

    def status(self, *, timeout_s: float | None = None, topics: Sequence[str] = ()) -> list[ServiceStatus]:
        """The state of every service that answers, by name.

        Empty when none does within ``timeout_s``, which is ``no_service_time`` by default.
        """
        timeout_s = self._no_service_s if timeout_s is None else timeout_s
        found = self._asker.ask(Ask(id=0, durability=protocol.STATUS, topics=list(topics)), timeout_s=timeout_s)
        return sorted((one.status for one in found if one.status), key=lambda status: status.node)

    def delete_historical_data(self, topics: Sequence[str], *, timeout_s: float = 10.0) -> None:
        """Delete what was published on these topics up to now, in every service, also in those that are away now.

        Returns when a service has it durably.  Live subscribers are not touched.  Needs ``[durability] admin_key``.
        Raises NoService, AdministrationRefused, DurabilityError.
        """
        self._act(protocol.DELETE, topics, timeout_s)

    def snapshot(self, topics: Sequence[str] = ("#",), *, timeout_s: float = 60.0) -> str:
        """Have a service write the complete sets of these topics to its snapshot directory.  Returns the path there.

        Needs ``[durability] admin_key``.  Raises NoService, AdministrationRefused, DurabilityError with what it says.
        """
        return self._act(protocol.SNAPSHOT, topics, timeout_s)

    def history(
        self, topics: Sequence[str], *, timeout_s: float, within: Within | None = None
    ) -> tuple[Outcome, list[Sample]]:
        """Everything that services keep of these topics, oldest first for each object.  Blocks up to ``timeout_s``."""
        samples: dict[bytes, Sample] = {}
        came = 0

        def take(page: Sequence[Sample]) -> None:
            nonlocal came
            came += len(page)
            samples.update((sample.digest, sample) for sample in page)

        outcome = self.read(topics, take, timeout_s=timeout_s, within=within)
        found = list(samples.values())
        if came > len(found):  # of several services
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
    ) -> Outcome:
        """As `history`, page by page.  Everything is read from one service, and from the others that answer what they
        have otherwise; so a sample may come twice, and an older one after a newer one of the same object.

        ``readings`` is what was read before, by name-space: only what differs is read then, and it is kept up to date.
        ``within`` leaves out, at the service, what is not wanted.  ``on_services`` is called with the services that
        answered, before anything is read from one of them.
        """
        _check(topics)
        deadline = time.monotonic() + timeout_s
        done: set[str] = set()
        readings = {} if readings is None else readings
        pause_s = _ASK_AGAIN_S
        is_any_service = False
        while True:
            services = self._services(topics, deadline, is_any_service=is_any_service)
            is_any_service = is_any_service or bool(services)
            if services and on_services is not None:
                on_services(services)
            if not is_any_service and time.monotonic() >= min(deadline, deadline - timeout_s + self._no_service_s):
                return Outcome.NO_SERVICE
            wanted = _wanted_spaces(services, topics)
            for name in sorted(wanted - done):
                bounds = within or Within()
                ask = Ask(
                    id=0, durability=protocol.HISTORY, topics=list(topics), name_space=name,
                    since=bounds.since, until=bounds.until, newest=bounds.newest,
                )  # fmt: skip
                if self._read_all(services, ask, readings.setdefault(name, SpaceReading()), on_samples, deadline):
                    done.add(name)
            if services and wanted <= done:
                return Outcome.COMPLETE
            if time.monotonic() >= deadline or self._asker.is_closed:
                return Outcome.TIMED_OUT if is_any_service else Outcome.NO_SERVICE
            self._asker.pause(min(pause_s, deadline - time.monotonic()))
            pause_s = min(2 * pause_s, _ASK_AGAIN_S_MAX)

    def close(self) -> None:
        """Idempotent."""
        self._asker.close()

    # -- asking

    def _services(self, topics: Sequence[str], deadline: float, *, is_any_service: bool) -> list[ServiceStatus]:
        ask = Ask(id=0, durability=protocol.STATUS, topics=list(topics), wants_data=True)
        left_s = max(0.0, deadline - time.monotonic())
        found = self._asker.ask(
            ask,
            timeout_s=min(left_s, self._no_service_s),
            settle_s=0.05 if is_any_service else 0.2,
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
        """Read one name-space from one service, and what differs from the others.  False when one of them is left."""
        sets: dict[str, list[str]] = {}
        """Digest of the whole set -> the services that have it."""
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
        """Read of one service what was not read of another.  False when it could not be read whole."""
        ask.durability, ask.to, ask.bucket, ask.after, ask.only = protocol.HISTORY, source, 0, None, []
        if reading.is_begun:
            ask.durability = protocol.DIGESTS
            page = self._ask_one(ask, deadline)
            if page is None or not page.is_complete:
                return False
            ask.durability, ask.only = protocol.HISTORY, reading.differing(page.digests)
            reading.deleted(page.deletions)
            if not ask.only:
                return True
        digests: dict[int, bytes] = {}
        while ask.bucket >= 0:
            page = self._ask_one(ask, deadline)
            if page is None or not page.is_complete:
                return False
            digests |= page.digests
            reading.deleted(page.deletions)
            samples = reading.wanted(page.samples)
            if samples:
                on_samples(samples)
            ask.bucket, ask.after = page.bucket, page.after
        reading.took(digests)
        return True

    def _ask_one(self, ask: Ask, deadline: float) -> SamplePage | None:
        left_s = deadline - time.monotonic()
        found = self._asker.ask(ask, timeout_s=min(left_s, self._page_s), enough=lambda answer: answer.page is not None)
        return next((answer.page for answer in found if answer.page is not None), None)

    def _act(self, what: str, topics: Sequence[str], timeout_s: float) -> str:
        """Have one service do something, and wait until it says that it is done."""
        _check(topics)
        if self._admin_key is None:
            raise AdministrationRefused(f"to {what}, set [durability] admin_key here and in the services")
        deadline = time.monotonic() + timeout_s
        action = random.getrandbits(63) | 1
        target = self._best(topics, min(timeout_s, self._no_service_s))
        ask = Ask(id=0, durability=protocol.STATUS, to=target)  # brings the first challenge
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
        raise NoService(f"{target} did not say that it was done within {timeout_s} s")

    def _request(self, what: str, topics: Sequence[str], target: str, action: int, challenge: bytes) -> Ask:
        """A deletion or a snapshot, with what proves that we may ask for it."""
        assert self._admin_key is not None
        ask = Ask(
            id=0, durability=what, domain=self._domain, topics=list(topics), to=target, action=action,
            challenge=challenge,
        )  # fmt: skip
        ask.proof = proof(self._admin_key, ask, challenge)
        return ask

    def _best(self, topics: Sequence[str], timeout_s: float) -> str:
        """The service to ask: one whose sets of these topics are complete, a master if there is one."""
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
    """Whether the peers of all services that answered have answered, too."""
    found = [one.status for one in answers if one.status]
    named = {peer.node for one in found for peer in one.peers if peer.is_connected and not peer.incompatibility}
    return bool(found) and named <= {one.node for one in found}


def _rank(service: ServiceStatus, topics: Sequence[str]) -> tuple[int, int]:
    spaces = [one for one in service.name_spaces if one.name in _wanted_spaces([service], topics)]
    return sum(one.is_complete for one in spaces), sum(one.master == service.node for one in spaces)
