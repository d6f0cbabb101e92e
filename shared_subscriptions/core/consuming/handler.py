"""The session's side of shared subscriptions: which partitions there are to deliver, and how far each is.

It knows how events are read, delivered and acknowledged, and nothing of how partitions are obtained: that is the
agent's.  It does no I/O: its owner reads the log for the loans that have room, calls the user with
what `next_batch` gives, and sends what `take_messages` returns.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping

from pubsub_api.core.events import GroupEvent
from shared_subscriptions.core import messages as m
from shared_subscriptions.core import redelivery
from shared_subscriptions.core.consuming.agent import Agent
from shared_subscriptions.core.consuming.borrower import Granted, Lost, Revoking, SessionEvent, Stopped
from shared_subscriptions.core.consuming.partitions import ChangedLoans, DeliveryCounters, PartitionDelivery
from shared_subscriptions.core.events import is_portion
from shared_subscriptions.core.progress import AcknowledgedOffsets, GroupProgress
from shared_subscriptions.core.settings import BorrowerSettings, DeliverySettings

REMEMBERED_MAX = 1000
"""Partitions whose acknowledgements a member remembers after it has lost them."""


@dataclasses.dataclass
class LoanState:
    """A partition in this member's hands.  ``number`` is unique in the process."""

    number: int
    subscription: int
    partition: int
    grant: int
    until: int
    """Deliver nothing from this offset on; -1 for no end."""
    delivery: PartitionDelivery
    granted: GroupProgress
    """What the leader knew of it."""
    former: LoanState | None = None
    """The last one of the partition here: what was acknowledged there counts when the log proves to be the same."""
    is_begun: bool = False
    """It may have been read; what was acknowledged before has been counted, or never will be."""
    is_void: bool = False
    """The log went back meanwhile: offsets that were acknowledged may be those of other events now."""
    is_finish_told: bool = False

    @property
    def wants_events(self) -> bool:
        """Whether reading on makes sense."""
        return self.delivery.room > 0 and not (0 <= self.until <= self.delivery.next_offset)

    @property
    def is_complete(self) -> bool:
        """All of it up to `until` has been settled, or refused."""
        return 0 <= self.until <= self.delivery.next_offset and not self.delivery.load

    def news(self, below: int) -> GroupProgress:
        """What of the offsets below one was acknowledged here, and not known when the partition was granted."""
        known, now = AcknowledgedOffsets(self.granted.low, self.granted.ranges), self.delivery.progress()
        done = ((0, now.low), *now.ranges)
        ranges = [part for start, end in done for part in redelivery.undone(known, start, min(end, below))]
        attempts = {offset: count for offset, count in now.attempts.items() if offset < below}
        return GroupProgress(now.generation, 0, tuple(ranges), attempts)


class Handler:
    """Sans-IO and not thread-safe.  Call `poll` when time has passed and after events were settled."""

    def __init__(
        self,
        borrower: BorrowerSettings,
        delivery: DeliverySettings,
        new_id: Callable[[], str],
        *,
        name: str = "",
        progress_interval_s: float = 0.2,
        portions_max: int = 2,
        offsets_max: int = 0,
    ) -> None:
        """``portions_max`` is how many portions of a queue it may have at once, ``offsets_max`` how large each may be;
        0 for as large as the leader thinks right."""
        self.agent = Agent(borrower, new_id, name, portions_max, offsets_max)
        self._portions_max = portions_max
        self.counters = DeliveryCounters()
        self.granted = 0
        """Loans so far."""
        self.ended: dict[int, str] = {}
        """Subscriptions that will never get anything again, and why."""
        self._delivery_settings = delivery
        self._progress_interval_s = progress_interval_s
        self._report_at = 0.0
        self._is_ordered: dict[int, bool] = {}
        self._loans: dict[int, LoanState] = {}
        self._marks = ChangedLoans()
        self._remembered: OrderedDict[tuple[int, int], LoanState] = OrderedDict()
        self._grown: dict[int, dict[int, int]] = {}
        self._suspended: dict[int, bool] = {}
        self._messages: list[tuple[int, m.ToLeader]] = []

    # -- subscriptions

    def subscribe(self, subscription: int, *, is_ordered: bool, now: float) -> None:
        self._is_ordered[subscription] = is_ordered
        self.agent.subscribe(subscription, now)

    def unsubscribe(self, subscription: int, now: float) -> None:
        if self._suspended.pop(subscription, None) is None:
            self.agent.unsubscribe(subscription, now)
            self._work_off(now)

    def disconnect(self, now: float) -> None:
        """Report everything that is known and give all partitions back at once."""
        self._report_all()
        self.agent.disconnect()
        self._work_off(now)

    @property
    def subscriptions(self) -> list[int]:
        """Those that are wanted or about to end."""
        return [*self.agent.subscriptions, *self._suspended]

    def suspend(self, now: float) -> None:
        """No thread here can handle events at the moment: leave all groups, so that others get the partitions."""
        self._suspended |= {
            number: self._is_ordered[number]
            for number in self.agent.subscriptions
            if not self.agent.is_unsubscribing(number)
        }
        self.disconnect(now)

    def resume(self, now: float) -> None:
        """Join again what `suspend` has left."""
        suspended, self._suspended = self._suspended, {}
        for subscription, is_ordered in suspended.items():
            self.subscribe(subscription, is_ordered=is_ordered, now=now)

    def on_message(self, subscription: int, message: m.ToBorrower, now: float) -> None:
        self.agent.on_message(subscription, message, now)
        self._work_off(now, subscription)

    # -- events

    @property
    def loans(self) -> list[LoanState]:
        return list(self._loans.values())

    def take_hungry(self) -> list[LoanState]:
        """Loans that want events since the last call, because they are new or have room again."""
        hungry, self._marks.hungry = self._marks.hungry, {}
        return [self._loans[number] for number in hungry if number in self._loans]

    def loan_of(self, event: GroupEvent) -> LoanState | None:
        """Where a delivered event belongs; None when its partition is not in this member's hands any more."""
        return self._loans.get(event.loan)

    def next_batch(self, now: float, limit: int, *, is_exclusive: bool) -> tuple[LoanState, list[GroupEvent]] | None:
        """Events for the user, of one partition.  Partitions take turns.

        Fenced: nothing comes of a partition whose lease has ended by ``now``.
        """
        for number in list(self._marks.working):
            loan = self._loans.get(number)
            if loan is None or not (loan.delivery.has_work or loan.delivery.has_retries):
                del self._marks.working[number]
                continue
            if loan.delivery.has_batch_out:
                continue
            if not is_exclusive and not loan.delivery.is_settled:
                continue
            if not self.agent.may_deliver(loan.subscription, loan.partition, now):
                continue
            while loan.delivery.has_work or loan.delivery.next_retry() <= now:
                batch = loan.delivery.take(now, limit, is_exclusive=is_exclusive)
                if batch:
                    self._marks.working.move_to_end(number)
                    return loan, batch
        return None

    def idle_queues(self) -> list[int]:
        """Subscriptions to queues for which this member could take on more work than it has."""
        held = Counter(loan.subscription for loan in self._loans.values())
        return [
            number
            for number in self.agent.subscriptions
            if not self._is_ordered[number]
            and self.agent.is_connected(number)
            and held[number] < self._portions_max
        ]  # fmt: skip

    def on_log_grown(self, subscription: int, ends: Mapping[int, int]) -> None:
        """Shards have grown, for a queue that this member has time for.  The leader is told with the next messages."""
        self._grown[subscription] = {**self._grown.get(subscription, {}), **ends}

    def is_lent(self, loan: LoanState) -> bool:
        return loan.number in self._loans

    def lease_end(self, subscription: int) -> float:
        """Nothing may be delivered from then on."""
        borrower = self.agent.borrower(subscription)
        return 0.0 if borrower is None else borrower.lease_end

    # -- time

    def poll(self, now: float) -> None:
        if self.agent.is_giving_up(now):
            self._report_all()  # what was settled since the last report counts, too
        self.agent.poll(now)
        self._work_off(now)
        self._tell_finished()
        grown, self._grown = self._grown, {}
        for subscription, ends in grown.items():
            self.agent.on_log_grown(subscription, ends, now)
        if now >= self._report_at:
            self._report_at = now + self._progress_interval_s
            self._report_changes()

    def next_deadline(self) -> float:
        return min(self.agent.next_deadline(), self._report_at if self.has_news else float("inf"))

    @property
    def has_news(self) -> bool:
        """Whether there is progress to report."""
        return bool(self._marks.changed)

    def next_retry(self) -> float:
        working = (self._loans[number] for number in self._marks.working if number in self._loans)
        return min((loan.delivery.next_retry() for loan in working), default=float("inf"))

    def take_messages(self, now: float) -> list[tuple[int, m.ToLeader]]:
        self._work_off(now)
        messages, self._messages = self._messages, []
        return messages

    # -- between agent and partitions

    def _work_off(self, now: float, only: int | None = None) -> None:
        messages, events = self.agent.take(now, only)
        self._messages += messages
        for subscription, event in events:
            self._apply(subscription, event)
        if any(isinstance(event, Revoking) for _, event in events):
            self._tell_finished()
            self._work_off(now, only)

    def _apply(self, subscription: int, event: SessionEvent) -> None:
        if isinstance(event, Granted):
            self._lend(subscription, event)
        elif isinstance(event, Revoking):
            for loan in self._of(subscription, event.partition):
                loan.delivery.stop()
        elif isinstance(event, Lost):
            for loan in self._of(subscription, event.partition):
                loan.delivery.stop()
                self._remember(loan)
                del self._loans[loan.number]
        elif isinstance(event, Stopped):
            del self._is_ordered[subscription]
        elif event.is_final:
            del self._is_ordered[subscription]
            self.ended[subscription] = event.reason

    def _lend(self, subscription: int, event: Granted) -> None:
        self.granted += 1
        self.counters.expired += event.expired
        delivery = PartitionDelivery(
            event.progress, self._delivery_settings, self.counters, is_ordered=self._is_ordered[subscription],
            marks=self._marks, number=self.granted,
        )  # fmt: skip
        self._loans[self.granted] = LoanState(
            self.granted, subscription, event.partition, event.grant, event.until, delivery, event.progress,
            self._remembered.pop((subscription, event.partition), None), is_begun=is_portion(event.partition),
        )  # fmt: skip

    def _of(self, subscription: int, partition: int) -> list[LoanState]:
        return [
            loan for loan in self._loans.values() if (loan.subscription, loan.partition) == (subscription, partition)
        ]

    # -- what was acknowledged and perhaps never arrived

    def _remember(self, loan: LoanState) -> None:
        """The leader may not know the last acknowledgements, nor those that come late; should the partition come back,
        they count."""
        known = loan if loan.is_begun else loan.former
        if known is None or known.is_void or is_portion(loan.partition):
            return  # a portion will never come back under its number
        key = loan.subscription, loan.partition
        self._remembered[key] = known
        self._remembered.move_to_end(key)
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def begin(self, loan: LoanState, proven: int) -> None:
        """Before a loan is read.  Offsets below ``proven`` are those of the events that this member knows: what it has
        acknowledged of them counts."""
        former, loan.former, loan.is_begun = loan.former, None, True
        if former is not None:
            loan.delivery.recall(former.news(proven))

    def void(self, is_of: Callable[[int, int], bool]) -> list[LoanState]:
        """The log went back: nothing counts that was acknowledged of the partitions, each with its subscription, of
        which ``is_of`` says so.  Returns what is void."""
        known = [key for key in self._remembered if key[0] in self._is_ordered and is_of(*key)]
        found = [self._remembered.pop(key) for key in known]
        for loan in self._loans.values():
            if loan.is_void or not is_of(loan.subscription, loan.partition):
                continue
            if loan.is_begun:
                loan.is_void = True
                found.append(loan)
            elif loan.former is not None:
                found.append(loan.former)
                loan.former = None
        return found

    # -- reports

    def _report_changes(self) -> None:
        changed, self._marks.changed = self._marks.changed, {}
        for loan in [self._loans[number] for number in changed if number in self._loans]:
            if not loan.is_finish_told:
                self._report(loan, loan.delivery.progress())

    def _report_all(self) -> None:
        for loan in self._loans.values():
            self._report(loan, loan.delivery.progress())

    def _tell_finished(self) -> None:
        """Partitions that are complete, or to be given back with nothing of them with the user any more."""
        touched, self._marks.touched = self._marks.touched, {}
        for loan in [self._loans[number] for number in touched if number in self._loans]:
            if loan.is_finish_told:
                continue
            is_complete = loan.is_complete
            if is_complete:
                loan.delivery.stop()
            if is_complete or (loan.delivery.is_stopped and loan.delivery.is_settled):
                loan.is_finish_told = True
                self._report(loan, loan.delivery.progress(), is_complete=is_complete)

    def _report(self, loan: LoanState, progress: GroupProgress, *, is_complete: bool = False) -> None:
        self.agent.on_partition_progress(
            loan.subscription, loan.partition, progress, is_settled=loan.delivery.is_settled, is_complete=is_complete
        )
