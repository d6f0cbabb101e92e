"""What must hold at every step of a run.  The numbers are those of the invariants in docs/shared-subscriptions.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from pubsub_api.core.events import GroupEvent
from pubsub_api.testing.simulator.world import Violation, World
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.core import messages as m
from shared_subscriptions.core.consuming.borrower import BorrowerState
from shared_subscriptions.core.consuming.handler import LoanState
from shared_subscriptions.core.events import PartitionPlace, is_portion
from shared_subscriptions.core.leading import candidate as candidates
from shared_subscriptions.core.leading.leader import MEMBERS_ONLY, Leader
from shared_subscriptions.core.leading.partitions import GrantStatus, QueuePortion
from shared_subscriptions.core.progress import AcknowledgedOffsets, GroupProgress, covers
from shared_subscriptions.leading.records import decode_partition
from shared_subscriptions.testing.simulator.profiles import LEASE, PROGRESS_S
from shared_subscriptions.testing.simulator.store import SimStore, Write

if TYPE_CHECKING:
    from shared_subscriptions.testing.simulator.hosts import SimHost

LEADER_RECORD = "group/g/leader"
GROUP_RECORD = "group/g"
PARTITION_RECORDS = "group/g/stream/"

REPETITION_S = PROGRESS_S + LEASE.beat_s + 0.3
"""How old an acknowledgement may be that a crash undoes: a report, a commit, and a moment for each of the steps."""

EventId = tuple[int, int, int]
"""Generation, shard, offset."""


class Oracle:
    def __init__(self, world: World, store: SimStore, *, is_crashing_only: bool = False) -> None:
        self.world = world
        self.is_crashing_only = is_crashing_only
        self.serial = 0
        self.hosts: list[SimHost] = []
        self.deliveries: Counter[EventId] = Counter()
        self.acked: dict[EventId, float] = {}
        """When an event was acknowledged."""
        self.crashed_at: list[float] = []
        self.letters: set[tuple[int, int]] = set()
        """Shard and offset of what was parked."""
        self.grants = 0
        self.committed: dict[int, GroupProgress] = {}
        self._store = store
        self._reigning = ""
        self._epoch = 0
        self._finals: dict[int, GroupProgress] = {}
        self._said_goodbye: set[str] = set()
        self._first: dict[tuple[int, int, str], int] = {}
        """The highest offset of an object that was delivered, by generation, shard and key."""
        self._in_loan: dict[tuple[str, int, str], int] = {}
        store.on_commit = self._on_commit

    @property
    def declaration(self) -> declarations.Declaration:
        return declarations.decode(self._store.records[GROUP_RECORD].value)

    @property
    def duplicates(self) -> int:
        return sum(count - 1 for count in self.deliveries.values())

    # -- L1, L4, L5: what is stored

    def _on_commit(self, writes: Sequence[Write]) -> None:
        for name, value, _ in writes:
            if name == LEADER_RECORD and value is not None:
                self._check_reign(candidates.decode(value))
            elif name.startswith(PARTITION_RECORDS):
                number = int(name[len(PARTITION_RECORDS) :])
                if value is None:
                    self.committed.pop(number, None)
                else:
                    self._check_progress(number, decode_partition(value).progress)

    def _check_reign(self, record: candidates.LeaderRecord) -> None:
        if record.beat == 1 and not record.is_vacant:
            self._reigning = record.id
        elif record.id != self._reigning:
            raise Violation(f"L1: {record.id} stored something while {self._reigning} leads")

    def _check_progress(self, number: int, progress: GroupProgress) -> None:
        before = self.committed.get(number)
        if before is not None and not covers(progress, before):
            raise Violation(f"L4: partition {number} went back from {before} to {progress}")
        self.committed[number] = progress
        place = PartitionPlace.of(number, self.declaration.lanes)
        done = AcknowledgedOffsets(progress.low, progress.ranges)
        for event in self._store.read(
            place.shard, self._store.starts[place.shard], len(self._store.shards[place.shard])
        ):
            key = (progress.generation, place.shard, event.offset)
            is_ours = place.owns(event) and event.offset >= self._position(place.shard, progress.generation)
            if is_ours and event.offset in done and key not in self.acked:
                raise Violation(
                    f"L5: partition {number} was stored with {event.offset} done, which no program acknowledged"
                )

    def _position(self, shard: int, generation: int) -> int:
        """Where a generation began; far away when it is over and not remembered."""
        current = self.declaration
        return current.positions[shard] if current.generation == generation else 1 << 60

    def took_office(self, leader: Leader, promised: Collection[str]) -> None:
        """``promised`` are the borrowers whose leases a leader that resigned has left behind."""
        if leader.epoch <= self._epoch:
            raise Violation(f"L1: epoch {leader.epoch} after {self._epoch}")
        self._epoch = leader.epoch
        self._finals.clear()
        self._check_leases(promised)

    # -- L21, L22: leases

    def check_single_leader(self) -> None:
        """No two processes can act as leader at once: the lease of one ends before that of the next begins."""
        acting = [
            host.name
            for host in self.hosts
            if host.is_alive and not host.is_frozen and host.leader is not None and not host.leader.is_silent(host.now)
        ]
        if len(acting) > 1:
            raise Violation(f"L21: {' and '.join(acting)} lead at once")

    def _check_leases(self, promised: Collection[str]) -> None:
        """No member can deliver under the lease of a former leader, but for those it named when it resigned."""
        for host in self.hosts:
            for subscription in host.handler.agent.subscriptions if host.is_alive else ():
                borrower = host.handler.agent.borrower(subscription)
                assert borrower is not None
                if borrower.id not in promised and any(
                    borrower.may_deliver(one, host.now) for one in borrower.partitions
                ):
                    raise Violation(f"L22: {borrower.id} holds a lease that the new leader does not know of")

    # -- L7, L9: what a leader hears and says

    def leader_hears(self, host: SimHost, leader: Leader, message: m.ToLeader) -> None:
        """Let the leader hear a message, and watch."""
        now = host.now
        member = leader.members.get(message.borrower)
        is_stranger = member is None or member.is_expelled or member.expires <= now
        if isinstance(message, MEMBERS_ONLY) and is_stranger and not leader.is_silent(now):
            before, said = _picture(leader), len(leader.messages)
            leader.on_message(message, now)
            answered = [type(answer) for answer in leader.messages[said:]]
            if _picture(leader) != before or answered != [m.Invalidate]:
                raise Violation(f"L9: a stranger's {type(message).__name__} was answered with {answered}")
            return
        if not leader.is_silent(now):
            self._note_final(leader, message)
        leader.on_message(message, now)
        self._check_ownership(leader)

    def _note_final(self, leader: Leader, message: m.ToLeader) -> None:
        told: list[tuple[int, int, GroupProgress]] = []
        if isinstance(message, m.Disconnect):
            told = list(message.progresses)
        elif isinstance(message, m.UpdateProgress) and message.finished:
            told = [(message.partition, message.grant, message.progress)]
        for number, grant, progress in told:
            partition = leader.loans.get(number)
            if partition is not None and (partition.owner, partition.grant) == (message.borrower, grant):
                self._finals[number] = progress

    def _check_ownership(self, leader: Leader) -> None:
        for partition in leader.loans.values():
            if (partition.status is GrantStatus.ABSENT) != (partition.owner == ""):
                raise Violation(
                    f"L2: partition {partition.number} is {partition.status.value} and owned by {partition.owner!r}"
                )
            if partition.owner and partition.owner not in leader.members:
                raise Violation(f"L2: partition {partition.number} is owned by {partition.owner}, which is no member")

    def leader_says(self, leader: Leader, message: m.ToBorrower) -> None:
        if not isinstance(message, m.Grant):
            return
        self.grants += 1
        self._check_portion(leader, message)
        for known in (self._finals.get(message.partition), self.committed.get(message.partition)):
            if known is None or known.generation != message.progress.generation:
                continue
            if not covers(message.progress, known) and leader.epoch == self._epoch:
                raise Violation(f"L7: partition {message.partition} was granted behind what its last owner had done")

    def _check_portion(self, leader: Leader, message: m.Grant) -> None:
        portion = leader.loans.get(message.partition)
        if not isinstance(portion, QueuePortion):
            return
        for other in leader.loans.values():
            assert isinstance(other, QueuePortion)
            if other is portion or other.base is not portion.base or other.status is GrantStatus.REVOKED:
                continue
            if portion.generation == other.generation and portion.start < other.until and other.start < portion.until:
                raise Violation(f"L17: portions {portion.start} and {other.start} of a shard overlap")

    # -- L8: what a borrower says

    def borrower_says(self, message: m.ToLeader) -> None:
        if message.borrower in self._said_goodbye:
            raise Violation(f"L8: {message.borrower} says {type(message).__name__} after its end")
        if isinstance(message, m.Disconnect):
            self._said_goodbye.add(message.borrower)

    # -- L3, L8, L10: what is delivered

    def delivered(self, host: SimHost, loan: LoanState, batch: Sequence[GroupEvent]) -> None:
        borrower = host.handler.agent.borrower(loan.subscription)
        if borrower is None or borrower.state is not BorrowerState.CONNECTED:
            raise Violation(f"L8: {host.name} delivers partition {loan.partition} while it is not connected")
        self.check_single_delivery(loan.partition)
        generation = loan.delivery.progress().generation
        for event in batch:
            shard = PartitionPlace.of(loan.partition, self.declaration.lanes).shard
            self.deliveries[generation, shard, event.offset] += 1
            self._check_repetition((generation, shard, event.offset))
            if is_portion(loan.partition):
                self._check_alone(host, loan, shard, event.offset)
            else:
                self._check_order((generation, shard, event.key), event.offset)
                self._check_order_in_loan((host.name, loan.number, event.key), event.offset)
        self.world.note(host.name, "delivers", loan.partition, *[event.offset for event in batch])

    def _check_repetition(self, event: EventId) -> None:
        """Where processes die and nothing else goes wrong: only what was acknowledged just before is repeated."""
        acked_at = self.acked.get(event)
        if acked_at is None or not self.is_crashing_only:
            return
        # While its leader is dead, a member goes on until its lease ends, and no leader hears of it.
        if not any(-LEASE.member_lease_s <= crash - acked_at <= REPETITION_S for crash in self.crashed_at):
            raise Violation(f"L19: {event} was acknowledged at {acked_at:.3f} and is delivered again")

    def _check_alone(self, host: SimHost, loan: LoanState, shard: int, offset: int) -> None:
        """No other process can deliver the same event of a queue."""
        generation = loan.delivery.progress().generation
        for other in self.hosts:
            if other is host or not other.is_alive or other.is_frozen:
                continue
            for theirs in other.handler.loans:
                known = theirs.delivery.progress()
                if theirs.delivery.is_stopped:
                    continue
                is_same = PartitionPlace.of(theirs.partition, 1).shard == shard and known.generation == generation
                if (
                    is_same
                    and known.low <= offset < theirs.until
                    and offset not in AcknowledgedOffsets(known.low, known.ranges)
                    and other.handler.agent.may_deliver(theirs.subscription, theirs.partition, other.now)
                ):
                    raise Violation(f"L3: {offset} of shard {shard} can be delivered by {host.name} and {other.name}")

    def _check_order(self, key: tuple[int, int, str], offset: int) -> None:
        highest = self._first.get(key, -1)
        if offset < highest and not self.deliveries[key[0], key[1], offset] > 1:
            raise Violation(f"L10: {offset} of key {key[2]} came for the first time after {highest}")
        self._first[key] = max(highest, offset)

    def _check_order_in_loan(self, key: tuple[str, int, str], offset: int) -> None:
        if offset < self._in_loan.get(key, -1):
            raise Violation(f"L10: {key[0]} delivered {offset} of key {key[2]} after {self._in_loan[key]}")
        self._in_loan[key] = offset

    def starts_again(self, host: SimHost, loan: LoanState) -> None:
        """A whole batch failed, so what was delivered comes again, in order."""
        for key in [key for key in self._in_loan if key[:2] == (host.name, loan.number)]:
            del self._in_loan[key]

    def acknowledged(self, loan: LoanState, batch: Sequence[GroupEvent]) -> None:
        shard = PartitionPlace.of(loan.partition, self.declaration.lanes).shard
        generation = loan.delivery.progress().generation
        for event in batch:
            self.acked.setdefault((generation, shard, event.offset), self.world.now)

    def parked(self, loan: LoanState, event: GroupEvent) -> None:
        self.acknowledged(loan, [event])
        self.letters.add((PartitionPlace.of(loan.partition, self.declaration.lanes).shard, event.offset))

    def check_single_delivery(self, partition: int | None = None) -> None:
        """No partition can be delivered by two processes at once."""
        deliverers: Counter[int] = Counter()
        for host in self.hosts:
            if host.is_alive and not host.is_frozen:
                for subscription in host.handler.agent.subscriptions:
                    borrower = host.handler.agent.borrower(subscription)
                    assert borrower is not None
                    numbers = borrower.partitions if partition is None else (partition,)
                    deliverers.update(number for number in numbers if borrower.may_deliver(number, host.now))
        twice = [number for number, count in deliverers.items() if count > 1]
        if twice:
            raise Violation(f"L3: partitions {twice} can be delivered by several members")


def _picture(leader: Leader) -> Any:
    """Everything that a stranger must not change."""
    partitions = {
        number: (partition.status, partition.owner, partition.grant, partition.record())
        for number, partition in (*leader.partitions.items(), *leader.loans.items())
    }
    return partitions, {member.id: (member.expires, member.is_expelled) for member in leader.members.values()}
