"""The questions a subscriber has out: which, why, and who has answered.

Every question goes to all responders; each of them marks its last answer.  When as many have finished as were asked,
the question is concluded early; otherwise its deadline concludes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from pubsub_api.core.frame import SEQUENCE_MAX
from pubsub_api.core.instream import InStream
from pubsub_api.core.messages import Parts, Query, Want
from pubsub_api.core.resync import NEVER, Reason
from pubsub_api.core.settings import History, SubscriberSettings
from pubsub_api.core.statistics import SubscriberCounters
from pubsub_api.core.topics import FilterSet

# Of joins that are absorbed, the first here stays: a resync that is awaited is not replaced by one that may be spared.
_JOIN_REASONS = (Reason.INITIAL, Reason.SUBSCRIBED, Reason.NEW_LINK, Reason.RECONNECTED)
WANTS_PER_QUERY_MAX = 200
JOIN_TIMEOUTS_MAX = 3
HURRY_MAX = 4
"""The first wait for an answer is the timeout, halved so many times at most."""
_ANSWER_TIMES = 2
"""An answer that takes so many times longer than answers do is lost, most likely."""


@dataclasses.dataclass(frozen=True)
class Join:
    """Filters that take effect, and why."""

    reason: Reason
    filters: tuple[str, ...]
    asked: float
    """When."""
    responders: frozenset[bytes] = frozenset()
    """Who has answered."""


@dataclasses.dataclass
class Purpose:
    join: Join | None = None
    streams: Sequence[tuple[InStream, int]] = ()
    """Whose holes it asks for, and up to which number."""
    is_baseline: bool = False
    """Asks for all heads of a publisher that the filters select."""
    asked: float = 0.0
    """When."""
    heard: float = 0.0
    """When a part of an answer came last."""
    expected: int | None = None
    answers: dict[bytes, Parts] = dataclasses.field(default_factory=dict)
    finished: set[bytes] = dataclasses.field(default_factory=set)
    """Responders whose answer came whole."""


class Questions:
    def __init__(
        self,
        settings: SubscriberSettings,
        counters: SubscriberCounters,
        *,
        guid: bytes,
        jitter: Callable[[], float],
        history: History | None,
    ) -> None:
        self._settings = settings
        self._counters = counters
        self.guid = guid
        self._jitter = jitter
        self._history = history
        self._next_id = 1
        self._open: dict[int, Purpose] = {}
        self._to_ask: list[Query] = []
        self._join_id = 0
        self._join_deadline = NEVER
        self._join_limit = 0.0
        self._next_periodic = NEVER
        self._answer_s: float | None = None
        """How long it takes until an answer begins: rises at once, falls slowly."""
        self._part_s = 0.0
        """The same for each further part of an answer."""

    def take(self) -> list[Query]:
        to_ask, self._to_ask = self._to_ask, []
        return to_ask

    def next_deadline(self) -> float:
        return min(self._join_deadline, self._next_periodic)

    def patience(self, attempts: int) -> float:
        """How long to wait for an answer to the attempt of that number: doubling, with up to half of it as jitter."""
        return float(self._settings.repair_timeout_s * 2.0**attempts * (1 + self._jitter() / 2))

    def part_patience(self, attempts: int) -> float:
        """How long to wait for the next part of an answer that has begun.

        It is on its way, behind the part that came: so it has at least the time that late frames have, and twice the
        time that parts take, though no more than ``repair_timeout`` for that reason alone.
        """
        usual_s = min(_ANSWER_TIMES * self._part_s, self._settings.repair_timeout_s)
        return max(self.patience(attempts), self._settings.message_delay_window_s, usual_s)

    @property
    def hurry(self) -> int:
        """How many attempts to make before that of number 0, because answers come sooner than ``repair_timeout``."""
        hurry = 0
        if self._answer_s is not None:
            first_wait_s = self._settings.repair_timeout_s
            while hurry < HURRY_MAX and first_wait_s / 2 >= _ANSWER_TIMES * self._answer_s:
                first_wait_s /= 2
                hurry += 1
        return hurry

    # -- asking

    def join(self, reason: Reason, filters: Iterable[str], now: float) -> None:
        """Ask for the heads of all streams that the filters select, before they are trusted.

        A join that is still open is absorbed: the new question asks for both.  That may put off the end of the first,
        but not for ever: a link that comes and goes must not keep the others waiting.
        """
        joined = dict.fromkeys(filters)
        pending = self._open.pop(self._join_id, None)
        if pending is None:
            self._join_limit = now + JOIN_TIMEOUTS_MAX * self._settings.ready_timeout_s
        if pending is not None and pending.join is not None:
            joined.update(dict.fromkeys(pending.join.filters))
            reason = min(reason, pending.join.reason, key=_JOIN_REASONS.index)
        history = self._history if reason is Reason.INITIAL else None
        self._join_id = self._ask(
            Purpose(join=Join(reason, tuple(joined), now), is_baseline=True, asked=now),
            Query(
                id=0,
                topics=list(joined),
                history=history is not None,
                newest=history.newest if history else 0,
                since=history.since if history else 0,
            ),
        )
        self._join_deadline = min(now + self._settings.ready_timeout_s, self._join_limit)

    def is_joining(self, topic: str) -> bool:
        """Whether a join is open that will resync the topic for certain."""
        purpose = self._open.get(self._join_id)
        if purpose is None or purpose.join is None or purpose.join.reason is Reason.RECONNECTED:
            return False
        return FilterSet(purpose.join.filters).match(topic)

    @property
    def is_reading_history(self) -> bool:
        """Whether the answers that are awaited hold what was published before."""
        purpose = self._open.get(self._join_id)
        is_first = purpose is not None and purpose.join is not None and purpose.join.reason is Reason.INITIAL
        return is_first and self._history is not None

    def heads_of(self, guid: bytes, filters: Iterable[str], now: float) -> None:
        """Ask one publisher for its heads: it is new, or it was silent."""
        self._ask(Purpose(is_baseline=True, asked=now), Query(id=0, topics=list(filters), guid=guid))

    def repair(self, streams: Sequence[InStream], now: float, events_max: int) -> int:
        """Ask for what the streams miss, many streams in a question; returns how many questions that took.

        Of each stream no more than ``events_max`` numbers from the next one on are asked for: more would find no room.
        """
        asked = 0
        wants: list[Want] = []
        askers: list[tuple[InStream, int]] = []
        for stream in streams:
            # A question must fit a frame, its answer the room there is; the rest is asked when this part has come.
            ranges = list(_upto(stream.next + events_max - 1, stream.missing()[:WANTS_PER_QUERY_MAX]))
            stream.asked = ranges[-1][1]
            askers.append((stream, stream.asked))
            wants += [Want(stream.guid, stream.topic, first, last) for first, last in ranges]
            if len(wants) >= WANTS_PER_QUERY_MAX:
                self._ask(Purpose(streams=askers, asked=now), Query(id=0, wants=wants))
                wants, askers, asked = [], [], asked + 1
        if wants:
            self._ask(Purpose(streams=askers, asked=now), Query(id=0, wants=wants))
            asked += 1
        return asked

    def ranges(self, wants: Sequence[Want], now: float) -> int:
        """Ask for ranges that no stream waits for any more; returns how many questions that took."""
        starts = range(0, len(wants), WANTS_PER_QUERY_MAX)
        for start in starts:
            self._ask(Purpose(asked=now), Query(id=0, wants=list(wants[start : start + WANTS_PER_QUERY_MAX])))
        return len(starts)

    def _ask(self, purpose: Purpose, query: Query) -> int:
        query.id = self._next_id
        self._next_id = self._next_id % SEQUENCE_MAX + 1
        if len(self._open) >= self._settings.questions_max:
            # The oldest will hardly be answered; but the join must end, for somebody waits for its resync.
            self._open.pop(next(oldest for oldest in self._open if oldest != self._join_id))
            self._counters.questions_evicted += 1
        self._open[query.id] = purpose
        self._to_ask.append(query)
        return query.id

    # -- answers

    def purpose(self, query_id: int) -> Purpose | None:
        return self._open.get(query_id)

    def asked(self, query_id: int, responders: int | None) -> bool:
        """Note how many were asked; True when that concludes the question."""
        purpose = self._open.get(query_id)
        if purpose is None or responders is None:
            return False
        purpose.expected = responders
        return len(purpose.finished) >= responders

    def answered(self, query_id: int, responder: bytes, part: int, parts: int, now: float) -> bool:
        """A part of an answer came; the last part states how many there are.  True when that concludes the question.

        An answer of which a part was lost never concludes: the asker's deadline does, and it asks again.
        """
        purpose = self._open[query_id]
        if responder in purpose.answers:
            self._part_s = _smoothed(self._part_s, now - purpose.heard)
        else:
            self._answer_s = _smoothed(self._answer_s, now - purpose.asked)
        purpose.heard = now
        if purpose.answers.setdefault(responder, Parts()).add(part, parts):
            purpose.finished.add(responder)
        return purpose.expected is not None and len(purpose.finished) >= purpose.expected

    def close(self, query_id: int) -> Purpose | None:
        """The question is concluded; its join knows how many answered."""
        purpose = self._open.pop(query_id, None)
        if purpose is not None and purpose.join is not None:
            self._join_deadline = NEVER
            purpose.join = dataclasses.replace(purpose.join, responders=frozenset(purpose.finished))
        return purpose

    def start_periodic(self, now: float) -> None:
        """The subscription is in effect: from now on ask for all heads every ``query_interval``."""
        if self._settings.query_interval_s and self._next_periodic == NEVER:
            self._next_periodic = now + self._settings.query_interval_s

    def overdue(self, now: float, filters: Iterable[str]) -> Iterator[Join]:
        """The join whose deadline has passed, with whatever was answered; asks the periodic question when it is due."""
        if now >= self._join_deadline:
            purpose = self.close(self._join_id)
            if purpose is not None and purpose.join is not None:
                yield purpose.join
        if now >= self._next_periodic:
            self._ask(Purpose(asked=now), Query(id=0, topics=list(filters)))
            self._next_periodic = now + self._settings.query_interval_s

    def history_start(self, head: int) -> int | None:
        """The first number that the history asked for includes, of a stream with that head; None: no history."""
        if self._history is None or self._join_id not in self._open:
            return None
        return max(1, head - self._history.newest + 1) if self._history.newest else 1


def _smoothed(before: float | None, seconds: float) -> float:
    """An estimate that rises at once and falls slowly."""
    return seconds if before is None else max(seconds, (3 * before + seconds) / 4)


def _upto(limit: int, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges as far as they are not beyond ``limit``."""
    for first, last in ranges:
        if first <= limit:
            yield first, min(last, limit)
