"""The publishers and streams a subscriber knows, within their bounds.

Bookkeeping only: which publishers are known, what leaves when there is no room, what is counted.  What
follows from it is decided by the subscriber core.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from pubsub_api.core import messages
from pubsub_api.core.frame import Header
from pubsub_api.core.receiving.instream import InStream, InStreamState
from pubsub_api.core.receiving.resync_requests import NEVER, LostRange
from pubsub_api.core.receiving.statistics import SubscriberCounters
from pubsub_api.core.settings import SubscriberSettings
from pubsub_api.core.topics import FilterSet

NEVER_BEAT = -(2**64)
_TIMERS_MIN = 64
"""So many timers are kept, however few streams there are."""

Timer = tuple[float, int, InStream]
"""When, a number that keeps the order, and of what."""


class InPublisher:
    """What a subscriber knows of one publisher."""

    __slots__ = (
        "_clock_ahead_ns", "_newest_beat", "baseline_at", "bye", "guid", "has_ended", "has_evicted", "has_told_age",
        "heads_asked", "is_again", "is_familiar", "is_heard", "is_replaced", "is_suspect", "known_since", "last_heard",
        "name", "start", "streams",
    )  # fmt: skip

    def __init__(self, guid: bytes, now: float) -> None:
        self.guid = guid
        self.name = ""
        self.known_since = self.last_heard = now
        self.baseline_at = float("-inf")
        """When all its heads were known, of the filters that were in effect then.  When it started they were all 0."""
        self.has_told_age = False
        self._clock_ahead_ns = (NEVER_BEAT, NEVER_BEAT)
        """By how much the last two signs of life were ahead of our clock when they came."""
        self._newest_beat = 0
        self.is_again = False
        """It has started again under its GUID: it sends what was sent before once more, under the same numbers."""
        self.has_evicted = False
        """Streams of it were forgotten for want of room, so one not seen before may be one seen before."""
        self.has_ended = False
        """It said goodbye, or its successor told its final heads."""
        self.is_replaced = False
        """Another bears its name now.  That it has ended is likely, not certain."""
        self.is_heard = False
        """It spoke to us itself; otherwise a cache remembers it."""
        self.is_familiar = False
        """It was heard when a join ended; one that is not may have had others before it that were never heard."""
        self.is_suspect = False
        self.heads_asked = float("-inf")
        self.start = messages.Parts()
        """What came of its first hello, which may tell the heads of its former life."""
        self.bye = messages.Parts()
        self.streams: dict[str, InStream] = {}

    def starts(self, stamp: int) -> None:
        """Its first hello came.  Of one life that has a lower timestamp than every other sign of it."""
        self.is_again |= 0 < self._newest_beat < stamp

    def started_at(self, moment: float) -> None:
        """It has started then, or later."""
        self.is_again |= moment > self.known_since

    def beat(self, stamp: int, now: float) -> None:
        """A sign of life of that timestamp came."""
        self._newest_beat = max(self._newest_beat, stamp)
        self._clock_ahead_ns = (self._clock_ahead_ns[1], stamp - int(now * 1e9))

    def clock_at_least(self, now: float) -> int:
        """What its clock shows now, or somewhat less: signs of life take their time.  0 when nothing is known."""
        return max(0, int(now * 1e9) + max(self._clock_ahead_ns))

    @property
    def has_holes(self) -> bool:
        """Something of it is missing, or waits."""
        return any(stream.state is not InStreamState.LIVE for stream in self.streams.values())


class Roster:
    def __init__(self, settings: SubscriberSettings, counters: SubscriberCounters) -> None:
        self._settings = settings
        self._counters = counters
        self.publishers: dict[bytes, InPublisher] = {}
        self._by_name: dict[str, dict[bytes, InPublisher]] = {}
        """The publishers that bear a name and may live."""
        self._without_streams: dict[bytes, InPublisher] = {}
        """Those of which nothing is at hand, the one known longest first: they leave before the others."""
        self._shared_names: set[str] = set()
        """Names that several living publishers bear; such a name cannot tell a restart."""
        self.parked_bytes = 0
        """Frames that wait behind holes, all streams together."""
        self._timers: list[Timer] = []
        self._timer_count = 0

    @property
    def is_full(self) -> bool:
        """There is no room for a further stream."""
        return self._counters.peers.streams >= self._settings.streams_max

    @property
    def is_crowded(self) -> bool:
        """There is no room for a further publisher."""
        return len(self.publishers) >= self._settings.publishers_max

    # -- publishers

    def add_publisher(self, guid: bytes, now: float) -> InPublisher:
        publisher = self.publishers[guid] = self._without_streams[guid] = InPublisher(guid, now)
        return publisher

    def oldest_publisher(self) -> InPublisher:
        """The one that is known longest, of those without streams when there are any: hellos alone are easily made."""
        return next(iter((self._without_streams or self.publishers).values()))

    def name(self, publisher: InPublisher, name: str) -> None:
        """The publisher says what it is called."""
        if name != publisher.name:
            self._forget_name(publisher)
            publisher.name = name
        if name and not publisher.is_replaced:
            self._by_name.setdefault(name, {})[publisher.guid] = publisher

    def _forget_name(self, publisher: InPublisher) -> None:
        bearers = self._by_name.get(publisher.name, {})
        if bearers.pop(publisher.guid, None) is not None and not bearers:
            del self._by_name[publisher.name]

    def forget_publisher(self, publisher: InPublisher) -> None:
        for topic in list(publisher.streams):
            self.forget_stream(publisher, topic)
        del self.publishers[publisher.guid]
        self._without_streams.pop(publisher.guid, None)
        self._forget_name(publisher)
        self._shared_names.discard(publisher.name)
        self._counters.peers.publishers_forgotten += 1

    def namesake(self, publisher: InPublisher, predecessor: bytes) -> InPublisher | None:
        """A publisher whose name this one bears, and whose end was not told: its former life, it seems."""
        if not publisher.name or publisher.name in self._shared_names:
            return None
        for other in list(self._by_name.get(publisher.name, {}).values()):
            if other.has_ended:
                self._forget_name(other)
            elif other is not publisher and other.guid != predecessor:
                return other
        return None

    def replace(self, former: InPublisher) -> None:
        """Another has taken its place, so its silence is no surprise any more."""
        former.is_replaced = former.is_suspect = True
        self._forget_name(former)
        self._counters.peers.restarts += 1

    def revive(self, publisher: InPublisher) -> None:
        """It was taken for replaced and says that it lives: so its name is shared by several."""
        publisher.is_replaced = publisher.is_suspect = False
        self._shared_names.add(publisher.name)
        self.name(publisher, publisher.name)

    def end(self, former: InPublisher) -> None:
        """All the final heads of a publisher are known."""
        self._counters.peers.restarts += not former.has_ended
        former.has_ended = True

    def note_familiar(self) -> None:
        """A join has ended: a publisher that was heard until now is no newcomer any more."""
        for publisher in self.publishers.values():
            publisher.is_familiar = publisher.is_heard

    def is_familiar(self, guid: bytes) -> bool:
        return guid in self.publishers and self.publishers[guid].is_familiar

    def is_verified(self, responders: Collection[bytes]) -> bool:
        """Whether every publisher that should be alive has told its heads, so that nothing can be missing unseen.

        A publisher that is new may be the second to start behind that link: nothing would tell of the first.
        """
        heard = [publisher for publisher in self.publishers.values() if publisher.is_heard]
        return bool(responders) and all(
            publisher.is_familiar and (publisher.has_ended or publisher.guid in responders) for publisher in heard
        )

    def may_answer(self, guid: bytes) -> bool:
        """Whether a publisher seems to live, so that a question it has not answered did not reach it, or was lost."""
        publisher = self.publishers[guid]
        # One that another seems to have replaced may live: what it had lost before was told when that was noticed, so
        # a hole of it is one of events that came later.
        is_gone = publisher.has_ended or (publisher.is_suspect and not publisher.is_replaced)
        return publisher.is_heard and not is_gone

    def lacks_answers(self, responders: Collection[bytes], *, of_familiar: bool = False) -> bool:
        """Whether a publisher that seems to live, or that seems so and was there before, has not answered."""
        return any(
            publisher.guid not in responders and (publisher.is_familiar or not of_familiar)
            for publisher in self.living()
        )

    def living(self) -> list[InPublisher]:
        """The publishers that spoke to us and have neither ended nor fallen silent."""
        return [
            publisher
            for publisher in self.publishers.values()
            if publisher.is_heard and not (publisher.has_ended or publisher.is_suspect)
        ]

    def look_for_silence(self, now: float) -> bool:
        """Suspect silent publishers, forget those that stay away.  True when nothing else tells what they sent."""
        is_unsure = False
        for publisher in list(self.publishers.values()):
            silent_for = now - publisher.last_heard
            if silent_for > self._settings.forget_time_s:
                has_holes = publisher.has_holes
                self.forget_publisher(publisher)
                # What it published since it fell silent, and before it died, nothing else would tell.
                is_unsure |= (publisher.is_suspect and not publisher.has_ended) or has_holes
            elif silent_for > self._settings.silence_timeout_s and publisher.is_heard and not publisher.is_suspect:
                publisher.is_suspect = True
                self._counters.peers.silences += not publisher.has_ended
                is_unsure |= not publisher.has_ended
        return is_unsure

    def excuse_silence(self, now: float) -> None:
        """We ourselves stood still: no publisher was silent."""
        self._counters.freezes += 1
        for publisher in self.publishers.values():
            publisher.last_heard = now

    # -- streams

    def set_timer(self, stream: InStream, deadline: float) -> None:
        """`due` returns the stream then, unless its deadline has changed meanwhile."""
        stream.deadline = deadline
        self._timer_count += 1
        if len(self._timers) > 2 * self._counters.peers.streams + _TIMERS_MIN:
            # Every part of a long answer puts off what waits for it: what was put off must not pile up.
            kept = {id(timer[2]): timer for timer in self._timers if _is_valid(timer)}
            self._timers = list(kept.values())
            heapq.heapify(self._timers)
        heapq.heappush(self._timers, (deadline, self._timer_count, stream))

    def next_timer(self) -> float:
        """When `due` has something to return; no thread is woken for what has changed meanwhile."""
        while self._timers and not _is_valid(self._timers[0]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else NEVER

    def due(self, now: float) -> Iterator[InStream]:
        told: set[tuple[float, int]] = set()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)
            deadline, _, stream = timer
            # Several parts of answers that come at one moment set the same time again: it is one deadline all the same.
            if _is_valid(timer) and (deadline, id(stream)) not in told:
                told.add((deadline, id(stream)))
                yield stream

    def add_stream(self, publisher: InPublisher, topic: str, number: int, *, is_anchored: bool) -> InStream:
        """A stream whose next event is expected to have that number; the oldest leaves when there is no room."""
        if self.is_full:
            self._evict_stream(publisher)
        stream = publisher.streams[topic] = InStream(publisher.guid, topic, number, is_anchored=is_anchored)
        self._without_streams.pop(publisher.guid, None)
        self._counters.peers.streams += 1
        return stream

    def _evict_stream(self, newcomer: InPublisher) -> None:
        """Forget the oldest stream of the largest publisher, and that its streams are known to start at 1."""
        owner = max((*self.publishers.values(), newcomer), key=lambda publisher: len(publisher.streams))
        self.forget_stream(owner, next(iter(owner.streams)))
        owner.has_evicted = True
        self._counters.peers.streams_evicted += 1

    def forget_stream(self, publisher: InPublisher, topic: str) -> None:
        stream = publisher.streams.pop(topic)
        if not publisher.streams:
            self._without_streams[publisher.guid] = publisher
        stream.deadline = -1.0
        self.parked_bytes -= stream.drop_parked()[0]
        self._counters.peers.streams -= 1

    def forget_unselected(self, filters: FilterSet) -> None:
        for publisher in self.publishers.values():
            for topic in [topic for topic in publisher.streams if not filters.match(topic)]:
                self.forget_stream(publisher, topic)

    def lost_range(self, where: Header | InStream, first: int, last: int) -> LostRange:
        publisher = self.publishers.get(where.guid)
        return LostRange(publisher.name if publisher else "", where.guid.hex(), where.topic, first, last)

    def drop_tail(self, stream: InStream) -> None:
        """Let go what the stream needs last: somewhat more than must go, so that this is not done for every frame."""
        freed, events = stream.drop_tail(self.parked_bytes - self._settings.pending_bytes_max * 7 // 8)
        self.parked_bytes -= freed
        self._counters.repair.unparked += events

    def has(self, guid: bytes, topic: str) -> bool:
        """Whether the stream is known."""
        publisher = self.publishers.get(guid)
        return publisher is not None and topic in publisher.streams

    def knows(self, stream: InStream) -> bool:
        """Whether the stream was not forgotten meanwhile."""
        publisher = self.publishers.get(stream.guid)
        return publisher is not None and publisher.streams.get(stream.topic) is stream


def _is_valid(timer: Timer) -> bool:
    """Whether the stream still waits for that moment."""
    return timer[0] == timer[2].deadline
