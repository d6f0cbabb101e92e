"""What a program does with the events of its member in the simulation.

It reads, is given batches, and acknowledges them or single events, sooner or later; sometimes it fails, hangs or dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsub_api.core.events import GroupEvent
from pubsub_api.testing.simulator.world import Violation
from shared_subscriptions.core.consuming.handler import LoanState
from shared_subscriptions.core.events import PartitionPlace
from shared_subscriptions.testing.simulator import profiles
from shared_subscriptions.testing.simulator.store import SimStore

if TYPE_CHECKING:
    from shared_subscriptions.testing.simulator.hosts import SimHost
    from shared_subscriptions.testing.simulator.oracle import Oracle


class SimProgram:
    """Fails and hangs as often as the profile says; exclusive, as `Handler.next_batch` has it."""

    def __init__(
        self, host: SimHost, store: SimStore, oracle: Oracle, profile: profiles.Profile, *, is_exclusive: bool
    ) -> None:
        self._host, self._handler, self._world = host, host.handler, host.world
        self._store, self._oracle = store, oracle
        self._failing, self._hanging = profile.failing, profile.hanging
        self._is_exclusive = is_exclusive
        self._calls = 0
        self._hung: set[int] = set()
        """Calls that were given up."""

    def stop_failing(self) -> None:
        self._failing = self._hanging = 0.0

    def read(self) -> None:
        declaration = self._store.declaration()
        for loan in self._handler.loans:
            place = PartitionPlace.of(loan.partition, declaration.lanes)
            delivery = loan.delivery
            is_at_end = delivery.next_offset >= len(self._store.shards[place.shard])
            if is_at_end or not loan.wants_events or place.shard in self._store.hidden:
                continue
            if not loan.is_begun:
                self._handler.begin(loan, len(self._store.shards[place.shard]))
            start = self._store.starts[place.shard]
            if delivery.next_offset < start:
                start = min(start, loan.until) if loan.until >= 0 else start
                delivery.expire(delivery.next_offset, start)
                delivery.skip(start)
            events = self._store.read(place.shard, delivery.next_offset, self._world.random.randint(1, 8))
            if loan.until >= 0:
                events = [event for event in events if event.offset < loan.until]
            if events:
                self._offer(loan, place, events)

    def _offer(self, loan: LoanState, place: PartitionPlace, events: Sequence[GroupEvent]) -> None:
        mine = [event for event in events if place.owns(event)]
        for event in mine:
            event.stream, event.grant, event.loan = loan.partition, loan.grant, loan.number
        loan.delivery.offer(mine)
        loan.delivery.skip(events[-1].offset + 1)

    def consume(self) -> None:
        limit = self._world.random.randint(1, 6)
        found = self._handler.next_batch(self._host.now, limit, is_exclusive=self._is_exclusive)
        if found is None:
            return
        loan, batch = found
        if loan.delivery.is_overdue(batch[0]):
            self._oracle.parked(loan, batch[0])
            loan.delivery.parked(batch[0])
            return
        shard = PartitionPlace.of(loan.partition, self._store.declaration().lanes).shard
        deadly = [place for place, event in enumerate(batch) if (shard, event.offset) in self._store.poison]
        if deadly:
            self._oracle.delivered(self._host, loan, batch[: deadly[0] + 1])
            self._host.crash()
            return
        bad = [place for place in range(len(batch)) if self._world.chance(self._failing)]
        stops_at = bad[0] if bad and not self._is_exclusive and self._world.chance(0.5) else None
        self._oracle.delivered(self._host, loan, batch if stops_at is None else batch[: stops_at + 1])
        takes_s = self._world.between(0.0, 0.15)
        self._calls += 1
        if self._world.chance(self._hanging):
            takes_s += self._world.between(1.0, 3.0) * profiles.HANDLER_TIMEOUT_S
            self._world.after(profiles.HANDLER_TIMEOUT_S, self._give_up, self._calls, loan, batch)
        self._world.after(takes_s, self._finish_batch, self._calls, loan, batch, bad, stops_at)

    def _give_up(self, call: int, loan: LoanState, batch: list[GroupEvent]) -> None:
        """The callback hangs: everything comes again, and as there is no other thread, at other members."""
        if not self._host.is_alive or self._host.is_frozen:
            return
        self._hung.add(call)
        self._world.note(self._host.name, "hangs in", loan.partition)
        self._oracle.starts_again(self._host, loan)
        if not self._is_exclusive:
            loan.delivery.break_up(batch)
        loan.delivery.time_out_batch(batch, self._host.now)
        self._handler.suspend(self._host.now)
        self._host.send_out()

    def _finish_batch(
        self, call: int, loan: LoanState, batch: list[GroupEvent], bad: list[int], stops_at: int | None
    ) -> None:
        if not self._host.is_alive:
            return
        if self._host.is_frozen:
            self._world.after(0.1, self._finish_batch, call, loan, batch, bad, stops_at)
            return
        if call in self._hung:
            self._hung.discard(call)
            if any(loan.delivery.ack(event) for event in batch):
                raise Violation(f"L20: {self._host.name} acknowledged what had been taken back from it")
            if not self._hung and not self._host.is_leaving:
                self._handler.resume(self._host.now)
            return
        if self._is_exclusive:
            for place, event in enumerate(batch):
                self._settle_one(loan, event, is_bad=place in bad)
        elif not bad:
            self._oracle.acknowledged(loan, batch)
            loan.delivery.settle(batch)
        elif stops_at is None and len(batch) > 1:
            self._oracle.starts_again(self._host, loan)
            loan.delivery.fail_batch(batch, self._host.now)
        else:
            self._fail_in_the_middle(loan, batch, bad[0])
        self._handler.poll(self._host.now)
        self._host.send_out()

    def _fail_in_the_middle(self, loan: LoanState, batch: list[GroupEvent], place: int) -> None:
        """One event after the other: those behind the one that failed never reach the user."""
        loan.delivery.break_up(batch)
        for event in batch[:place]:
            self._settle_one(loan, event, is_bad=False)
        self._settle_one(loan, batch[place], is_bad=True)
        loan.delivery.put_back(batch[place + 1 :])

    def _settle_one(self, loan: LoanState, event: GroupEvent, *, is_bad: bool) -> None:
        if not is_bad:
            if loan.delivery.ack(event):
                self._oracle.acknowledged(loan, [event])
        elif not loan.delivery.fail(event, self._host.now):
            self._oracle.parked(loan, event)
            loan.delivery.parked(event)
