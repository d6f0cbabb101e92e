"""When repair is impossible: asking the user to read the truth again, rarely, and never forgetting to.

A resync that is requested is always emitted.  Requests are joined while one waits; a request after loss is delayed by
jitter, because a thousand subscribers see the same loss at the same moment; and two emissions keep a distance.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable

NEVER = float("inf")
TOPICS_MAX = 1000
LOST_RANGES_MAX = 100


class Reason(enum.Enum):
    """Why a resync is needed, most telling first: of several, the first here is reported."""

    INITIAL = "initial"
    """The subscriber is new: nothing that happened before is known to it."""
    LOSS = "loss"
    """Events are missing and no cache could supply them."""
    SLOW_CONSUMER = "slow consumer"
    """The callback did not keep up: its queue was full, and so was the room for what waits."""
    PENDING_FULL = "pending full"
    """More frames waited behind holes than ``pending_bytes_max`` allows, and the rest is not asked for."""
    UNDECODABLE = "undecodable"
    """A frame in sequence could not be decoded."""
    CONTRADICTION = "contradiction"
    """A publisher says that fewer events exist than had been heard of it before: one of both was forged or damaged."""
    PUBLISHER_RESTARTED = "publisher restarted"
    """A publisher came back under a new GUID and its former life's last events cannot be proven received."""
    SILENCE = "silence"
    """A publisher fell silent without saying goodbye."""
    RECONNECTED = "reconnected"
    """A link came back, and what passed meanwhile cannot be known."""
    NEW_LINK = "new link"
    """A link to a further publisher came up: its past is unknown."""
    UNKNOWN_STREAM = "unknown stream"
    """A stream was first seen in mid-flow, and it is not known where this subscriber should have begun."""
    SUBSCRIBED = "subscribed"
    """A topic filter was added."""
    HISTORY_REPLACED = "history replaced"
    """The services that keep the past now keep another: two sides of a split were joined, and one of them gave way."""


_PRIORITY = {reason: position for position, reason in enumerate(Reason)}


@dataclasses.dataclass(frozen=True)
class LostRange:
    """Events ``first`` to ``last`` of a stream, both included, that this subscriber will never see."""

    publisher: str
    guid: str
    topic: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.topic} {self.first}..{self.last} of {self.publisher or 'unnamed'} ({self.guid[:8]})"


@dataclasses.dataclass(frozen=True)
class Resync:
    """Loss as a value: read again what ``topics`` (topics or filters) cover; everything published until now counts."""

    reason: Reason
    topics: tuple[str, ...]
    generation: int
    """1, 2, 3, ... per subscriber."""
    lost: tuple[LostRange, ...] = ()
    """The exact ranges, as far as they are known; at most the first hundred."""
    reasons: frozenset[Reason] = frozenset()
    """All reasons that were joined into this resync."""


class ResyncScheduler:
    def __init__(self, *, jitter_s: float, interval_min_s: float, jitter: Callable[[], float]) -> None:
        self._jitter_s = jitter_s
        self._interval_min_s = interval_min_s
        self._jitter = jitter
        self.reasons: set[Reason] = set()
        """Of what waits to be emitted: empty when nothing does."""
        self._topics: dict[str, None] = {}
        self._is_of_all = False
        """Everything the subscriber selects is to be read again."""
        self._lost: list[LostRange] = []
        self._not_before = 0.0
        self._due = 0.0
        self.generation = 0
        self._is_blocked = False
        self.is_unsettled = False
        """Something waits to be emitted, or nothing may be: what is looked at for each frame."""

    @property
    def is_blocked(self) -> bool:
        """While set nothing is emitted: the queue it would have to pass is full."""
        return self._is_blocked

    @is_blocked.setter
    def is_blocked(self, is_blocked: bool) -> None:
        self._is_blocked = is_blocked
        self.is_unsettled = is_blocked or bool(self.reasons)

    def request(self, reason: Reason, topics: Iterable[str], now: float, lost: Iterable[LostRange] = ()) -> None:
        """Ask for a resync; joined with those that wait.  What a user waits for (INITIAL, SUBSCRIBED) has no jitter."""
        is_awaited = reason in (Reason.INITIAL, Reason.SUBSCRIBED) and now >= self._not_before
        due = now if is_awaited else max(now + self._jitter() * self._jitter_s, self._not_before)
        self._due = min(self._due, due) if self.reasons else due
        self.reasons.add(reason)
        self.is_unsettled = True
        self._topics.update(dict.fromkeys(topics))
        for lost_range in lost:
            self._add_lost(lost_range)

    def request_all(self, reason: Reason, now: float) -> None:
        """Ask for a resync of all that the filters select, which are looked at when it is emitted."""
        self._is_of_all = True
        self.request(reason, (), now)

    def _add_lost(self, lost: LostRange) -> None:
        """Remember a range, joined with the one before it when they touch: what is discarded comes frame by frame."""
        before = self._lost[-1] if self._lost else None
        if before and (before.guid, before.topic, before.last + 1) == (lost.guid, lost.topic, lost.first):
            self._lost[-1] = dataclasses.replace(before, last=lost.last)
        elif len(self._lost) < LOST_RANGES_MAX:
            self._lost.append(lost)

    @property
    def is_waiting(self) -> bool:
        return bool(self.reasons)

    @property
    def is_for_loss(self) -> bool:
        """Whether what waits are losses and nothing else."""
        return self.reasons == {Reason.LOSS}

    def next_deadline(self) -> float:
        return self._due if self.reasons and not self.is_blocked else NEVER

    def emit(self, now: float, filters: Iterable[str]) -> Resync | None:
        """The joined resync when it is due.  Too many topics are replaced by the subscriber's filters."""
        if not self.reasons or now < self._due or self.is_blocked:
            return None
        self.generation += 1
        self._not_before = now + self._interval_min_s
        is_of_all = self._is_of_all or len(self._topics) > TOPICS_MAX
        topics = tuple(filters) if is_of_all else tuple(self._topics)
        reason = min(self.reasons, key=_PRIORITY.__getitem__)
        resync = Resync(reason, topics, self.generation, tuple(self._lost), frozenset(self.reasons))
        self.reasons.clear()
        self._topics.clear()
        self._is_of_all = False
        self._lost.clear()
        self.is_unsettled = False
        return resync
