"""The leader of a group: knows its members, hands out partitions, and keeps their progress.

Theory of operation.  Each partition walks through the table of `partitions`: absent, granting, granted, revoking,
revoked and absent again.  Grant, revoke and revoked are repeated until the answer that moves the partition on arrives.
When the members, the partitions or the wishes change, and after a short delay in which more may change, `assign` says
which member should have what: partitions in other hands are revoked, those without an owner are granted, as soon as
what comes before them is done (`opening`).

Safety rests on three clocks.  A member's partitions are free only when its lease has ended here, and it ended at the
member before (`LeaseSettings`).  A leader whose own record is too old says nothing at all, so that it gives no lease
that outlives its rule.  And it stores only together with its registration: a deposed leader can store nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import Final

from shared_subscriptions.core import messages as m
from shared_subscriptions.core import redelivery
from shared_subscriptions.core.declaration import Declaration, Wish
from shared_subscriptions.core.leading.assignment import assign
from shared_subscriptions.core.leading.members import ConnectedMember, GroupMembers, Move
from shared_subscriptions.core.leading.opening import PartitionsInOrder
from shared_subscriptions.core.leading.partitions import (
    HELD,
    GrantCause,
    GrantStatus,
    Lease,
    Partition,
    PartitionInfo,
    PartitionRecord,
)
from shared_subscriptions.core.leading.stored import PartitionStore
from shared_subscriptions.core.settings import LeaderSettings

GRANT_BITS = 32

REACTIONS: Final[dict[type[m.ToLeader], str]] = {
    m.Connect: "_connect",  # welcome from any borrower
    m.Disconnect: "_disconnect",  # welcome from any borrower
    m.Ping: "_ping",
    m.UpdateProgress: "_update_progress",
    m.RevokeFinished: "_revoke_finished",
}
MEMBERS_ONLY: Final = (m.Ping, m.UpdateProgress, m.RevokeFinished)
"""From others these are answered with `Invalidate` and change nothing."""


class Leader:
    """Sans-IO and not thread-safe.  After each call `take_messages`; write what `store` has now and then."""

    def __init__(
        self,
        epoch: int,
        settings: LeaderSettings,
        declaration: Declaration,
        stored: Mapping[int, PartitionRecord],
        *,
        now: float,
        renewed_at: Callable[[], float],
        waits_for: Collection[str] = (),
    ) -> None:
        """``renewed_at`` tells when the newest write began that keeps this leader in office.  ``waits_for`` are
        borrowers whose leases a predecessor that resigned has left behind."""
        self.epoch = epoch
        self.declaration = declaration
        self.partitions: dict[int, Partition] = {}
        self.loans: Mapping[int, Partition] = self.partitions
        """What is handed out."""
        self.is_outdated = False
        """There are partitions that it has not been told of: call `on_partitions` soon."""
        self.moves: deque[Move] = deque(maxlen=settings.moves_kept)
        self.counters: Counter[str] = Counter()
        self._settings = settings
        self._group = GroupMembers(epoch, self.counters)
        self.members = self._group.known
        self.messages = self._group.messages
        """What is to be sent: see `take_messages`."""
        self.store = PartitionStore(self.partitions, stored)
        """What to write now and then; call `stored` when that was done."""
        self._renewed_at = renewed_at
        self._held_until = renewed_at() + settings.lease.leader_hold_s
        self._waits_for = set(waits_for)
        self._waits_until = now + settings.lease.member_lease_s
        self._reassign_at = float("inf")
        self._reason = "the leader took over"
        self._grants = 0
        self._is_retiring = False
        self._order = PartitionsInOrder(self.partitions)

    # -- the outside world

    def is_silent(self, now: float) -> bool:
        """Whether the registration is too old to act on."""
        if now >= self._held_until:
            self._held_until = self._renewed_at() + self._settings.lease.leader_hold_s
        return now >= self._held_until

    def on_partitions(self, infos: Mapping[int, PartitionInfo], now: float) -> None:
        """The partitions there are.  New ones appear, missing ones vanish, the start of others has moved."""
        self.is_outdated = False
        for number, info in infos.items():
            partition = self.partitions.get(number)
            if partition is None:
                self.partitions[number] = self._load(number, info)
                self._reassign_soon(f"partition {number} appeared", now)
            else:
                partition.info = info
                partition.has_vanished = False
                partition.expire()
        for number in self.partitions.keys() - infos.keys():
            self._vanish(self.partitions[number], now)
        self.store.delete_rest(infos.keys())
        self._open_next(now)

    def _load(self, number: int, info: PartitionInfo) -> Partition:
        return self.store.load(number, info, self.declaration)

    def on_log_grown(self, ends: Mapping[int, int], _now: float) -> None:
        """Shards end there now.  Owners of partitions of them should look."""
        lanes = self.declaration.lanes
        owners = {partition.owner for partition in self.loans.values() if partition.number // lanes in ends}
        for member in self.members.values():
            if member.id in owners:
                self._group.send(member, m.PingResponse, answers=0)

    def _vanish(self, partition: Partition, now: float) -> None:
        partition.has_vanished = True
        if partition.status is GrantStatus.ABSENT:
            del self.partitions[partition.number]
            self.store.delete(partition.number)
            self._reassign_soon(f"partition {partition.number} vanished", now)
        elif partition.move(GrantCause.VANISHED):
            self._say_status(partition, now)

    def on_declaration(self, declaration: Declaration, now: float) -> None:
        """The group's record, which may have changed."""
        if declaration == self.declaration:
            return
        before, self.declaration = self.declaration, declaration
        if before.generation != declaration.generation:
            reason = "the group was moved to another position"
        else:
            reason = f"the group is {declaration.wish.value}"
        self._reassign_soon(reason, now)

    # -- time

    def poll(self, now: float) -> None:
        if self.is_silent(now):
            return
        for member in [member for member in self.members.values() if member.expires <= now]:
            self.counters["expired_members"] += 1
            self._remove(member, f"the lease of {member.slot} ended", now)
        if now >= self._reassign_at:
            self._reassign(now)
        for partition in list(self.loans.values()):
            if partition.awaits_answer:
                self._nudge(partition, now)

    def next_deadline(self) -> float:
        transient = [
            partition.sent_at + self._settings.resend_s for partition in self.loans.values() if partition.awaits_answer
        ]
        leases = [member.expires for member in self.members.values()]
        return min([self._reassign_at, *leases, *transient])

    def _nudge(self, partition: Partition, now: float) -> None:
        """Say once more what was not answered; expel a member that does not finish."""
        owner = self.members[partition.owner]
        if owner.is_expelled:
            partition.sent_at = now
        elif partition.is_overdue(now - self._settings.revoke_timeout_s):
            # It does not keep to the protocol.  What it has waits until its lease has ended.
            owner.is_expelled = True
            self.counters["expelled"] += 1
            self._group.invalidate(owner.id, f"partition {partition.number} was not given back in time")
        elif now >= partition.sent_at + self._settings.resend_s:
            self.counters["resent"] += 1
            self._say_status(partition, now)

    # -- messages

    def on_message(self, message: m.ToLeader, now: float) -> None:
        """Any message, from any borrower, at any time."""
        if self.is_silent(now):
            self.counters["unheard"] += 1
            if message.borrower in self.members:
                self.members[message.borrower].is_unheard = True
            return
        member = self.members.get(message.borrower)
        if isinstance(message, MEMBERS_ONLY) and (member is None or member.is_expelled or member.expires <= now):
            self._group.invalidate(message.borrower, "the leader does not know this borrower (any more)")
            return
        if member is not None:
            if message.seq <= member.seen.get(m.concern(message), 0):
                self.counters["stale"] += 1
                return
            if m.concern(message) in self.loans or m.concern(message) == m.LEASE:
                member.seen[m.concern(message)] = message.seq
        getattr(self, REACTIONS[type(message)])(message, now)

    def _connect(self, message: m.Connect, now: float) -> None:
        member = self.members.get(message.borrower)
        if message.borrower in self._group.departed or (
            member is not None and (member.is_expelled or member.expires <= now)
        ):
            self._group.invalidate(message.borrower, "this borrower has left")
            return
        if member is None:
            if len(self.members) >= self._settings.members_max:
                self.counters["refused"] += 1
                self._group.invalidate(
                    message.borrower, f"the group has {len(self.members)} members, which is the limit"
                )
                return
            member = self._group.add(message)
            self._reassign_soon(f"{member.slot} joined", now)
        self._waits_for.discard(message.former)
        if message.former:
            self._group.alive.add(message.former)
        self._renew(member, now)
        self._group.send(member, m.ConnectResponse, answers=message.seq, lease_s=self._settings.lease.holder_lease_s)

    def _ping(self, message: m.Ping, now: float) -> None:
        member = self.members[message.borrower]
        member.is_unheard = member.is_unheard and bool(message.ends)  # reports follow a ping that tells nothing else
        self._renew(member, now)
        self._group.send(member, m.PingResponse, answers=message.seq)

    def hear_of(self, borrower: str, now: float) -> bool:
        """A member lives, says its process, and its lease is renewed; False when it is not."""
        member = self.members.get(borrower)
        if member is None or member.is_expelled or member.expires <= now or self.is_silent(now):
            return False
        if member.is_unheard:
            return False  # so that it asks by itself, and says once more what was not heard
        self._renew(member, now)
        return True

    def _loan_of(self, message: m.UpdateProgress | m.RevokeFinished) -> Partition | None:
        """What a member speaks of; None, and counted, when it does not have that (any more)."""
        partition = self.loans.get(message.partition)
        if partition is None or partition.owner != message.borrower or partition.grant != message.grant:
            self.counters["fenced"] += 1
            return None
        return partition

    def _update_progress(self, message: m.UpdateProgress, now: float) -> None:
        partition = self._loan_of(message)
        if partition is None or partition.status is GrantStatus.REVOKED:
            return
        partition.untold = 0
        partition.merge(message.progress)
        partition.move(GrantCause.FINAL if message.finished else GrantCause.PROGRESS)
        if message.finished:
            self._finished(partition, now)
            self._say_status(partition, now)
        if self._is_ended(partition):
            self._reassign_soon(f"partition {partition.number} came to its end", now)
        self._open_next(now)

    def _finished(self, partition: Partition, _now: float) -> None:
        """Nothing of the partition is with its owner any more."""
        partition.end_lease()

    def _revoke_finished(self, message: m.RevokeFinished, now: float) -> None:
        partition = self._loan_of(message)
        if partition is not None and partition.move(GrantCause.FINISHED):
            self._freed(partition, now)

    def _disconnect(self, message: m.Disconnect, now: float) -> None:
        for number, grant, progress in message.progresses:
            partition = self.loans.get(number)
            if partition is not None and (partition.owner, partition.grant) == (message.borrower, grant):
                partition.merge(progress)
        self._group.alive.add(message.borrower)
        self._waits_for.discard(message.borrower)
        member = self.members.get(message.borrower)
        if member is not None:
            self._remove(member, f"{member.slot} left", now)
        else:
            self._group.departed.add(message.borrower)

    # -- members

    def _renew(self, member: ConnectedMember, now: float) -> None:
        member.expires = now + self._settings.lease.member_lease_s

    def _remove(self, member: ConnectedMember, reason: str, now: float) -> None:
        del self.members[member.id]
        self._group.departed.add(member.id)
        for partition in list(self.loans.values()):
            if partition.owner == member.id and partition.move(GrantCause.OWNER_LOST):
                partition.base.redelivered += len(partition.attempts)
                self._freed(partition, now)
        if member.id in self._group.alive:
            for partition in self.partitions.values():
                partition.forget_holder(member.id)
        self._reassign_soon(reason, now)

    def fall_silent(self, reason: str, *, is_final: bool) -> None:
        """Tell all members to look for another leader, or that the group is gone; then say nothing any more."""
        for member in self.members.values():
            self._group.invalidate(member.id, reason, is_final=is_final)
        self._held_until = float("-inf")
        self._renewed_at = lambda: float("-inf")

    # -- assignment

    def _reassign_soon(self, reason: str, now: float) -> None:
        if self._reassign_at == float("inf"):
            self._reason = reason
            self._reassign_at = now + self._settings.rebalance_delay_s
        elif reason not in self._reason:
            self._reason = f"{self._reason}; {reason}"[:200]

    def _freed(self, partition: Partition, now: float) -> None:
        """The partition has no owner any more."""
        if partition.has_vanished:
            self._vanish(partition, now)
        elif self._reassign_at == float("inf"):
            # The end of a revoke is a step of an assignment that was decided already: it does not wait.
            self._reassign_at = now

    def _is_ended(self, partition: Partition) -> bool:
        return 0 <= self.declaration.until_of(partition.number) <= partition.done.low

    def _is_wanted(self, partition: Partition) -> bool:
        """Whether a member should have the partition, as it is."""
        return (
            self.declaration.wish is not Wish.PAUSED
            and not self._is_retiring
            and not partition.has_vanished
            and partition.generation == self.declaration.generation
            and not self._is_ended(partition)
            and self._order.is_open(partition, self.declaration)
        )

    def _open_next(self, now: float) -> None:
        if self._order.has_opened(self.declaration):
            self._reassign_soon("what comes before a partition is done", now)

    def _reassign(self, now: float) -> None:
        if self._must_wait(now):
            return
        self._seek_free_partitions()
        self._order.look(self.declaration)
        slots = self._group.slots()
        wanted = {partition.number for partition in self.partitions.values() if self._is_wanted(partition)}
        held = {
            number: self.members[self.partitions[number].owner].slot for number in wanted if self._is_well_held(number)
        }
        homes = {partition.number: partition.home for partition in self.partitions.values()}
        plan = assign(wanted, slots, held, homes)
        for partition in self.partitions.values():
            slot = plan.get(partition.number)
            if partition.status in HELD and (slot is None or held.get(partition.number) != slot):
                self._revoke(partition, now)
            elif partition.status is GrantStatus.ABSENT and slot is not None and self._may_have(partition, slots[slot]):
                partition.settle_in(slot, slots)
                self._grant(partition, slots[slot], now)

    def _must_wait(self, now: float) -> bool:
        """Whether leases of a predecessor may still run; otherwise what was due is done now."""
        if self._waits_for and now < self._waits_until:
            self._reassign_at = min(self._waits_until, now + self._settings.rebalance_delay_s)
            return True
        self._waits_for.clear()
        self._reassign_at = float("inf")
        return False

    def _may_have(self, partition: Partition, member: ConnectedMember) -> bool:
        """Whether a member may have a partition now: of suspects it gets one after the other."""
        self._judge(partition)
        _, count = redelivery.piece(partition.suspects, partition.done.low, self._settings.attempts_max)
        return not count or not self._has_suspect(member)

    def _has_suspect(self, member: ConnectedMember) -> bool:
        return any(loan.is_suspect and loan.owner == member.id for loan in self.loans.values())

    def _judge(self, partition: Partition) -> None:
        """Leases of no member were left by a borrower that died, or has shown since that it lives."""
        for lease in sorted(lease for lease in partition.leases if lease.borrower not in self.members):
            if lease.borrower in self._group.alive:
                partition.forget_holder(lease.borrower)
            else:
                self.counters["crashed_holders"] += 1
                partition.accuse(lease, self._settings.attempts_max)

    def _is_well_held(self, number: int) -> bool:
        """Whether the partition is in the hands of the member that its slot means, and under today's conditions."""
        partition = self.partitions[number]
        if partition.status not in HELD or partition.wished_until != self.declaration.until_of(number):
            return False
        return not (owner := self.members[partition.owner]).is_expelled and self._group.slots()[owner.slot] is owner

    def _seek_free_partitions(self) -> None:
        for partition in self.partitions.values():
            if partition.status is GrantStatus.ABSENT and partition.generation != self.declaration.generation:
                position = self.declaration.position_of(partition.number // self.declaration.lanes)
                partition.reset(self.declaration.generation, position)
                partition.expire()

    def _grant(self, partition: Partition, member: ConnectedMember, now: float) -> None:
        partition.expire()
        partition.move(GrantCause.GRANT)
        partition.owner = member.id
        partition.grant = self._new_grant()
        partition.owner_expired = 0
        self._limit(partition, member)
        if partition.former != member.slot:
            self.moves.append(Move(partition.number, partition.former, member.slot, self._reason, now))
            self.counters["moves"] += 1
            partition.former = member.slot
            partition.is_dirty = True
        self.counters["grants"] += 1
        if not partition.is_waiting:
            self._say_status(partition, now)

    def _new_grant(self) -> int:
        self._grants += 1
        return (self.epoch << GRANT_BITS) + self._grants

    def _limit(self, partition: Partition, member: ConnectedMember) -> None:
        """How far the new owner may go.  What its predecessors died of, perhaps, it gets in small pieces."""
        partition.wished_until = partition.until = self.declaration.until_of(partition.number)
        start = partition.done.low
        end, count = redelivery.piece(partition.suspects, start, self._settings.attempts_max)
        if end >= 0 and (partition.until < 0 or end < partition.until):
            partition.until = end
            partition.count_alone(start, end, count)
        partition.is_suspect = count > 0
        partition.take_lease(Lease(member.id, start, -1 if end < 0 else partition.until))

    def _revoke(self, partition: Partition, now: float) -> None:
        owner = self.members[partition.owner]
        if partition.is_waiting:  # for a moment: its owner has not been told of it yet
            self._reassign_at = min(self._reassign_at, now + self._settings.rebalance_delay_s)
            return
        if owner.is_expelled:
            return
        partition.move(GrantCause.REVOKE)
        partition.revoked_at = now
        self.counters["revokes"] += 1
        self._say_status(partition, now)

    # -- sending

    def _say_status(self, partition: Partition, now: float) -> None:
        """Tell the owner what the partition's status asks of it."""
        partition.sent_at = now
        member = self.members[partition.owner]
        if partition.status is GrantStatus.GRANTING:
            self._group.send(
                member, m.Grant, partition=partition.number, grant=partition.grant, progress=partition.progress(),
                until=partition.until, expired=partition.untold,
            )  # fmt: skip
        elif partition.status is GrantStatus.REVOKING:
            self._group.send(member, m.Revoke, partition=partition.number, grant=partition.grant)
        elif partition.status is GrantStatus.REVOKED:
            self._group.send(member, m.Revoked, partition=partition.number, grant=partition.grant)

    def take_messages(self) -> list[m.ToBorrower]:
        said = list(self.messages)
        self.messages.clear()
        return said

    def damaged(self) -> dict[int, list[tuple[int, int]]]:
        """Partition -> what of it the log cannot give, as its owners say, and is not done."""
        return {one.number: list(one.damaged) for one in self.partitions.values() if one.damaged}

    # -- storing

    @property
    def wants_to_store(self) -> bool:
        """Whether an owner waits for its lease to be stored."""
        return any(partition.is_waiting for partition in self.loans.values())

    def stored(self, records: Mapping[int, PartitionRecord], deleted: Collection[int], now: float) -> None:
        """What `store` wanted is durable now.  Owners whose leases are among it are told what they have."""
        for loan in self.loans.values():
            record = records.get(loan.base.number)
            if loan.is_waiting and record is not None and loan.lease in record.leases:
                loan.is_waiting = False
                self._say_status(loan, now)
        self.store.written(records, deleted)

    # -- leaving

    def retire(self, now: float) -> None:
        """Take all partitions back in good order, so that a successor can hand them out at once."""
        self._is_retiring = True
        self._reassign_soon("the leader resigns", now)

    def holders(self) -> list[str]:
        """Borrowers that still have partitions."""
        return sorted({partition.owner for partition in self.loans.values() if partition.owner})
