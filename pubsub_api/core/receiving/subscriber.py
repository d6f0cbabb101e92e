"""The receiving half of the envelope: which publishers and streams there are, loss detection, resync.

Sans-IO: every call is given the time; what has to be delivered, asked or told is collected and fetched with `take`.

Theory of operation
-------------------
**Joining.**  A link that comes up (`link_up`) says only that frames published from now on arrive.  So the core first
asks every responder for the heads of its streams (the *baseline*) and holds back what arrives meanwhile.  When the
answers are in, or ``ready_timeout`` is over, it emits a resync: the user reads the truth *after* the baseline was
taken, so whatever is older than the baseline is covered by what the user reads, and whatever is newer is checked by
number.  A filter added later joins the same way.

**Streams.**  From then on a stream that appears must begin at 1, since the publisher's heads are known; see
`pubsub_api.core.receiving.stream_starts` for how that is found out, and `pubsub_api.core.receiving.instream` for how
one stream closes its holes.

**Publishers.**  A GUID is known from its first frame.  A new GUID under a known name is a restart.  A publisher that is
silent for ``silence_timeout`` is suspected: the user resyncs, and its heads are asked for when it is heard again.  One
that stays away is forgotten after ``forget_time``, and the user resyncs once more.

**Freezing.**  When this process itself stood still, all publishers seem silent; a gap between two calls that is longer
than the idle time therefore counts as heard.  And what came meanwhile waits to be read, answers too: see
`pubsub_api.core.receiving.process_pauses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.data_frames import DataFrame
from pubsub_api.core.errors import FrameError, MalformedFrame
from pubsub_api.core.frame import Flag, Header, Kind
from pubsub_api.core.messages import Want
from pubsub_api.core.receiving.instream import NO_STAMP, Delivery, InStream, InStreamState
from pubsub_api.core.receiving.order import StreamOrder
from pubsub_api.core.receiving.process_pauses import ProcessPauses
from pubsub_api.core.receiving.questions import Join, QuestionPurpose, SubscriberQuestions
from pubsub_api.core.receiving.resync_requests import LostRange, Reason, Resync, ResyncScheduler
from pubsub_api.core.receiving.room import ConsumerRoom
from pubsub_api.core.receiving.roster import InPublisher, Roster
from pubsub_api.core.receiving.statistics import SubscriberCounters
from pubsub_api.core.receiving.stream_starts import StreamStarts
from pubsub_api.core.scopes import covers
from pubsub_api.core.settings import SubscriberSettings
from pubsub_api.core.topics import CONTROL_TOPIC, FilterSet

_DATA = int(Kind.DATA)
_LIVE = InStreamState.LIVE
_HAVE_HOLE = (InStreamState.WAITING, InStreamState.REPAIRING)


class SubscriberCore:
    """Not thread-safe: the owner serialises calls."""

    def __init__(
        self,
        settings: SubscriberSettings,
        filters: Iterable[str],
        *,
        guid: bytes,
        now: float,
        jitter: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.filters = FilterSet(filters)
        self.counters = SubscriberCounters()
        self._resync = ResyncScheduler(
            jitter_s=settings.resync_jitter_s, interval_min_s=settings.resync_interval_min_s, jitter=jitter
        )
        self._questions = SubscriberQuestions(settings, self.counters, self.filters, guid=guid, jitter=jitter)
        self._roster = Roster(settings, self.counters)
        self.publishers = self._roster.publishers
        self.room = ConsumerRoom(settings.pending_bytes_max, self._roster, self._resync)
        self._order = StreamOrder(
            settings,
            self.counters,
            roster=self._roster,
            questions=self._questions,
            resync=self._resync,
            room=self.room,
        )
        self._starts = StreamStarts(
            settings,
            self.counters,
            self.filters,
            roster=self._roster,
            questions=self._questions,
            resync=self._resync,
            order=self._order,
        )
        self._links: dict[str, bool] = {}
        """Every address that ever was up -> whether it is now."""
        self._arrivals: dict[str, tuple[str, float]] = {}
        """Address -> what it told of arrivals when it came up, and when that was."""
        self._settled: dict[str, str] = {}
        """Address -> the last of these under which it was up for so long that every publisher there has been heard."""
        self._sign_of_life_at = float("-inf")
        """When a publisher said last that it lives."""
        self._is_reconnect_unproven = False
        """A link came back to something shared, and others may have come and gone there meanwhile."""
        self._last_call = now
        self._excused_after_s = 2 * settings.max_idle_time_s
        """This process stood still when it was not called for so long."""
        self._standstill = ProcessPauses(self.counters, catch_up_time_s=settings.catch_up_time_s)
        self._next_silence_check = now + settings.max_idle_time_s
        self.newest_timestamp = 0
        """The highest timestamp of any data frame or hello, for the owner's clock."""
        self.is_ready = False
        """The first resync was emitted: what is published from now on is delivered or its loss is noticed."""

    # -- what the owner asks

    def take(self) -> tuple[list[Delivery | Resync], list[messages.Query]]:
        """What is to be delivered, in order, and what is to be asked, since the last call."""
        room = self.room
        out, room.out = room.out, []
        return out, self._questions.take()

    def next_deadline(self) -> float:
        """When `poll` has something to do, at the latest."""
        standstill = self._standstill
        due = self._next_due() if standstill.put_off_until is None else standstill.put_off_until
        resync_due = self._resync.next_deadline()
        if standstill.behind_until is not None and self._resync.is_for_loss:
            resync_due = max(resync_due, standstill.behind_until)
        return min(due, resync_due)

    def _next_due(self) -> float:
        """When something is to be concluded from what has not come."""
        return min(self._roster.next_timer(), self._questions.next_deadline(), self._next_silence_check)

    @property
    def parked_bytes(self) -> int:
        return self._roster.parked_bytes

    # -- what happens to it

    def on_frames(self, received: Sequence[bytes], now: float) -> None:
        """Frames arrived.  Never raises: a bad one is counted and changes nothing."""
        self._wake(now)
        for frame in received:
            self._on_frame(frame, now)
        if self._resync.is_waiting:
            self._emit_resync(now)

    def accept_next(self, header: Header | DataFrame, now: float) -> InStream | None:
        """The ordinary case: a sound DATA frame has the next events of a live stream, and nothing else is to be done.

        They are to be delivered, and are not among what `take` returns.  None: this is not so, and nothing was done;
        `on_frames` has to look at the frame.
        """
        publisher = self.publishers.get(header.guid)
        if publisher is None or publisher.is_suspect:
            return None
        stream = publisher.streams.get(header.topic)
        first = header.first
        if (
            stream is None
            or first != stream.next
            or header.after != first - 1
            or stream.state is not _LIVE
            or stream.covered >= first
            or self._resync.is_unsettled
            or now - self._last_call > self._excused_after_s
        ):
            return None
        self._last_call = publisher.last_heard = now
        publisher.is_heard = True
        count = header.count
        stream.next = first = first + count
        stream.head = first - 1
        stream.head_stamp = stamp = header.timestamp
        self.newest_timestamp = max(self.newest_timestamp, stamp)
        counters = self.counters
        counters.frames += 1
        counters.delivered += count
        return stream

    def poll(self, now: float) -> None:
        """Time passed."""
        self._wake(now)
        if not self._standstill.puts_off(now, self._next_due()):
            self._conclude_due(now)
        self._emit_resync(now)

    def _conclude_due(self, now: float) -> None:
        for stream in self._roster.due(now):
            if stream.state in _HAVE_HOLE:
                self._order.on_deadline(stream, now)
            else:
                self._starts.still_unknown(stream, now)
        self._order.send_repairs(now)
        if now >= self._next_silence_check:
            self._next_silence_check = now + self.settings.max_idle_time_s
            self._check_silence(now)
        for join in self._questions.overdue(now, self.filters, self._roster.lacks_answers):
            self._finish_join(join, now)

    def link_up(self, address: str, now: float, arrivals: str = "") -> None:
        """The link to an address is up and every filter is in effect there.

        ``arrivals`` is another one whenever a publisher has come to what is shared at that address; empty when that
        is not known.
        """
        self._wake(now)
        reason = Reason.RECONNECTED if address in self._links else Reason.NEW_LINK
        self._links[address] = True
        self._arrivals[address] = (arrivals, now)
        is_proven = self.settings.verify_after_reconnect or (arrivals and arrivals == self._settled.get(address))
        self._is_reconnect_unproven |= reason is Reason.RECONNECTED and not is_proven
        self._questions.join(reason if self.is_ready else Reason.INITIAL, self.filters, now)

    def link_down(self, address: str) -> None:
        """The link is down.  Nothing to do yet: what was missed is found out when it is back, or by silence."""
        self._links[address] = False
        arrivals, since = self._arrivals.get(address, ("", 0.0))
        is_long = self._last_call - since >= self.settings.silence_timeout_s
        if is_long and self._sign_of_life_at > since:  # without signs of life some publishers may not be known
            self._settled[address] = arrivals

    def link_removed(self, address: str) -> None:
        """That address is not listened to any more."""
        self._links.pop(address, None)
        self._arrivals.pop(address, None)
        self._settled.pop(address, None)

    def filter_added(self, topic_filter: str) -> bool:
        """A filter was registered; it takes effect with `filter_up`.  True when it is new.  Raises InvalidTopic."""
        return self.filters.add(topic_filter)

    def filter_up(self, topic_filter: str, now: float) -> None:
        """A filter that was added on a live link is in effect."""
        self._wake(now)
        if topic_filter in self.filters:
            self._questions.join(Reason.SUBSCRIBED if self.is_ready else Reason.INITIAL, [topic_filter], now)

    def filter_removed(self, topic_filter: str) -> bool:
        """A filter was dropped: streams that no other filter selects are forgotten.  True when it was there."""
        was_there = self.filters.discard(topic_filter)
        self._starts.joined.discard(topic_filter)
        self._roster.forget_unselected(self.filters)
        return was_there

    def undecodable(self, header: Header, lost: Iterable[tuple[int, int]], now: float) -> None:
        """The consumer could not decode these numbers, first and last of each range, of a frame delivered to it."""
        self.counters.count_bad_frame("UndecodableBody")
        ranges = [self._roster.lost_range(header, first, last) for first, last in lost]
        self._resync.request(Reason.UNDECODABLE, [header.topic], now, ranges)

    def resync_failed(self, resync: Resync, now: float) -> None:
        """The user could not act on a resync: it is told again, later.  A resync is never dropped."""
        self._resync.request(resync.reason, resync.topics, now, resync.lost)

    def ask_resync(self, reason: Reason, now: float) -> None:
        """Another part found out that what was delivered is not the truth any more."""
        self._resync.request_all(reason, now)

    def ask_again(self, lost: Iterable[LostRange], now: float) -> None:
        """Ask caches for ranges that were given up, those of streams that are known.  What comes is a repeat."""
        wants = [Want(bytes.fromhex(one.guid), one.topic, one.first, one.last) for one in lost]
        known = [one for one in wants if self._roster.has(one.guid, one.topic)]
        self.counters.repair.queries += self._questions.ranges(known, now)

    def asked(self, query_id: int, responders: int | None, now: float) -> None:
        """A query went out, to that many responders; None when the transport cannot tell."""
        if self._questions.asked(query_id, responders, is_any_known=bool(self._roster.living())):
            self._conclude(query_id, now)

    # -- frames

    def _on_frame(self, frame: bytes, now: float) -> None:
        try:
            header = frames.unpack(frame, bytes_max=self.settings.frame.bytes_max, key=self.settings.frame.key)
            if header.kind == _DATA:
                frames.check_count(frame, header)
                if self.accept_next(header, now) is not None:
                    self.room.pass_on((frame, header, 0))
                else:
                    self._on_data(frame, header, now, is_repair=False)
            elif header.kind == Kind.REPLY:
                self._on_reply(frame, header, now)
            elif header.kind == Kind.HELLO:
                self._on_hello(frame, header, now)
            elif header.kind == Kind.BYE:
                self._on_bye(frame, header, now)
        except FrameError as error:
            self.counters.count_bad_frame(type(error).__name__)

    def _on_data(self, frame: bytes, header: Header, now: float, *, is_repair: bool) -> None:
        _, _, guid, _, after, _, timestamp, topic, _, _ = header
        self.counters.frames += 1
        self.newest_timestamp = max(self.newest_timestamp, timestamp)
        publisher = self._starts.heard(guid, now) if not is_repair else self._starts.publisher(guid, now)
        stream = publisher.streams.get(topic) or self._starts.open_stream(publisher, topic, after, now)
        if stream is None:
            self.counters.intake.unwanted += 1
        else:
            self._order.accept(stream, frame, header, now, is_repair=is_repair)

    def _on_hello(self, frame: bytes, header: Header, now: float) -> None:
        hello = messages.decode(messages.Hello, frame, header)
        publisher = self._starts.heard(header.guid, now)
        self.counters.intake.hellos += 1
        self.newest_timestamp = max(self.newest_timestamp, header.timestamp)
        if header.topic != CONTROL_TOPIC:
            self._starts.note_head(publisher, header.topic, header.after, header.timestamp, now)
            return
        if header.flags & Flag.START:
            publisher.starts(header.timestamp)
        self._note_clock(publisher, header.timestamp, now)
        self._sign_of_life_at = now
        if publisher.is_replaced:
            self._roster.revive(publisher)
            self._starts.ask_heads(publisher, now)
        is_new = not publisher.name
        self._roster.name(publisher, hello.name)
        if header.flags & Flag.START:
            publisher.baseline_at = now
        if hello.predecessor and header.flags & Flag.START:
            self._starts.on_succession(publisher, hello, now)
        former = self._roster.namesake(publisher, hello.predecessor)
        if former is not None:
            self._starts.resync_all(Reason.PUBLISHER_RESTARTED, now)
            self._roster.replace(former)
        elif is_new and not self._starts.knows_starts(publisher) and self.is_ready:
            self._starts.ask_heads(publisher, now)

    def _note_clock(self, publisher: InPublisher, stamp: int, now: float) -> None:
        """A sign of life tells what a publisher's clock shows, unless it may have waited here for long."""
        if self._standstill.behind_until is None:
            publisher.beat(stamp, now)

    def _on_bye(self, frame: bytes, header: Header, now: float) -> None:
        bye = messages.decode(messages.Bye, frame, header)
        publisher = self._starts.heard(header.guid, now)
        self._roster.name(publisher, bye.name)
        for topic, head in bye.heads.items():
            self._starts.note_head(publisher, topic, head, header.timestamp, now, is_final=True)
        if publisher.bye.add(bye.part, bye.parts):
            publisher.has_ended = True

    def _on_reply(self, frame: bytes, header: Header, now: float) -> None:
        reply = messages.decode(messages.Reply, frame, header)
        self.counters.repair.replies += 1
        purpose = self._questions.purpose(reply.id)
        if purpose is None:
            self.counters.repair.late_replies += 1
            return
        scope = purpose.questions[reply.id].scope
        if header.topic != scope or not all(covers(scope, topic) for _, topic, _ in reply.heads):
            raise MalformedFrame(f"an answer to a question of scope {scope!r} that is about something else")
        if reply.publisher:
            publisher = self._starts.heard(header.guid, now)
            self._roster.name(publisher, publisher.name or reply.responder)
            self._note_clock(publisher, header.timestamp, now)
            self._starts.on_age(publisher, purpose.asked, reply.age, now)
            self._starts.on_ancestry(publisher, reply.former, now)
        if purpose.streams:
            told = {topic: head for guid, topic, head in reply.heads if guid == header.guid}
            self._order.on_told(purpose.streams, told, header.guid, header.timestamp, now)
        else:
            for guid, topic, head in reply.heads:
                stamp = header.timestamp if guid == header.guid else NO_STAMP
                is_final = reply.publisher and guid in reply.former
                self._starts.on_baseline(self._starts.publisher(guid, now), topic, head, stamp, now, is_final=is_final)
        for stored in reply.frames:
            self._on_stored(stored, scope, now)
        is_concluded = self._questions.answered(reply.id, header.guid, reply.part, reply.parts, now)
        if header.guid not in purpose.finished:
            self._order.wait_on(purpose.streams, now, has_ended=bool(reply.parts))
        if reply.publisher and purpose.is_baseline and header.guid in purpose.finished:
            publisher = self._starts.publisher(header.guid, now)
            publisher.baseline_at = max(publisher.baseline_at, purpose.asked)
            # Of former lives the answer has the final heads of what was asked for, and that may be one new filter.
            is_of_all = purpose.join is None or {*self.filters} <= {*purpose.join.filters}
            for guid in reply.former if is_of_all else ():
                self._roster.end(self._starts.publisher(guid, now))
        if is_concluded:
            self._conclude(reply.id, now)

    def _on_stored(self, frame: bytes, scope: str, now: float) -> None:
        """A frame that a cache kept.  Caches keep data and nothing else."""
        try:
            header = frames.unpack(frame, bytes_max=self.settings.frame.bytes_max, key=self.settings.frame.key)
            if header.kind != Kind.DATA:
                raise MalformedFrame(f"a frame of kind {header.kind} inside a reply")
            if not covers(scope, header.topic):
                raise MalformedFrame(f"a frame of {header.topic!r} in an answer to a question of scope {scope!r}")
            frames.check_count(frame, header)
        except FrameError as error:
            self.counters.count_bad_frame(type(error).__name__)
        else:
            self._on_data(frame, header, now, is_repair=True)

    # -- joining and resync

    def _conclude(self, query_id: int, now: float) -> None:
        """Every peer that was reached has answered."""
        purpose = self._questions.purpose(query_id)
        if purpose is None or self._needs_more(purpose):
            return
        self._questions.close(query_id)
        if purpose.join is not None:
            self._finish_join(purpose.join, now)
        self._order.give_up_unanswered(purpose.streams, purpose.finished, now)

    def _needs_more(self, purpose: QuestionPurpose) -> bool:
        """Whether a link that is back could still be verified: a publisher that was known may not have been reached."""
        is_reconnect = purpose.join is not None and purpose.join.reason is Reason.RECONNECTED
        return (
            is_reconnect
            and not self._is_reconnect_unproven
            and self._roster.lacks_answers(purpose.finished, of_familiar=True)
        )

    def _finish_join(self, join: Join, now: float) -> None:
        is_new = self._starts.join(join.filters, join.asked)
        is_verified = join.reason is Reason.RECONNECTED and not is_new and self._is_verified(join)
        self._roster.note_familiar()
        self._is_reconnect_unproven = False
        if is_verified:
            self.counters.peers.verified_reconnects += 1
        else:
            self._resync.request(join.reason, join.filters, now)

    def _is_verified(self, join: Join) -> bool:
        return not self._is_reconnect_unproven and self._roster.is_verified(join.responders)

    def _emit_resync(self, now: float) -> None:
        if self._resync.is_for_loss and self._is_catching_up(now):
            return
        resync = self._resync.emit(now, self.filters)
        if resync is None:
            return
        self.room.out.append(resync)
        self.counters.resyncs += 1
        self.is_ready = True
        self._questions.start_periodic(now)
        covered = FilterSet(resync.topics)
        for publisher in self.publishers.values():
            for stream in list(publisher.streams.values()):
                if stream.state is InStreamState.LIVE or not (
                    covered.match(stream.topic) and self._starts.joined.match(stream.topic)
                ):
                    continue
                stream.covered = stream.shown_head
                if stream.state is InStreamState.RESYNCING and not (stream.deadline and not stream.is_anchored):
                    self._order.release(stream, now)

    # -- silence

    def _wake(self, now: float) -> None:
        still_s = now - self._last_call
        if still_s > self._excused_after_s:
            self._roster.excuse_silence(now)
            self._standstill.stood_still(still_s, self.newest_timestamp, now + self.settings.silence_timeout_s)
        self._last_call = now

    def _is_catching_up(self, now: float) -> bool:
        """Whether more losses may show, because what came during a standstill was not all read, or heads lack."""
        standstill = self._standstill
        if standstill.behind_until is None:
            return False
        if standstill.asked_at is None and standstill.has_read_all(self.newest_timestamp):
            standstill.asked_at = now
            standstill.behind_until = min(standstill.behind_until, now + self.settings.ready_timeout_s)
            for publisher in self._roster.living():
                self._starts.ask_heads(publisher, now)
        if now >= standstill.behind_until or self._knows_heads_since(standstill.asked_at):
            standstill.behind_until = None
        return standstill.behind_until is not None

    def _knows_heads_since(self, moment: float | None) -> bool:
        return moment is not None and all(life.baseline_at >= moment for life in self._roster.living())

    def _check_silence(self, now: float) -> None:
        if self._roster.look_for_silence(now):
            self._starts.resync_all(Reason.SILENCE, now)
