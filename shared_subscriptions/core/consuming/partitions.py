"""One partition at one member: what may be delivered next, what is tried again, and how far it all is.

Where an event is:

========  ==================================================================================
waiting   read from the log, and not with the user (`WaitingEvents`)
out       with the user
refused   failed in a queue: given back to the leader when the rest of the portion is done
done      acknowledged, parked as a dead letter, or not for this partition: part of the progress
========  ==================================================================================

In a queue there is no order to keep, so an event that failed is given back to the leader, which finds a member for it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Sequence

from pubsub_api.core.events import GroupEvent
from shared_subscriptions.core.consuming.waiting import ObjectKey, WaitingEvents, object_of
from shared_subscriptions.core.progress import AcknowledgedOffsets, GroupProgress, snapshot
from shared_subscriptions.core.settings import DeliverySettings


@dataclasses.dataclass
class DeliveryCounters:
    delivered: int = 0
    redelivered: int = 0
    """Deliveries beyond the first of their event, as far as the group knows."""
    acknowledged: int = 0
    late: int = 0
    """Acknowledged or refused when the event was out of this member's hands: the group may deliver it again."""
    failed: int = 0
    """Attempts that ended in a nack or an error."""
    timed_out: int = 0
    """Events taken back because they were with the user for longer than `handler_timeout`."""
    dead: int = 0
    """Events parked as dead letters."""
    expired: int = 0
    """Offsets that retention dropped before a member could handle what was there."""


WINDOW_BYTES = 16 << 20
"""A partition of which so much is loaded is full, however few events that are.  One read more may come on top."""


class ChangedLoans:
    """Numbers of loans to which something has happened, so that it is not necessary to look at all."""

    def __init__(self) -> None:
        self.changed: dict[int, None] = {}
        """Those whose progress may have changed."""
        self.touched: dict[int, None] = {}
        """Those that may be complete or settled now."""
        self.hungry: dict[int, None] = {}
        """Those that want events: they are new, or have room again."""
        self.working: OrderedDict[int, None] = OrderedDict()
        """Those that may have something to deliver, now or later; they take turns."""


class PartitionDelivery:
    """Not thread-safe.  Offsets given to `skip` and `offer` rise; what is done already is left out."""

    def __init__(
        self,
        progress: GroupProgress,
        settings: DeliverySettings,
        counters: DeliveryCounters,
        *,
        is_ordered: bool,
        marks: ChangedLoans | None = None,
        number: int = 0,
    ) -> None:
        """``number`` is that of the loan, which ``marks`` know it by."""
        self.next_offset = progress.low
        """Where to read on."""
        self.is_stopped = False
        self._marks, self._mark_as = marks or ChangedLoans(), number
        self._settings = settings
        self._counters = counters
        self._marks.hungry[number] = None
        self._is_ordered = is_ordered
        self._generation = progress.generation
        self._done = AcknowledgedOffsets(progress.low, progress.ranges)
        self._attempts = dict(progress.attempts)
        self._delays: dict[int, float] = {}
        self._expired = 0
        self._damaged: list[tuple[int, int]] = []
        self._waiting = WaitingEvents(is_ordered=is_ordered)
        self._out: dict[int, GroupEvent] = {}
        self._out_at: dict[int, float] = {}
        """When each of them went out, the oldest first."""
        self._batch: Sequence[GroupEvent] = ()
        self._load = 0
        self._event_bytes = 0.0
        """Of those that are loaded, on average."""
        self._was_full = False
        self._mark()

    def _mark(self) -> None:
        """The progress has changed, or what is with the user."""
        self._marks.changed[self._mark_as] = self._marks.touched[self._mark_as] = None

    def _mark_work(self) -> None:
        """There is something to deliver."""
        self._marks.working[self._mark_as] = None

    # -- from the log

    def recall(self, known: GroupProgress) -> None:
        """Before anything is offered: what was done here before, and the leader may not know."""
        if known.generation != self._generation:
            return
        self._done.merge(known)
        self.next_offset = self._done.low
        for offset, count in known.attempts.items():
            if offset not in self._done:
                self._attempts[offset] = max(count, self._attempts.get(offset, 0))
        self._mark()

    @property
    def room(self) -> int:
        """How many more events may be offered now."""
        if self.is_stopped:
            return 0
        room = self._settings.window - self._load
        if self._load * self._event_bytes >= WINDOW_BYTES:
            room = 0
        self._was_full = self._was_full or room <= 0
        return room

    def take_relief(self) -> bool:
        """Whether there is room again since it was found full."""
        if not self._was_full or self.is_stopped or 2 * self._load > self._settings.window:
            return False
        if 2 * self._load * self._event_bytes > WINDOW_BYTES:
            return False
        self._was_full = False
        self._marks.hungry[self._mark_as] = None
        return True

    def skip(self, end: int) -> None:
        """Everything from `next_offset` up to ``end`` is not for this partition."""
        self._done.add(self.next_offset, end)
        self.next_offset = max(self.next_offset, end)
        if self._is_ordered:
            self._damaged.clear()  # it has got over that
        self._mark()

    def expire(self, first: int, end: int) -> None:
        """Retention has dropped these offsets, from `next_offset` on or later, up to but without ``end``."""
        lost = self._done.missing(max(first, self.next_offset), end)
        self._counters.expired += lost
        self._expired += lost
        self._done.add(first, end)
        self._mark()

    def damage(self, first: int, end: int) -> None:
        """The log cannot give what lies from ``first`` up to but without ``end``.  An ordered partition waits for it;
        of a queue the rest goes on, and this part is given back."""
        if self.is_stopped or not first <= self.next_offset < end:
            return
        if (first, end) not in self._damaged:
            self._damaged.append((first, end))
            self._mark()
        if not self._is_ordered:
            self.next_offset = end

    def offer(self, events: list[GroupEvent], size: int = 0) -> None:
        """Events at or beyond `next_offset`, in order; offsets between them are not for this partition.  ``size`` is
        what they take as bytes."""
        if events and (len(self._done) or events[0].offset < self._done.low):
            events = [event for event in events if event.offset not in self._done]
        if not events:
            return
        if events[0].offset > self.next_offset or events[-1].offset - events[0].offset >= len(events):
            self._skip_between(events)
        self.next_offset = max(self.next_offset, events[-1].offset + 1)
        self._marks.touched[self._mark_as] = None
        self._event_bytes = (self._load * self._event_bytes + size) / (self._load + len(events))
        self._load += len(events)
        if self._attempts and self._settings.attempts_max:
            events = self._set_overdue_aside(events)
        if events:
            self._waiting.add(events)
            self._mark_work()

    def _set_overdue_aside(self, events: list[GroupEvent]) -> list[GroupEvent]:
        """What was delivered too often before it came here is not delivered again: it is taken alone, to be parked."""
        overdue = [event for event in events if self.is_overdue(event)]
        for event in overdue:
            self._out[event.offset] = event
            self.postpone(event, 0.0)
        return [event for event in events if event not in overdue] if overdue else events

    def _skip_between(self, events: Sequence[GroupEvent]) -> None:
        for event in events:
            if event.offset > self.next_offset:
                self._done.add(self.next_offset, event.offset)
            self.next_offset = event.offset + 1
        self._mark()

    # -- to the user

    def take(self, now: float, limit: int, *, is_exclusive: bool) -> list[GroupEvent]:
        """The next events for the user, none when there are none.

        Exclusive: each event holds its object until it is settled, and more may be taken meanwhile.  Otherwise the
        batch may have several events of one object, is in the order of the log, and must be settled before more is
        taken.
        """
        if self.is_stopped:
            return []
        retry = self._waiting.take_retry(now)
        if retry is not None and self.is_overdue(retry):
            retry.attempt = self._attempts[retry.offset]
            self._out[retry.offset] = retry
            return [retry]
        if retry is not None:
            taken = [retry]  # alone, so that a failure concerns nothing else
        elif is_exclusive:
            taken = self._waiting.take_and_hold(limit)
        else:
            taken = self._waiting.take(limit)
        if not taken:
            return taken
        if is_exclusive:
            self._out.update((event.offset, event) for event in taken)
            self._out_at.update((event.offset, now) for event in taken)
        else:
            self._batch = taken
        if self._attempts:
            self._number(taken)
        self._counters.delivered += len(taken)
        self._mark()
        return taken

    def is_overdue(self, event: GroupEvent) -> bool:
        """Whether the event has used up its attempts without failing in one: its consumers crashed, or hung."""
        return 0 < self._settings.attempts_max <= self._attempts.get(event.offset, 0)

    def _number(self, taken: Sequence[GroupEvent]) -> None:
        for event in taken:
            event.attempt = self._attempts.get(event.offset, 0) + 1
            self._counters.redelivered += event.attempt > 1

    # -- back from the user

    def ack(self, event: GroupEvent) -> bool:
        """Done.  False when the event is not out: it was settled before, or another grant has it."""
        if not self._is_out(event):
            self._counters.late += 1
            return False
        self._take_back(event)
        self._finish(event)
        self._release(event)
        return True

    def _is_out(self, event: GroupEvent) -> bool:
        """Whether this very delivery is with the user: one that was taken back and delivered again is another."""
        out = self._out.get(event.offset)
        return out is not None and out.attempt == event.attempt

    def _take_back(self, event: GroupEvent) -> bool:
        """The event is not with the user any more; False when it was not."""
        self._out_at.pop(event.offset, None)
        return self._out.pop(event.offset, None) is not None

    def settle(self, batch: Sequence[GroupEvent], rest: Sequence[GroupEvent] = ()) -> None:
        """A batch that was taken without exclusivity is done; ``rest`` is the part that is still with the user."""
        self._batch = rest
        if len(batch) == 1:
            self._release(batch[0])  # it may have been a retry
        first, last = batch[0].offset, batch[-1].offset
        if last - first + 1 == len(batch):
            self._done.add(first, last + 1)
        else:
            for event in batch:
                self._done.add(event.offset, event.offset + 1)
        if self._attempts:
            for event in batch:
                self._attempts.pop(event.offset, None)
        self._load -= len(batch)
        self._counters.acknowledged += len(batch)
        self._mark()

    def fail(self, event: GroupEvent, now: float, delay_s: float | None = None) -> bool:
        """An attempt failed; the event comes again after ``delay_s``, or after the configured back-off.

        False when it has used up its attempts: store it elsewhere, then call `parked`; its object waits until then.  An
        event that is not out is counted as late, and True is returned: another member has it.  The user may still look
        at the event, so what comes again is a copy.
        """
        if not self._is_out(event):
            self._counters.late += 1
            return True
        self._counters.failed += 1
        attempts = self._attempts[event.offset] = event.attempt
        self._mark()
        if self._settings.attempts_max and attempts >= self._settings.attempts_max:
            return False
        self._out[event.offset] = again = copy.copy(event)
        self._again(again, now, self._settings.backoff_s(attempts) if delay_s is None else delay_s)
        return True

    def _again(self, event: GroupEvent, now: float, delay_s: float) -> None:
        """An event that is out is to be tried again: here, or in a queue by a member that is free then."""
        if self._is_ordered:
            self.postpone(event, now + delay_s)
        elif self._take_back(event):
            self._delays[event.offset] = delay_s
            self._load -= 1
            self._mark()

    def postpone(self, event: GroupEvent, due: float) -> None:
        """Deliver an event that is out once more, when it is due.  Its object waits.  When it has been given away
        meanwhile, nothing happens."""
        if not self._take_back(event) or self.is_stopped:
            return
        self._waiting.retry(event, due)
        self._mark_work()

    def fail_batch(self, batch: Sequence[GroupEvent], now: float) -> None:
        """A batch of several failed as a whole: the first event of each object comes again, at once and alone, so that
        the guilty one is found; the others of the object wait behind it."""
        self.break_up(batch)
        self._counters.failed += 1
        heads: dict[ObjectKey | int, GroupEvent] = {}
        for event in batch:
            heads.setdefault(object_of(event) if self._is_ordered else event.offset, event)
            if not self._settings.attempts_max or event.attempt < self._settings.attempts_max:
                self._attempts[event.offset] = event.attempt  # the last attempt is one that it has for itself
        for event in heads.values():
            self._again(event, now, 0.0)
        self._put_behind([event for event in batch if event.offset in self._out])

    def overstayed(self, now: float, timeout_s: float) -> list[GroupEvent]:
        """Events that have been out for so long."""
        found = []
        for offset, since in self._out_at.items():
            if now - since < timeout_s:
                break
            found.append(self._out[offset])
        return found

    def extend(self, event: GroupEvent, now: float) -> bool:
        """An event that is out is so from now on; False when it is not out."""
        if not self._is_out(event):
            return False
        if self._out_at.pop(event.offset, None) is not None:
            self._out_at[event.offset] = now
        return True

    def time_out(self, event: GroupEvent, now: float) -> None:
        """An event is taken back from a callback that does not return; what is said of it later is late.

        It counts as an attempt.  The user may still look at the event, so what comes again is a copy.  Nothing happens
        when it is not out, because the user has refused it meanwhile.
        """
        if not self._is_out(event):
            return
        self._counters.timed_out += 1
        self._attempts[event.offset] = event.attempt
        self._mark()
        self._out[event.offset] = copy.copy(event)
        self._again(self._out[event.offset], now, self._settings.backoff_s(event.attempt))

    def time_out_batch(self, batch: Sequence[GroupEvent], now: float) -> None:
        """The same for a whole batch that is out: its events come again as after `fail_batch`."""
        if len(batch) == 1:
            self.time_out(batch[0], now)
            return
        self._counters.timed_out += len(batch)
        self.fail_batch([copy.copy(event) for event in batch], now)

    def break_up(self, batch: Sequence[GroupEvent]) -> None:
        """Make a batch exclusive after the fact: each of its events is out and holds its object until it is settled."""
        self._batch = ()
        for event in batch:
            self._out[event.offset] = event
            self._waiting.hold(event)

    def put_back(self, events: Sequence[GroupEvent]) -> None:
        """Events of a broken-up batch that did not reach the user after all."""
        self._counters.delivered -= len(events)
        self._put_behind(events)

    def _put_behind(self, events: Sequence[GroupEvent]) -> None:
        """Events that are out wait again, before all others of their objects."""
        self._mark()
        self._mark_work()
        for event in events:
            self._take_back(event)
        if self.is_stopped:
            self._load = len(self._out)
            return
        self._waiting.put_back(events, self._out.values())

    def parked(self, event: GroupEvent) -> None:
        """The event was stored as a dead letter."""
        self._counters.dead += 1
        if self._take_back(event):
            self._finish(event)
            self._counters.acknowledged -= 1
            self._release(event)

    def _finish(self, event: GroupEvent) -> None:
        self._done.add(event.offset, event.offset + 1)
        self._attempts.pop(event.offset, None)
        self._load -= 1
        self._counters.acknowledged += 1
        self._mark()

    def _release(self, event: GroupEvent) -> None:
        if self._waiting.release(event):
            self._mark_work()

    # -- where it stands

    def stop(self) -> None:
        """Give out nothing more and forget what is not out; what is out may still be settled."""
        self.is_stopped = True
        self._mark()
        self._waiting.clear()
        self._load = len(self._out) + len(self._batch)

    @property
    def is_settled(self) -> bool:
        """Nothing is with the user."""
        return not self._out and not self._batch

    @property
    def has_batch_out(self) -> bool:
        """A batch that was taken without exclusivity is with the user."""
        return bool(self._batch)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def has_retries(self) -> bool:
        return self._waiting.has_retries

    @property
    def load(self) -> int:
        """Events read and not settled."""
        return self._load

    def next_retry(self) -> float:
        """When the next attempt is due; infinity when there is none."""
        return self._waiting.next_retry()

    def progress(self) -> GroupProgress:
        """What is done.  An event that is out counts as attempted: it may be what kills its consumer.  Among several
        it is not known which one it is, so that the last attempt is one that an event has for itself."""
        out = [*self._out.values(), *self._batch]
        most = self._settings.attempts_max - 1 if self._settings.attempts_max and len(out) > 1 else 1 << 30
        attempts = self._attempts | {event.offset: min(event.attempt, most) for event in out if most}
        return snapshot(self._done, self._generation, attempts, self._delays, self._expired, self._damaged)
