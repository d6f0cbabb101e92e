"""Where streams begin: which numbers a subscriber is owed of a stream that it has not met before.

Sans-IO.  A stream that appears begins at 1 where it is known to be new: because its publisher told all its heads after
the filters were joined, because it was heard to start, because it is the next life of one that was known, or because it
is younger than the subscription.  A publisher proves the latter by its age: it answers after it was asked, so it
started no earlier than its age before the question, whatever the clocks of two machines show.  Everything else was met
in mid-flow.  It waits until its publisher was asked, and if that proves nothing, it is a resync.

And heads: what frames tell of the newest number of a stream.  A publisher's timestamps never fall, so a frame that is
late, or comes again, is told from one that contradicts what was heard before (`InStream.contradicts_data`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pubsub_api.core import messages
from pubsub_api.core.errors import ImplausibleHead
from pubsub_api.core.receiving.instream import HEAD_JUMP_MAX, NO_STAMP, InStream, InStreamState, StreamCause
from pubsub_api.core.receiving.order import StreamOrder
from pubsub_api.core.receiving.questions import SubscriberQuestions
from pubsub_api.core.receiving.resync_requests import Reason, ResyncScheduler
from pubsub_api.core.receiving.roster import InPublisher, Roster
from pubsub_api.core.receiving.statistics import SubscriberCounters
from pubsub_api.core.settings import SubscriberSettings
from pubsub_api.core.topics import FilterSet

CLOCK_DRIFT = 0.001
"""By how much clocks of two machines run differently at most, as a share of the time that passes."""
_UNKNOWN_ATTEMPTS = 4
"""How often a publisher is asked, within ``ready_timeout``, where a stream begins that was met in mid-flow."""


class StreamStarts:
    """Which publishers there are, and where their streams begin.  Not thread-safe: the owner serialises calls."""

    def __init__(
        self,
        settings: SubscriberSettings,
        counters: SubscriberCounters,
        filters: FilterSet,
        *,
        roster: Roster,
        questions: SubscriberQuestions,
        resync: ResyncScheduler,
        order: StreamOrder,
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._filters = filters
        self._roster = roster
        self._questions = questions
        self._resync = resync
        self._order = order
        self._publishers = roster.publishers
        self.joined = FilterSet()
        """The filters in effect whose heads were asked for."""
        self._joined_at = float("-inf")
        """When the heads under the newest of them were asked for; what was known before says nothing about it."""

    def join(self, filters: Iterable[str], asked: float) -> bool:
        """The heads under these filters were asked for at that time.  True when one of them is new."""
        is_new = False
        for topic_filter in filters:
            is_new |= topic_filter in self._filters and self.joined.add(topic_filter)
        if is_new:
            self._joined_at = asked
        return is_new

    # -- publishers

    def publisher(self, guid: bytes, now: float) -> InPublisher:
        publisher = self._publishers.get(guid)
        if publisher is None:
            if self._roster.is_crowded:
                self._evict_publisher(now)
            publisher = self._roster.add_publisher(guid, now)
        return publisher

    def _evict_publisher(self, now: float) -> None:
        """Forget the publisher that is known longest; when it lives it will be found again, and resynced."""
        oldest = self._roster.oldest_publisher()
        has_holes = oldest.has_holes
        self._roster.forget_publisher(oldest)
        if has_holes or (oldest.is_heard and not oldest.has_ended):
            self.resync_all(Reason.SILENCE, now)

    def heard(self, guid: bytes, now: float) -> InPublisher:
        publisher = self._publishers.get(guid) or self.publisher(guid, now)
        publisher.last_heard = now
        publisher.is_heard = True
        # Of one that was replaced these may be the last frames, late; only its own hello tells that it lives.
        if publisher.is_suspect and not publisher.is_replaced:
            publisher.is_suspect = False
            self.ask_heads(publisher, now)
        return publisher

    def ask_heads(self, publisher: InPublisher, now: float, *, after_s: float | None = None) -> None:
        """Ask for a publisher's heads, not more often than an answer can take, nor when there is no room for them."""
        after_s = self._settings.ready_timeout_s if after_s is None else after_s
        if now - publisher.heads_asked >= after_s and not publisher.has_evicted:
            publisher.heads_asked = now
            self._questions.heads_of(publisher.guid, self._filters, now)

    def resync_all(self, reason: Reason, now: float) -> None:
        """Ask for everything again; before the first join nothing was promised, and its own resync covers all."""
        if len(self.joined):
            self._resync.request_all(reason, now)

    # -- where the streams of a publisher begin

    def knows_starts(self, publisher: InPublisher) -> bool:
        """Whether a stream of the publisher that is not known is new, and starts at 1."""
        return publisher.baseline_at >= self._joined_at and not publisher.has_evicted

    def on_succession(self, publisher: InPublisher, hello: messages.Hello, now: float) -> None:
        """A publisher tells the final heads of its former life, also to subscribers that never heard of it."""
        former = self.publisher(hello.predecessor, now)
        for topic, head in hello.heads.items():
            self.note_head(former, topic, head, None, now, is_final=True)
        if publisher.start.add(hello.part, hello.parts):
            self._roster.end(former)

    def on_ancestry(self, publisher: InPublisher, former: Sequence[bytes], now: float) -> None:
        """A publisher names its former lives, the newest first.  When one of them is known, all that came after it is
        known by now, and whatever they published is new to us, from number 1 on."""
        known = next((at for at, guid in enumerate(former) if self._roster.is_familiar(guid)), None)
        if publisher.is_familiar or known is None:
            return
        publisher.is_familiar = True
        for life in (publisher, *(self.publisher(guid, now) for guid in former[:known])):
            life.baseline_at = now
            self._begin_unknown(life, now)

    def on_age(self, publisher: InPublisher, asked: float, age_s: float, now: float) -> None:
        """A publisher tells how old it was when it answered, which was after it was asked.

        So it has started no earlier than that many seconds before the question; then all its heads were 0.  A publisher
        younger than the subscription owes everything it ever published.
        """
        if age_s == messages.AGE_UNKNOWN:
            return
        publisher.has_told_age = True
        started = asked - age_s * (1 + CLOCK_DRIFT)
        publisher.started_at(started)
        publisher.baseline_at = max(publisher.baseline_at, started)
        if self.knows_starts(publisher):
            self._begin_unknown(publisher, now)

    def _begin_unknown(self, publisher: InPublisher, now: float) -> None:
        """All that the publisher sent is new to us: its streams that were met in mid-flow are wanted from 1 on."""
        for stream in publisher.streams.values():
            if not stream.is_anchored and self.joined.match(stream.topic):
                self._order.begin(stream, 1, now)

    # -- streams that appear

    def open_stream(self, publisher: InPublisher, topic: str, after: int, now: float) -> InStream | None:
        """A stream appeared of which number ``after`` exists; None when it was not asked for."""
        if not self._filters.match(topic):
            return None
        if not self.joined.match(topic):
            stream = self._roster.add_stream(publisher, topic, after + 1, is_anchored=False)
            stream.move(StreamCause.GIVE_UP)
            return stream
        if self.knows_starts(publisher) or (after == 0 and not publisher.has_evicted):
            return self._roster.add_stream(publisher, topic, 1, is_anchored=True)
        stream = self._roster.add_stream(publisher, topic, after + 1, is_anchored=False)
        stream.move(StreamCause.GIVE_UP)
        self.ask_heads(publisher, now)
        is_stranger = not publisher.has_told_age or (
            self._settings.verify_after_reconnect and not publisher.is_familiar
        )
        if is_stranger or publisher.has_evicted:
            # A peer that has answered before will again; other words are believed without an answer.
            stream.forgotten = after
        if is_stranger and not publisher.has_evicted:
            # It may be younger than the subscription, or the next life of one that is known: then nothing is missing
            # unseen, and it will say so.
            self._roster.set_timer(stream, now + self._settings.ready_timeout_s / _UNKNOWN_ATTEMPTS)
        else:
            self._resync_unknown(topic, now)
        return stream

    def still_unknown(self, stream: InStream, now: float) -> None:
        """The publisher of a stream that was met in mid-flow did not answer yet: ask again, a few times."""
        stream.attempts += 1
        if (
            stream.state is InStreamState.RESYNCING
            and stream.attempts < _UNKNOWN_ATTEMPTS
            and self._roster.knows(stream)
        ):
            wait_s = self._settings.ready_timeout_s / _UNKNOWN_ATTEMPTS
            self.ask_heads(self._publishers[stream.guid], now, after_s=wait_s / 2)
            self._roster.set_timer(stream, now + wait_s)
        else:
            self._stay_unknown(stream, now)

    def _stay_unknown(self, stream: InStream, now: float) -> None:
        """Its publisher did not say, or not in time, that it continues one that is known."""
        if not stream.deadline or stream.state is not InStreamState.RESYNCING:
            return
        stream.deadline = 0.0
        stream.attempts = 0
        if not stream.covered:
            self._resync_unknown(stream.topic, now)
            return
        # A resync was told meanwhile, and covers what was before it; but not what may have been lost since.
        if not stream.is_anchored:
            self._order.tell_past(stream, stream.next - 1, now)
        self._order.begin(stream, stream.next, now)

    def _resync_unknown(self, topic: str, now: float) -> None:
        """It is not known what was missed of a stream; a join that is open will resync it anyway."""
        if not self._questions.is_joining(topic):
            self._resync.request(Reason.UNKNOWN_STREAM, [topic], now)

    # -- heads

    def on_baseline(
        self, publisher: InPublisher, topic: str, head: int, stamp: int, now: float, *, is_final: bool = False
    ) -> None:
        """A responder says where a stream stood when we asked; no event up to there has a higher timestamp.

        ``is_final``: its publisher's next life says so.
        """
        if not publisher.is_heard:
            # As long as a cache tells of it, forgetting it would only mean to be surprised by it again.
            publisher.last_heard = now
        if not self._filters.match(topic):
            return
        stream = publisher.streams.get(topic)
        if stream is not None and is_final and (head < stream.next - 1 or stream.contradicts_end(head)):
            self.note_head(publisher, topic, head, None, now, is_final=True)
        elif stream is not None and stream.is_anchored:
            self._raise_head(stream, head, stamp, now, is_shown=True)
        elif stream is not None:
            if stream.deadline and stamp == NO_STAMP and not is_final:
                return  # a cache was faster than the publisher, which has some time to prove that nothing is missing
            self._anchor(stream, head, stamp, now)
            self._stay_unknown(stream, now)
        elif self.joined.match(topic) and (self.knows_starts(publisher) or not head):
            if head:
                stream = self._roster.add_stream(publisher, topic, 1, is_anchored=True)
                self._raise_head(stream, head, stamp, now, is_shown=True)
        elif self._roster.is_full:
            # Only what is heard may push others out; a stream that lives will be.
            publisher.has_evicted = True
        elif stamp == NO_STAMP and not is_final and self.joined.match(topic):
            self.open_stream(publisher, topic, head, now)
        else:
            stream = self._roster.add_stream(publisher, topic, head + 1, is_anchored=False)
            self._anchor(stream, head, stamp, now)
            stream.move(StreamCause.GIVE_UP)
            if self.joined.match(topic):
                self._resync_unknown(topic, now)

    def _anchor(self, stream: InStream, head: int, stamp: int, now: float) -> None:
        """From this baseline on numbers are checked; with history, from where it begins.

        What has come of a stream that was met in mid-flow, before its publisher answered, is not dropped for that.
        """
        first = min(stream.next, head + 1) if stream.deadline else head + 1
        self._order.tell_past(stream, first - 1, now)
        stream.is_anchored = True
        stream.forgotten = 0
        stream.next = self._questions.history_start(head) or first
        stream.show(head, stamp)

    def note_head(
        self, publisher: InPublisher, topic: str, head: int, stamp: int | None, now: float, *, is_final: bool = False
    ) -> None:
        """Number ``head`` of a stream exists, and no higher one did at ``stamp``, if that is known."""
        stream = publisher.streams.get(topic)
        if stream is None:
            stream = self.open_stream(publisher, topic, head, now) if head else None
        if stream is None:
            return
        said_at = NO_STAMP if stamp is None else stamp
        is_known = bool(stamp) or is_final
        if (stamp is not None and stream.contradicts_head(head, stamp)) or (is_final and stream.contradicts_end(head)):
            self._order.start_again(stream, stream.next, head, said_at, now)
        elif head >= stream.next:
            self._raise_head(stream, head, said_at, now, is_shown=False)
        elif is_known and head < stream.next - 1 and self._order.is_believed(stream, said_at, now, is_final=is_final):
            self._order.start_again(stream, head + 1, head, said_at, now)

    def _raise_head(self, stream: InStream, head: int, stamp: int, now: float, *, is_shown: bool) -> None:
        if head - stream.next > HEAD_JUMP_MAX and stream.is_anchored:
            self._counters.count_bad_frame(ImplausibleHead.__name__)
            return
        if is_shown:
            stream.show(head, stamp)
        else:
            stream.raise_head(head, stamp)
        if stream.has_hole and stream.state is InStreamState.LIVE:
            self._order.open_hole(stream, now)
