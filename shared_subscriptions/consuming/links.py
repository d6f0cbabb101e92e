"""A member's ways to the processes that lead its groups: one connection to each, whatever the number of groups."""

from __future__ import annotations

import contextlib
import logging
import selectors
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping

from pubsub_api.errors import FrameError
from shared_subscriptions.core import messages as m
from shared_subscriptions.core.leading.candidate import LeaderRecord
from shared_subscriptions.sockets import MessageConnection

LOG = logging.getLogger(__name__)

RECONNECT_S = 0.2
_QUESTIONS_KEPT = 16
_NEVER = 1 << 62


class LeaderLink:
    """Owned by the member's protocol thread.  Messages that cannot be sent now are dropped: the protocol repeats them.

    Borrowers that have spoken on the connection need not ask for their leases one by one: `ping_all` does it for them.
    """

    def __init__(
        self, selector: selectors.BaseSelector, endpoint: str, key: bytes, counters: Counter[str], *, bytes_max: int
    ) -> None:
        self.groups: set[str] = set()
        """Those that are led there."""
        self._selector = selector
        self._endpoint, self._key = endpoint, key
        self._counters = counters
        self._bytes_max = bytes_max
        self._connection: MessageConnection | None = None
        self._retry_at = 0.0
        self._seq = 0
        self._asked: OrderedDict[int, float] = OrderedDict()
        self._speakers: dict[str, int] = {}
        """Borrowers that have spoken on this connection -> the last question for all before that.  A borrower in here
        was heard of by the leader, perhaps, and has to be taken back when it is no more."""
        self._interval_s = self._ping_at = float("inf")
        self._looked = -1
        """The number of changes at which all that have spoken here were looked at."""

    def maintain(self, now: float) -> bool:
        """Connect, if that is to be done.  True when it was begun."""
        if self._connection is not None or now < self._retry_at:
            return False
        self._retry_at = now + RECONNECT_S
        try:
            self._connection = MessageConnection.to(self._endpoint, self._key, bytes_max=self._bytes_max)
        except (OSError, ValueError) as error:
            self._counters["link_failures"] += 1
            LOG.debug("The leader at %s cannot be reached: %s", self._endpoint, error)
            return False
        self._selector.register(self._connection.end, selectors.EVENT_READ, self)
        return True

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def next_deadline(self) -> float:
        return self._ping_at if self._connection is not None else self._retry_at

    def send(self, group: str, message: m.ToLeader, *, ping_s: float) -> None:
        """``ping_s`` is how often the leader should hear of the borrower."""
        if self._connection is None:
            return
        self._interval_s = min(self._interval_s, ping_s)
        if not self._connection.send(m.encode((group, message))):
            self._speakers[message.borrower] = _NEVER  # it has to say again what was dropped, when its own time comes
        elif self._speakers.get(message.borrower, _NEVER) == _NEVER:
            self._speakers[message.borrower] = self._seq

    def ping_all(self, now: float, changes: int, is_here: Callable[[str], bool]) -> None:
        """Ask for the leases of all that have spoken here, when that is due.  ``is_here`` tells whether one still does;
        it is not asked while ``changes`` stays the same."""
        if self._connection is None or not self._speakers:
            self._ping_at = float("inf")
            return
        if now >= self._ping_at:
            self._ping_at = now + self._interval_s
            gone = [borrower for borrower in self._speakers if not is_here(borrower)] if changes != self._looked else []
            if self._connection.send(m.encode(("", m.PingAll(self._seq + 1, gone)))):
                self._seq += 1
                self._asked[self._seq] = now
                if len(self._asked) > _QUESTIONS_KEPT:
                    self._asked.popitem(last=False)
                for borrower in gone:
                    del self._speakers[borrower]
                self._looked = changes
        self._ping_at = min(self._ping_at, now + self._interval_s)

    def is_known(self, changes: int) -> bool:
        """Whether all that have spoken here are still here."""
        return changes == self._looked

    def heard(self, answer: m.PingAllResponse) -> tuple[float, list[str]]:
        """When the question was sent, and the borrowers whose leases count from then on."""
        for borrower in answer.lost:
            self._speakers.pop(borrower, None)
        asked_at = self._asked.get(answer.answers)
        if asked_at is None:
            return 0.0, []
        return asked_at, [borrower for borrower, before in self._speakers.items() if before < answer.answers]

    def flush(self) -> None:
        if self._connection is not None:
            self._connection.flush()
            self._after_io()

    def receive(self) -> list[m.ToBorrower | m.PingAllResponse]:
        """What leaders say.  A connection on which something else comes is closed."""
        if self._connection is None:
            return []
        self._connection.flush()
        try:
            messages = [m.decode_to_borrower(body) for body in self._connection.receive()]
        except FrameError as error:
            self._counters["bad_messages"] += 1
            LOG.warning("The connection to the leader at %s was closed: %s", self._endpoint, error)
            messages = []
            self._connection.close()
        self._after_io()
        return messages

    def _after_io(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if not connection.is_open:
            self._counters["link_failures"] += 1
            self.close()
            return
        writing = selectors.EVENT_WRITE if connection.wants_to_write else 0
        self._selector.modify(connection.end, selectors.EVENT_READ | writing, self)

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._connection.end)
            self._connection.close()
            self._connection = None
        self._speakers.clear()
        self._asked.clear()
        self._interval_s = self._ping_at = float("inf")


class LeaderLinks:
    """Owned by the member's protocol thread."""

    def __init__(self, selector: selectors.BaseSelector, *, bytes_max: int) -> None:
        self.counters: Counter[str] = Counter()
        self._selector = selector
        self._bytes_max = bytes_max
        self._links: dict[tuple[str, bytes], LeaderLink] = {}
        """By where a leader is reached, and its key."""
        self._homes: dict[str, LeaderLink] = {}
        """By group."""
        self.moves = 0
        """Rises when a group has another leader."""

    @property
    def all(self) -> Collection[LeaderLink]:
        return self._links.values()

    def of(self, group: str) -> LeaderLink | None:
        """The way to the leader of a group; None when it has no leader."""
        return self._homes.get(group)

    def maintain(self, moved: Mapping[str, LeaderRecord | None], now: float) -> set[str]:
        """Let groups talk to the leaders that they have ``moved`` to, and connect where that is to be done.  Returns
        the groups whose leader can be asked something that it could not be before."""
        self.moves += len(moved)
        for group, leader in moved.items():
            former = self._homes.pop(group, None)
            if former is not None:
                former.groups.discard(group)
            if leader is not None:
                link = self._homes[group] = self._to(leader.endpoint, leader.key)
                link.groups.add(group)
        for place, link in list(self._links.items()):
            if not link.groups:
                link.close()
                del self._links[place]
        fresh = {group for group in moved if group in self._homes and self._homes[group].is_connected}
        return fresh.union(*(link.groups for link in self._links.values() if link.maintain(now)))

    def _to(self, endpoint: str, key: bytes) -> LeaderLink:
        if (endpoint, key) not in self._links:
            self._links[endpoint, key] = LeaderLink(
                self._selector, endpoint, key, self.counters, bytes_max=self._bytes_max
            )  # fmt: skip
        return self._links[endpoint, key]

    def close(self) -> None:
        for link in self._links.values():
            link.close()
