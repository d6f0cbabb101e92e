"""All shared subscriptions of one member: a collection of borrowers, one per subscription.

Borrowers do not know of each other.  After a quick unsubscribe and subscribe there are two for the same group, one that
gives its partitions back and one that asks for some.  A borrower that resets is replaced here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from shared_subscriptions.core import messages as m
from shared_subscriptions.core.consuming.borrower import Borrower, BorrowerState, Reset, SessionEvent, Stopped
from shared_subscriptions.core.progress import GroupProgress
from shared_subscriptions.core.settings import BorrowerSettings


class Agent:
    """Sans-IO and not thread-safe.  ``new_id`` gives an identity that was never used before, anywhere."""

    def __init__(
        self,
        settings: BorrowerSettings,
        new_id: Callable[[], str],
        name: str = "",
        portions: int = 1,
        offsets: int = 0,
    ) -> None:
        self.resets = 0
        """Borrowers that were replaced."""
        self._settings = settings
        self._new_id = new_id
        self._name = name
        self._portions, self._offsets = portions, offsets
        self._borrowers: dict[int, Borrower] = {}
        self._numbers: dict[str, int] = {}
        """Borrower -> its subscription."""
        self._formers: set[str] = set()
        """Those that were replaced by one of them."""
        self._due = float("inf")
        """No borrower has anything to do before that.  Renewed leases only put it off, so it may be too early."""
        self._called: dict[int, None] = {}
        """Subscriptions whose borrowers may have something to say."""
        self.changes = 0
        """Rises whenever a borrower comes or goes."""

    def subscribe(self, subscription: int, now: float) -> None:
        """``subscription`` is a number that was not used before."""
        self._make(subscription, "", now)

    def unsubscribe(self, subscription: int, now: float) -> None:
        self._borrowers[subscription].on_unsubscribe(now)
        self._note(subscription)

    def disconnect(self) -> None:
        """Give everything back, at once."""
        for subscription, borrower in self._borrowers.items():
            borrower.on_disconnect()
            self._note(subscription)

    def on_message(self, subscription: int, message: m.ToBorrower, now: float) -> None:
        """Messages to a borrower of a former life vanish."""
        borrower = self._borrowers.get(subscription)
        if borrower is not None and borrower.id == message.borrower:
            borrower.on_message(message, now)
            self._note(subscription)

    def on_heard_of(self, borrowers: Iterable[str], asked_at: float, now: float) -> None:
        """The leader has heard from this process that these borrowers live (`Borrower.on_heard_of`)."""
        heard_of = [self._borrowers[self._numbers[one]] for one in borrowers if one in self._numbers]
        for borrower in heard_of:
            borrower.on_heard_of(asked_at, now)
        if len(heard_of) == len(self._borrowers):
            self._due = min((borrower.next_deadline() for borrower in heard_of), default=float("inf"))

    def on_leader_changed(self, subscription: int, now: float) -> None:
        borrower = self._borrowers.get(subscription)
        if borrower is not None:
            borrower.on_leader_changed(now)
            self._note(subscription)

    def on_log_grown(self, subscription: int, ends: Mapping[int, int], now: float) -> None:
        borrower = self._borrowers.get(subscription)
        if borrower is not None:
            borrower.on_log_grown(ends, now)
            self._note(subscription)

    def on_partition_progress(
        self, subscription: int, partition: int, progress: GroupProgress, *, is_settled: bool, is_complete: bool = False
    ) -> None:
        borrower = self._borrowers.get(subscription)
        if borrower is not None:
            borrower.on_partition_progress(partition, progress, is_settled=is_settled, is_complete=is_complete)
            self._note(subscription)

    def may_deliver(self, subscription: int, partition: int, now: float) -> bool:
        borrower = self._borrowers.get(subscription)
        return borrower is not None and borrower.may_deliver(partition, now)

    def is_giving_up(self, now: float) -> bool:
        """Whether a subscription ends with the next `poll`, because its time to end in good order is over."""
        return now >= self._due and any(borrower.is_giving_up(now) for borrower in self._borrowers.values())

    def poll(self, now: float) -> None:
        if now < self._due:
            return
        self._due = float("inf")
        for subscription, borrower in self._borrowers.items():
            due = borrower.next_deadline()
            if due <= now:
                borrower.poll(now)
                self._note(subscription)
            else:
                self._due = min(self._due, due)

    def next_deadline(self) -> float:
        """Call `poll` then, if not before."""
        return self._due

    def _note(self, subscription: int) -> None:
        """Something was said to a borrower."""
        self._called[subscription] = None
        self._due = min(self._due, self._borrowers[subscription].next_deadline())

    def is_connected(self, subscription: int) -> bool:
        borrower = self._borrowers.get(subscription)
        return borrower is not None and borrower.state is BorrowerState.CONNECTED

    def is_unsubscribing(self, subscription: int) -> bool:
        borrower = self._borrowers.get(subscription)
        return borrower is not None and borrower.state is BorrowerState.UNSUBSCRIBING

    @property
    def subscriptions(self) -> list[int]:
        """Those that have a borrower, also one that is about to end."""
        return list(self._borrowers)

    def subscription_of(self, borrower: str) -> int | None:
        """None when there is no such borrower, or no longer."""
        return self._numbers.get(borrower)

    def is_own(self, borrower: str) -> bool:
        """Whether it is one of these, or was replaced by one of them."""
        return borrower in self._numbers or borrower in self._formers

    def borrower(self, subscription: int) -> Borrower | None:
        return self._borrowers.get(subscription)

    def take(
        self, now: float, only: int | None = None
    ) -> tuple[list[tuple[int, m.ToLeader]], list[tuple[int, SessionEvent]]]:
        """What is to be sent, and what the session must know, each with its subscription; of one only, or of all."""
        messages: list[tuple[int, m.ToLeader]] = []
        events: list[tuple[int, SessionEvent]] = []
        for subscription in list(self._called) if only is None else self._called.keys() & {only}:
            del self._called[subscription]
            borrower = self._borrowers[subscription]
            said, told = borrower.messages, borrower.events
            borrower.messages, borrower.events = [], []
            messages += [(subscription, message) for message in said]
            events += [(subscription, event) for event in told]
            for event in told:
                self._after(subscription, borrower, event, now)
        return messages, events

    def _after(self, subscription: int, borrower: Borrower, event: SessionEvent, now: float) -> None:
        if not isinstance(event, Stopped | Reset):
            return
        del self._borrowers[subscription], self._numbers[borrower.id]
        self.changes += 1
        self._formers.discard(borrower.former)
        if isinstance(event, Reset) and not event.is_final:
            self.resets += 1
            self._formers.add(borrower.id)
            self._make(subscription, borrower.id, now)

    def _make(self, subscription: int, former: str, now: float) -> None:
        borrower = Borrower(
            self._new_id(),
            self._settings,
            now=now,
            name=self._name,
            former=former,
            portions=self._portions,
            offsets=self._offsets,
        )
        self._borrowers[subscription] = borrower
        self._numbers[borrower.id] = subscription
        self.changes += 1
        self._note(subscription)
