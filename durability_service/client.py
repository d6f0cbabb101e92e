"""History, deletion, snapshots and status, for processes that run no durability service of their own.

`DurabilityClient` asks services over the bus's queries.  Who wants history and live events in one asks for
``durability`` when a subscriber is made, see `durability_service.history`.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable, Sequence

from durability_service import config, protocol
from durability_service.asking import Asker
from durability_service.core.messages import Advert
from durability_service.core.namespaces import intersect
from durability_service.core.samples import Sample
from durability_service.errors import DurabilityError, NoService
from durability_service.protocol import Ask, Page, ServiceStatus
from pubsub_api import Session
from pubsub_api.closing import Closeable
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.core.errors import UsageError
from pubsub_api.core.topics import check_filter

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
        self._page_s: float = session.conf[config.GROUP].page_timeout

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

        Returns when a service has it durably.  Live subscribers are not touched.  Raises NoService, DurabilityError.
        """
        self._act(protocol.DELETE, topics, timeout_s)

    def snapshot(self, topics: Sequence[str] = ("#",), *, timeout_s: float = 60.0) -> str:
        """Have a service write the complete sets of these topics to its snapshot directory.  Returns the path there.

        Raises NoService, DurabilityError with what the service says.
        """
        return self._act(protocol.SNAPSHOT, topics, timeout_s)

    def history(
        self, topics: Sequence[str], *, timeout_s: float, within: Within | None = None
    ) -> tuple[Outcome, list[Sample]]:
        """Everything that services keep of these topics, oldest first for each object.  Blocks up to ``timeout_s``."""
        samples: list[Sample] = []
        outcome = self.read(topics, samples.extend, timeout_s=timeout_s, within=within)
        return outcome, samples

    def read(
        self,
        topics: Sequence[str],
        on_samples: Callable[[Sequence[Sample]], None],
        *,
        timeout_s: float,
        on_services: Callable[[Sequence[ServiceStatus]], None] | None = None,
        within: Within | None = None,
    ) -> Outcome:
        """As `history`, page by page.  A page may come twice when a service had to be replaced by another.

        ``within`` leaves out, at the service, what is not wanted.  ``on_services`` is called with the services that
        answered, before anything is read from one of them.
        """
        _check(topics)
        deadline = time.monotonic() + timeout_s
        done: set[str] = set()
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
                sources = [one.node for one in services if _is_complete(one, name)]
                random.shuffle(sources)
                if any(self._read_space(source, ask, on_samples, deadline) for source in sources[:2]):
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
            ask, timeout_s=min(left_s, self._no_service_s), settle_s=0.05 if is_any_service else 0.2
        )
        return [one.status for one in found if one.status]

    def _read_space(
        self, source: str, ask: Ask, on_samples: Callable[[Sequence[Sample]], None], deadline: float
    ) -> bool:
        """Read one name-space from one service.  False when it could not be read whole."""
        ask.to, ask.bucket, ask.after = source, 0, None
        while ask.bucket >= 0:
            page = self._ask_one(ask, deadline)
            if page is None or not page.is_complete:
                return False
            if page.samples:
                on_samples(page.samples)
            ask.bucket, ask.after = page.bucket, page.after
        return True

    def _ask_one(self, ask: Ask, deadline: float) -> Page | None:
        left_s = deadline - time.monotonic()
        found = self._asker.ask(ask, timeout_s=min(left_s, self._page_s), enough=lambda answer: answer.page is not None)
        return next((answer.page for answer in found if answer.page is not None), None)

    def _act(self, what: str, topics: Sequence[str], timeout_s: float) -> str:
        """Have one service do something, and wait until it says that it is done."""
        _check(topics)
        deadline = time.monotonic() + timeout_s
        action = random.getrandbits(63) | 1
        target = self._best(topics, min(timeout_s, self._no_service_s))
        while time.monotonic() < deadline:
            ask = Ask(id=0, durability=what, topics=list(topics), to=target, action=action)
            left_s = deadline - time.monotonic()
            for answer in self._asker.ask(ask, timeout_s=left_s, enough=lambda answer: answer.status is not None):
                outcome = answer.status.actions.get(str(action), "") if answer.status else ""
                if outcome.startswith("failed"):
                    raise DurabilityError(f"{target} could not do it: {outcome}")
                if outcome:
                    return outcome
            self._asker.pause(_ASK_AGAIN_S)
        raise NoService(f"{target} did not say that it was done within {timeout_s} s")

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


def _is_complete(service: ServiceStatus, name: str) -> bool:
    return any(space.name == name and space.is_complete for space in service.name_spaces)


def _rank(service: ServiceStatus, topics: Sequence[str]) -> tuple[int, int]:
    spaces = [one for one in service.name_spaces if one.name in _wanted_spaces([service], topics)]
    return sum(one.is_complete for one in spaces), sum(one.master == service.node for one in spaces)
