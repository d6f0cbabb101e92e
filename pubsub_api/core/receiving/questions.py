"""The questions a subscriber has out: which, why, and which peers have answered.

Every question goes to all responders; each of them marks its last answer.  When as many have finished as were asked,
the question is concluded early; otherwise its deadline concludes it.  A question that reached no peer was not asked: no
conclusion is drawn from it.

The question of a join is asked again while answers to it lack, each time under a number of its own, since the parts of
two answers must not be mixed.  A peer that has answered any of them has answered.

Where the driver asks by scope (`pubsub_api.core.scopes`), one purpose may take several questions.  It is served when
all of them are answered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from pubsub_api.core import scopes
from pubsub_api.core.frame import FRAME_OVERHEAD_BYTES_MAX, SEQUENCE_MAX
from pubsub_api.core.messages import FILTERS_PER_QUERY_MAX, Parts, Query, Want
from pubsub_api.core.receiving.instream import InStream
from pubsub_api.core.receiving.resync_requests import NEVER, Reason
from pubsub_api.core.receiving.statistics import SubscriberCounters
from pubsub_api.core.settings import SubscriberSettings
from pubsub_api.core.topics import FilterSet

# Of joins that are absorbed, the first here stays: a resync that is awaited is not replaced by one that may be spared.
_JOIN_REASONS = (Reason.INITIAL, Reason.SUBSCRIBED, Reason.NEW_LINK, Reason.RECONNECTED)
WANTS_PER_QUERY_MAX = 200
JOIN_TIMEOUTS_MAX = 3
_JOIN_PATIENCE_TIMEOUTS = 2
"""A join whose responders are known, and have not all answered, waits for them so many times ``ready_timeout``."""
_FIRST_JOIN_WAIT = 1 / 16
"""Of ``ready_timeout``, until the question of a join is asked again; doubles."""
_FIRST_HISTORY_WAIT = 1 / 2
"""The same when its answer holds what was published before, and is long."""
_LAST_JOIN_WAIT = 1 / 4
"""The longest of these waits."""
HURRY_MAX = 4
"""The first wait for an answer is the timeout, halved so many times at most."""
HEADS_QUESTIONS_MAX = 32
"""To single publishers, in one ``ready_timeout``: more than that many newcomers at once are asked together."""
_TEXT_OVERHEAD_BYTES = 5
"""Of a text in msgpack, at the most."""
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
    """The peers that have answered."""


@dataclasses.dataclass
class Question:
    """One that is out, and the peers that have answered it."""

    scope: str
    expected: int | None = None
    answers: dict[bytes, Parts] = dataclasses.field(default_factory=dict)
    finished: set[bytes] = dataclasses.field(default_factory=set)
    """Responders whose answer came whole."""

    @property
    def is_answered(self) -> bool:
        return self.expected is not None and len(self.finished) >= self.expected


@dataclasses.dataclass
class QuestionPurpose:
    join: Join | None = None
    streams: Sequence[tuple[InStream, int]] = ()
    """Whose holes it asks for, and up to which number."""
    is_baseline: bool = False
    """Asks for all heads of a publisher that the filters select."""
    asked: float = 0.0
    """When."""
    heard: float = 0.0
    """When a part of an answer came last."""
    questions: dict[int, Question] = dataclasses.field(default_factory=dict)
    """Id -> what was asked for it."""

    @property
    def finished(self) -> set[bytes]:
        """Responders that have answered all of it."""
        return set.intersection(*(question.finished for question in self.questions.values()))

    @property
    def is_answered(self) -> bool:
        return all(question.is_answered for question in self.questions.values())


class SubscriberQuestions:
    def __init__(
        self,
        settings: SubscriberSettings,
        counters: SubscriberCounters,
        filters: FilterSet,
        *,
        guid: bytes,
        jitter: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._counters = counters
        self.guid = guid
        self._jitter = jitter
        self._history = settings.history
        self.filters = filters
        """What the subscriber listens to, which says in which scope it asks for a topic."""
        self._next_id = 1
        self._open: dict[int, QuestionPurpose] = {}
        self._to_ask: list[Query] = []
        self._joins: list[QuestionPurpose] = []
        """The join that is open, once for each time that its question was asked."""
        self._join_deadline = NEVER
        self._join_limit = 0.0
        self._join_again = NEVER
        self._join_wait_s = 0.0
        self._next_periodic = NEVER
        self._heads_questions = 0
        """To single publishers, since the time below."""
        self._heads_since = float("-inf")
        self._all_heads_due = NEVER
        """When all publishers are asked for their heads, because too many would have been asked one by one."""
        self._answer_s: float | None = None
        """How long it takes until an answer begins: rises at once, falls slowly."""
        self._part_s = 0.0
        """The same for each further part of an answer."""

    def take(self) -> list[Query]:
        to_ask, self._to_ask = self._to_ask, []
        return to_ask

    def next_deadline(self) -> float:
        return min(self._join_deadline, self._join_again, self._next_periodic, self._all_heads_due)

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
        pending = self._joining
        self._close_join()
        if pending is None:
            self._join_limit = now + JOIN_TIMEOUTS_MAX * self._settings.ready_timeout_s
        else:
            joined.update(dict.fromkeys(pending.filters))
            reason = min(reason, pending.reason, key=_JOIN_REASONS.index)
        first_wait = _FIRST_HISTORY_WAIT if self._history and reason is Reason.INITIAL else _FIRST_JOIN_WAIT
        self._join_wait_s = first_wait * self._settings.ready_timeout_s
        self._join_deadline = min(now + self._settings.ready_timeout_s, self._join_limit)
        self._ask_join(Join(reason, tuple(joined), now), now)

    def _ask_join(self, join: Join, now: float) -> None:
        """Ask the question of a join, perhaps again."""
        history = self._history if join.reason is Reason.INITIAL else None
        purpose = QuestionPurpose(join=join, is_baseline=True, asked=now, heard=now)
        query = Query(
            id=0,
            history=history is not None,
            newest=history.newest if history else 0,
            since=history.since if history else 0,
        )
        self._joins.append(purpose)
        self._ask(purpose, query, join.filters)
        before = {question.scope: question for question in self._joins[0].questions.values()}
        for question in purpose.questions.values():
            question.finished = before[question.scope].finished
            question.expected = before[question.scope].expected
        self._join_again = now + self._join_wait_s * (1 + self._jitter() / 2)
        self._join_wait_s = min(2 * self._join_wait_s, _LAST_JOIN_WAIT * self._settings.ready_timeout_s)

    @property
    def _joining(self) -> Join | None:
        """The join that is open."""
        return self._joins[-1].join if self._joins else None

    def _close_join(self) -> None:
        for purpose in self._joins:
            self._forget(purpose)
        self._joins = []
        self._join_deadline = self._join_again = NEVER

    def is_joining(self, topic: str) -> bool:
        """Whether a join is open that will resync the topic for certain."""
        join = self._joining
        if join is None or join.reason is Reason.RECONNECTED:
            return False
        return FilterSet(join.filters).match(topic)

    @property
    def is_reading_history(self) -> bool:
        """Whether the answers that are awaited hold what was published before."""
        join = self._joining
        return join is not None and join.reason is Reason.INITIAL and self._history is not None

    def heads_of(self, guid: bytes, filters: Iterable[str], now: float) -> None:
        """Ask one publisher for its heads: it is new, or it was silent.  Of many, ask all of them, somewhat later."""
        if now - self._heads_since >= self._settings.ready_timeout_s:
            self._heads_since, self._heads_questions = now, 0
        self._heads_questions += 1
        if self._heads_questions > HEADS_QUESTIONS_MAX:
            self._all_heads_due = min(self._all_heads_due, self._heads_since + self._settings.ready_timeout_s)
            return
        self._ask(QuestionPurpose(is_baseline=True, asked=now), Query(id=0, guid=guid), filters)

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
                asked += self._ask_ranges(wants, askers, now)
                wants, askers = [], []
        if wants:
            asked += self._ask_ranges(wants, askers, now)
        return asked

    def doubt(self, stream: InStream, now: float) -> int:
        """Ask for the newest number of a stream, which may not exist; returns how many questions that took."""
        head = stream.head
        return self._ask_ranges([Want(stream.guid, stream.topic, head, head)], [(stream, head)], now)

    def _ask_ranges(self, wants: list[Want], askers: Sequence[tuple[InStream, int]], now: float) -> int:
        """Returns how many questions that took."""
        purpose = QuestionPurpose(streams=askers, asked=now)
        self._ask(purpose, Query(id=0, wants=wants))
        return len(purpose.questions)

    def ranges(self, wants: Sequence[Want], now: float) -> int:
        """Ask for ranges that no stream waits for any more; returns how many questions that took."""
        starts = range(0, len(wants), WANTS_PER_QUERY_MAX)
        return sum(self._ask_ranges(list(wants[start : start + WANTS_PER_QUERY_MAX]), (), now) for start in starts)

    def _ask(self, purpose: QuestionPurpose, query: Query, filters: Iterable[str] = ()) -> None:
        """Ask for ranges, or for streams that the filters select, in as many questions as there are scopes."""
        for one in self._by_scope(query, filters):
            one.id = self._next_id
            self._next_id = self._next_id % SEQUENCE_MAX + 1
            self._make_room(purpose)
            self._open[one.id] = purpose
            purpose.questions[one.id] = Question(one.scope)
            self._to_ask.append(one)

    def _by_scope(self, query: Query, filters: Iterable[str]) -> Iterator[Query]:
        """The question, divided into one for each scope; a single one when the driver does not ask by scope."""
        scopes_max = self._settings.scopes_max
        if query.wants and scopes_max:
            wants = ((scopes.scope_of_topic(want.topic, self.filters), want) for want in query.wants)
            for scope, some_wants in scopes.group(wants, scopes_max).items():
                yield msgspec.structs.replace(query, scope=scope, wants=some_wants)
        elif query.wants or not scopes_max:
            yield msgspec.structs.replace(query, topics=self._askable(list(filters), scopes.ALL))
        else:
            topics = ((scopes.scope_of(topic_filter), topic_filter) for topic_filter in filters)
            for scope, some_topics in scopes.group(topics, scopes_max).items():
                yield msgspec.structs.replace(query, scope=scope, topics=self._askable(some_topics, scope))

    def _askable(self, filters: list[str], scope: str) -> list[str]:
        """The filters, or the whole scope when they do not fit a question; what is not wanted then is dropped."""
        size = sum(len(topic_filter.encode()) + _TEXT_OVERHEAD_BYTES for topic_filter in filters)
        room = self._settings.frame.bytes_max - FRAME_OVERHEAD_BYTES_MAX - _TEXT_OVERHEAD_BYTES
        return filters if len(filters) <= FILTERS_PER_QUERY_MAX and size <= room // 2 else [scope]

    def _make_room(self, purpose: QuestionPurpose) -> None:
        """Evict a question when too many are open.

        The oldest will hardly be answered; but the join must end, for the program waits for its resync.
        """
        if len(self._open) < self._settings.questions_max:
            return
        others = (query_id for query_id, held in self._open.items() if held is not purpose and held.join is None)
        oldest = next(others, None)
        if oldest is not None:
            del self._open[oldest]
            self._counters.repair.questions_evicted += 1

    def _forget(self, purpose: QuestionPurpose) -> None:
        """None of the questions that it took is open any more."""
        for query_id in purpose.questions:
            self._open.pop(query_id, None)

    # -- answers

    def purpose(self, query_id: int) -> QuestionPurpose | None:
        return self._open.get(query_id)

    def asked(self, query_id: int, responders: int | None, *, is_any_known: bool) -> bool:
        """Note how many were asked; True when that concludes the question.

        A question that reached no peer was not asked.  Only a join that will be told anyway, and for which no peer is
        known that could have been reached, need not wait.
        """
        purpose = self._open.get(query_id)
        if purpose is None or responders is None:
            return False
        question = purpose.questions[query_id]
        if not responders:
            join = purpose.join
            if join is None or join.reason is Reason.RECONNECTED or is_any_known:
                return False
        asked = self._joins if purpose.join is not None else [purpose]
        for same in (one for held in asked for one in held.questions.values() if one.scope == question.scope):
            same.expected = responders
        return purpose.is_answered

    def answered(self, query_id: int, responder: bytes, part: int, parts: int, now: float) -> bool:
        """A part of an answer came; the last part states how many there are.  True when that concludes the question.

        An answer of which a part was lost never concludes: the asker's deadline does, and it asks again.
        """
        purpose = self._open[query_id]
        question = purpose.questions[query_id]
        if responder in question.answers:
            self._part_s = _smoothed(self._part_s, now - purpose.heard)
        else:
            self._answer_s = _smoothed(self._answer_s, now - purpose.asked)
        purpose.heard = now
        if question.answers.setdefault(responder, Parts()).add(part, parts):
            question.finished.add(responder)
        return purpose.is_answered

    def close(self, query_id: int) -> QuestionPurpose | None:
        """The question is concluded; its join knows which peers answered."""
        purpose = self._open.get(query_id)
        if purpose is None:
            return None
        if purpose.join is None:
            self._forget(purpose)
        else:
            self._close_join()
            purpose.join = dataclasses.replace(purpose.join, responders=frozenset(purpose.finished))
        return purpose

    def start_periodic(self, now: float) -> None:
        """The subscription is in effect: from now on ask for all heads every ``query_interval``."""
        if self._settings.query_interval_s and self._next_periodic == NEVER:
            self._next_periodic = now + self._settings.query_interval_s

    def overdue(
        self, now: float, filters: Iterable[str], lacks_answers: Callable[[Collection[bytes]], bool]
    ) -> Iterator[Join]:
        """The join whose deadline has passed, with whatever was answered; asks those questions that are due.

        ``lacks_answers`` says whether a peer is known that is not among those that have answered.
        """
        if now >= min(self._join_deadline, self._join_again):
            last = self._joins[-1]
            if now >= self._join_deadline and not self._waits_on(last, now):
                self.close(next(iter(last.questions)))
                assert last.join is not None
                yield last.join
            else:
                self._ask_join_again(last, now, lacks_answers)
        if now >= self._all_heads_due:
            self._all_heads_due = NEVER
            self._ask(QuestionPurpose(is_baseline=True, asked=now), Query(id=0), filters)
        if now >= self._next_periodic:
            self._ask(QuestionPurpose(asked=now), Query(id=0), filters)
            self._next_periodic = now + self._settings.query_interval_s

    def _waits_on(self, last: QuestionPurpose, now: float) -> bool:
        """Whether a join whose time is over goes on, since it is known that a peer has not answered."""
        is_known = all(question.expected is not None for question in last.questions.values())
        if last.join is None or not is_known or last.is_answered:
            return False
        until = min(last.join.asked + _JOIN_PATIENCE_TIMEOUTS * self._settings.ready_timeout_s, self._join_limit)
        self._join_deadline = max(until, self._join_deadline)
        return now < until

    def _ask_join_again(
        self, last: QuestionPurpose, now: float, lacks_answers: Callable[[Collection[bytes]], bool]
    ) -> None:
        """The join is open still.  Its question is asked again when an answer to it lacks, and none is under way."""
        heard = max(purpose.heard for purpose in self._joins)
        if not (any(map(self._is_lacking, self._joins)) or lacks_answers(last.finished)):
            self._join_again = now + self._join_wait_s
        elif heard > last.asked and now < heard + self._join_wait_s:
            self._join_again = heard + self._join_wait_s
        elif last.join is not None:
            self._ask_join(last.join, now)

    def _is_lacking(self, asked: QuestionPurpose) -> bool:
        """Whether an answer has not come, or not whole.  Where their number is not known, any answer will do."""
        return any(
            not question.finished or not question.answers.keys() <= question.finished
            if question.expected is None
            else not question.is_answered
            for question in asked.questions.values()
        )

    def history_start(self, head: int) -> int | None:
        """The first number that the history asked for includes, of a stream with that head; None: no history."""
        if self._history is None or not self._joins:
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
