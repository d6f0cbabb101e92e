"""Order within the streams that a subscriber knows: what passes, what waits behind a hole, how a hole is closed.

Sans-IO.  `pubsub_api.core.receiving.instream` says which steps close a hole; here they are taken, with what they need
of the outside: the counters, the questions to caches, the resync when nothing else helped, and the room that is left in
the consumer's queue (`pubsub_api.core.receiving.room`).  Which streams there are, and where they begin, is the business
of `pubsub_api.core.receiving.stream_starts`.

While much is held for want of room nothing is asked for.  When there is no room for what is in order even there, behind
a hole it stays a part of the hole; otherwise it is discarded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pubsub_api.core.errors import ImplausibleHead
from pubsub_api.core.frame import SEQUENCE_MAX, Header
from pubsub_api.core.receiving.instream import HEAD_JUMP_MAX, NO_STAMP, Delivery, InStream, InStreamState, StreamCause
from pubsub_api.core.receiving.questions import SubscriberQuestions
from pubsub_api.core.receiving.resync_requests import Reason, ResyncScheduler
from pubsub_api.core.receiving.room import ConsumerRoom
from pubsub_api.core.receiving.roster import Roster
from pubsub_api.core.receiving.statistics import SubscriberCounters
from pubsub_api.core.settings import SubscriberSettings

_LIVE = InStreamState.LIVE


class StreamOrder:
    """What is done with one stream at a time.  Not thread-safe: the owner serialises calls."""

    def __init__(
        self,
        settings: SubscriberSettings,
        counters: SubscriberCounters,
        *,
        roster: Roster,
        questions: SubscriberQuestions,
        resync: ResyncScheduler,
        room: ConsumerRoom,
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._roster = roster
        self._questions = questions
        self._resync = resync
        self._room = room
        self._takes_repeats = settings.takes_repeats
        self._misses_the_past = settings.takes_repeats and settings.history is not None
        """The consumer wants to be told what it has not got of a stream that is first met."""
        self._to_repair: list[InStream] = []
        self._event_bytes = 0.0
        """Size of an event, as the frames tell that waited or were repaired last."""

    # -- frames of a stream

    def accept(self, stream: InStream, frame: bytes, header: Header, now: float, *, is_repair: bool) -> None:
        """A frame of a stream came: deliver it, keep it for later, or see that it came before."""
        _, _, _, first, after, count, stamp, _, _, _ = header
        if stream.covered >= first and not is_repair:
            # What is sent under such a number now did not exist when the resync was told, whatever was said of it.
            stream.covered = 0
        if first == stream.next and stream.state is _LIVE:
            stream.next = first + count
            stream.head = first + count - 1
            stream.head_stamp = stamp
            self._deliver(stream, (frame, header, 0), now, is_repair=is_repair)
        elif not is_repair and (
            stream.contradicts_data(first, stamp) or (first < stream.next and self.is_believed(stream, stamp, now))
        ):
            self.start_again(stream, after + 1, after, stamp, now)
            self._park(stream, frame, header, now)
        elif first + count <= stream.next and stream.is_anchored:
            self._repeat((frame, header, 0))
        elif first - stream.next > HEAD_JUMP_MAX and stream.is_anchored:
            self._counters.count_bad_frame(ImplausibleHead.__name__)
        elif stream.state is InStreamState.RESYNCING and self._room.is_overrun:
            self._discard(stream, header, first, now)
        elif after >= stream.next or stream.state is InStreamState.RESYNCING:
            is_new = self._park(stream, frame, header, now)
            self._counters.repair.repaired += count if is_repair and is_new else 0
        elif stream.state is not _LIVE and self._resync.is_blocked and self._stays_missing(stream, frame, header):
            self._counters.repair.unparked += count
        else:
            delivery = stream.advance(frame, header)
            if delivery is not None:
                self._deliver(stream, delivery, now, is_repair=is_repair)
            if stream.state is not InStreamState.LIVE:
                self._progress(stream, now)

    def _repeat(self, delivery: Delivery) -> None:
        """What was delivered, or given up, came again.  It does not wait for room: a program that wants it can ask for
        it once more."""
        count = delivery[1].count
        if not self._takes_repeats or self._resync.is_blocked:
            self._counters.intake.duplicates += count
            return
        self._counters.intake.repeats += count
        self._counters.delivered += count
        self._room.pass_on(delivery)

    def _park(self, stream: InStream, frame: bytes, header: Header, now: float) -> bool:
        """Keep a frame behind a hole; False when it was there."""
        if not stream.is_anchored:
            stream.next = min(stream.next, header.after + 1)
        size = stream.park(frame, header)
        self._roster.parked_bytes += size
        self._event_bytes = len(frame) / header.count
        if stream.state is InStreamState.LIVE:
            self.open_hole(stream, now)
        if self._roster.parked_bytes > self._settings.pending_bytes_max:
            self._make_room(stream, now)
        return size > 0

    def _make_room(self, stream: InStream, now: float) -> None:
        """Too much waits behind holes.  Where caches can be asked, what is needed last goes, to be asked for later."""
        if stream.state is not InStreamState.RESYNCING and self._settings.repair:
            self._roster.drop_tail(stream)
            return
        freed, events = stream.drop_parked()
        self._roster.parked_bytes -= freed
        if stream.state is InStreamState.RESYNCING:
            self._counters.discarded += events
        else:
            self._give_up(stream, Reason.PENDING_FULL, now)

    def _progress(self, stream: InStream, now: float) -> None:
        """Something arrived in order on a stream that has parked frames or a hole."""
        self._deliver_ready(stream, now)
        if stream.state is InStreamState.WAITING and not stream.has_hole:
            self._counters.repair.closed_by_waiting += 1
        elif stream.state is InStreamState.REPAIRING and stream.next > stream.asked:
            self._counters.repair.closed_by_repair += 1
        else:
            return
        stream.move(StreamCause.CLOSED)
        stream.attempts = 0
        stream.deadline = 0.0
        if stream.has_hole:
            # It opened while an older one was repaired, and has all its time and attempts before it.
            self.open_hole(stream, now)

    def _deliver_ready(self, stream: InStream, now: float) -> None:
        for delivery, size in stream.ready():
            self._roster.parked_bytes -= size
            if delivery is not None:
                self._deliver(stream, delivery, now, is_repair=False)

    def _deliver(self, stream: InStream, delivery: Delivery, now: float, *, is_repair: bool) -> None:
        frame, header, already = delivery
        counters = self._counters
        if already and self._takes_repeats:
            counters.intake.repeats += already
            already = 0
            delivery = (frame, header, 0)
        fresh = header.count - already
        if already:
            counters.intake.duplicates += already
        if is_repair:
            # What is still missing behind it has all its attempts before it.
            stream.attempts = min(stream.attempts, 1 - self._questions.hurry)
            counters.repair.repaired += fresh
            self._event_bytes = len(frame) / header.count
        if self._resync.is_blocked and not self._room.hold(delivery):
            self._discard(stream, header, header.first + already, now)
            return
        counters.delivered += fresh
        if header.after != header.first - 1:
            counters.repair.skipped += header.first - 1 - header.after
        if self._resync.is_blocked:
            return
        room = self._room  # `pass_on` is written out: this is done for every frame
        room.out.append(delivery)
        room.bytes_left -= len(frame)
        if room.bytes_left < 0:
            self._resync.is_blocked = True

    def _discard(self, stream: InStream, header: Header, first: int, now: float) -> None:
        """There is no room for a frame, from ``first`` on.  The consumer learns of it before it sees what follows."""
        self._counters.discarded += header.last - first + 1
        stream.show(header.last, header.timestamp)
        if stream.state is not InStreamState.RESYNCING:
            self._await_resync(stream)
        lost = self._roster.lost_range(header, first, header.last)
        self._resync.request(Reason.SLOW_CONSUMER, [stream.topic], now, [lost])

    def _stays_missing(self, stream: InStream, frame: bytes, header: Header) -> bool:
        """Whether what comes next on a stream with a hole finds no room and has to be asked for later; if it can be.

        What is parked behind the hole gives way to it.
        """
        if self._room.is_overrun or not self._settings.repair:
            return False
        if self._roster.parked_bytes + len(frame) > self._settings.pending_bytes_max:
            self._roster.drop_tail(stream)
        if self._roster.parked_bytes + len(frame) <= self._settings.pending_bytes_max:
            return False
        stream.asked = min(stream.asked, header.after)
        return True

    # -- holes

    def open_hole(self, stream: InStream, now: float) -> None:
        self._counters.repair.gaps += 1
        stream.move(StreamCause.HOLE)
        stream.attempts = 0
        self._roster.set_timer(stream, now + self._settings.message_delay_window_s)

    def on_deadline(self, stream: InStream, now: float) -> None:
        """Late frames, or an answer, did not come in time."""
        if self._settings.repair and self._room.held_bytes > self._settings.pending_bytes_max // 2:
            # There would be little room for an answer.
            self._roster.set_timer(stream, now + self._settings.message_delay_window_s)
        elif self._settings.repair and stream.attempts < self._settings.repair_attempts_max:
            self._to_repair.append(stream)
        else:
            self._give_up(stream, Reason.LOSS, now)

    def send_repairs(self, now: float) -> None:
        """One query for all streams that need one now."""
        if not self._to_repair:
            return
        streams, self._to_repair = self._to_repair, []
        for stream in streams:
            if stream.state is InStreamState.WAITING:
                stream.attempts = -self._questions.hurry
            stream.move(StreamCause.QUERY)
            self._roster.set_timer(stream, now + self._questions.patience(stream.attempts))
            stream.attempts += 1
        self._counters.repair.queries += self._questions.repair(streams, now, self._events_wanted())

    def _events_wanted(self) -> int:
        """For how many numbers from the next one on there is room, in the consumer's queue and here.

        What is parked between them counts: it needs that room as well.  At least one, so that repair goes on.
        """
        room_bytes = self._settings.pending_bytes_max - self._room.held_bytes + max(0.0, self._room.bytes_left)
        return max(1, int(min(room_bytes / self._event_bytes, SEQUENCE_MAX))) if self._event_bytes else SEQUENCE_MAX

    def wait_on(self, asked: Iterable[tuple[InStream, int]], now: float, *, has_ended: bool) -> None:
        """A part of an answer came, however long it is; or its end, and then the parts that lack are late or lost."""
        for stream, _ in asked:
            if stream.state is InStreamState.REPAIRING and self._roster.knows(stream):
                if has_ended:
                    wait_s = min(self._questions.patience(stream.attempts - 1), self._settings.message_delay_window_s)
                else:
                    wait_s = self._questions.part_patience(stream.attempts - 1)
                self._roster.set_timer(stream, now + wait_s)

    def give_up_unanswered(
        self, asked: Iterable[tuple[InStream, int]], finished: Collection[bytes], now: float
    ) -> None:
        """Every peer that was reached has answered: what still lacks none has, if its publisher was among them.

        A publisher that lives and did not answer was not reached, or its answer was lost: it is asked again.
        """
        for stream, last in asked:
            is_lacking = stream.next <= min(last, stream.asked)
            if stream.state is not InStreamState.REPAIRING or not is_lacking or not self._roster.knows(stream):
                continue
            if stream.guid in finished or not self._roster.may_answer(stream.guid):
                self._give_up(stream, Reason.LOSS, now)

    def _give_up(self, stream: InStream, reason: Reason, now: float) -> None:
        lost = [self._roster.lost_range(stream, first, last) for first, last in stream.missing()]
        self._counters.lost += sum(item.last - item.first + 1 for item in lost)
        self._await_resync(stream)
        if lost and lost[-1].last <= stream.covered:
            self.release(stream, now)  # A resync was told when these had been published: it covers them.
        else:
            self._resync.request(reason, [stream.topic], now, lost)

    def _await_resync(self, stream: InStream) -> None:
        stream.move(StreamCause.GIVE_UP)
        stream.attempts = 0
        stream.deadline = 0.0

    # -- what cannot all be true

    def is_believed(self, stream: InStream, stamp: int, now: float, *, is_final: bool = False) -> bool:
        """A frame with that timestamp tells of less than was delivered.  True: the stream starts again from it.

        Mostly it is late, or comes again.  It is not if it was sent later, or is the last word of its publisher, or if
        what was delivered claims a time that the clock there has not reached.  Then one of both is forged, and that is
        told.  To find out which, the publisher is asked how far it is, see `on_told`; the frame is believed when there
        was no answer.
        """
        if stream.state is not _LIVE or not stream.is_anchored or self._roster.publishers[stream.guid].is_again:
            return False
        if not is_final and stamp <= stream.head_stamp and not self._is_ahead(stream, now):
            return False
        self._resync.request(Reason.CONTRADICTION, [stream.topic], now)
        if now < stream.deadline:
            return False
        if stream.attempts >= self._settings.repair_attempts_max:
            return True
        self._counters.peers.contradictions += not stream.attempts
        stream.deadline = now + self._questions.patience(stream.attempts)
        stream.attempts += 1
        self._counters.repair.queries += self._questions.doubt(stream, now)
        return False

    def _is_ahead(self, stream: InStream, now: float) -> bool:
        """Whether the newest frame of a stream claims a time that its publisher's clock has not reached.

        Its signs of life may have waited here for as long as this process may stand still without noticing it.
        """
        clock = self._roster.publishers[stream.guid].clock_at_least(now + 2 * self._settings.max_idle_time_s)
        return 0 < clock < stream.head_stamp < NO_STAMP

    def on_told(
        self, asked: Iterable[tuple[InStream, int]], told: Mapping[str, int], guid: bytes, stamp: int, now: float
    ) -> None:
        """A publisher tells how far its streams are.  It was asked when they seemed to be at these numbers, at least:
        if it knows less, another peer has told of them."""
        for stream, last in asked:
            if stream.guid != guid or stream.topic not in told or not self._roster.knows(stream):
                continue
            head = told[stream.topic]
            is_doubt = stream.state is _LIVE and stream.attempts > 0 and stream.head == last
            is_doubt &= not self._roster.publishers[guid].is_again
            if head < last <= stream.head and (is_doubt or stream.next <= last):
                # What came in order while the answer was on its way is not in doubt.
                number = head + 1 if is_doubt else max(head + 1, stream.next)
                self.start_again(stream, number, head, stamp, now)
                continue
            stream.shown = max(stream.shown, min(head, stream.head))
            if head >= stream.head:
                stream.head_stamp = min(stream.head_stamp, stamp)
            if stream.state is _LIVE:
                stream.attempts = 0

    def start_again(self, stream: InStream, number: int, head: int, stamp: int, now: float) -> None:
        """A publisher contradicts what was heard of a stream.  Which is true is not known: tell it, and begin anew."""
        is_counted = stream.state is _LIVE and stream.attempts > 0  # when it was doubted
        self._counters.peers.contradictions += not is_counted
        freed, events = stream.drop_parked()
        self._roster.parked_bytes -= freed
        self._counters.discarded += events
        if stream.state is not InStreamState.RESYNCING:
            self._await_resync(stream)
        stream.start_again(number, head, stamp)
        self._resync.request(Reason.CONTRADICTION, [stream.topic], now)

    # -- from where on a stream is wanted

    def begin(self, stream: InStream, number: int, now: float) -> None:
        """A stream that was seen in mid-flow is wanted from that event on."""
        stream.is_anchored = True
        stream.next = number
        stream.deadline = 0.0
        stream.attempts = 0
        stream.move(StreamCause.RESYNCED)
        self._deliver_ready(stream, now)
        if stream.has_hole and stream.state is InStreamState.LIVE:
            self.open_hole(stream, now)

    def tell_past(self, stream: InStream, last: int, now: float) -> None:
        """Where history is wanted and what comes late is taken: tell what lacks of a stream that is first met now."""
        if last and self._misses_the_past and not self._questions.is_reading_history:
            past = self._roster.lost_range(stream, 1, last)
            self._resync.request(Reason.UNKNOWN_STREAM, [stream.topic], now, [past])

    def release(self, stream: InStream, now: float) -> None:
        """The user was told: what is missing is covered, what waited may pass."""
        if not stream.is_anchored and not stream.shown and stream.head != stream.forgotten:
            # Only a hello told of it, and its publisher was not asked: it will be, when it is heard again.
            self._roster.forget_stream(self._roster.publishers[stream.guid], stream.topic)
            return
        if not stream.is_anchored:
            self.tell_past(stream, stream.next - 1, now)
        stream.is_anchored = True
        stream.move(StreamCause.RESYNCED)
        for delivery, size in stream.skip_holes():
            self._roster.parked_bytes -= size
            if delivery is not None:
                self._deliver(stream, delivery, now, is_repair=False)
