"""The leader's record of one partition: its owner, how far it is, and the table of what may happen to it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from shared_subscriptions.core import redelivery
from shared_subscriptions.core.progress import AcknowledgedOffsets, GroupProgress, snapshot


class GrantStatus(enum.Enum):
    ABSENT = "absent"
    """It has no owner."""
    GRANTING = "granting"
    GRANTED = "granted"
    REVOKING = "revoking"
    REVOKED = "revoked"


class GrantCause(enum.Enum):
    GRANT = "grant"
    PROGRESS = "progress"
    REVOKE = "revoke"
    FINAL = "final progress"
    FINISHED = "revoke finished"
    VANISHED = "partition vanished"
    OWNER_LOST = "owner lost"


TRANSITIONS: Final[dict[tuple[GrantStatus, GrantCause], GrantStatus]] = {
    (GrantStatus.ABSENT, GrantCause.GRANT): GrantStatus.GRANTING,
    (GrantStatus.GRANTING, GrantCause.PROGRESS): GrantStatus.GRANTED,
    (GrantStatus.GRANTING, GrantCause.FINAL): GrantStatus.REVOKED,
    (GrantStatus.GRANTING, GrantCause.REVOKE): GrantStatus.REVOKING,
    (GrantStatus.GRANTING, GrantCause.VANISHED): GrantStatus.REVOKED,
    (GrantStatus.GRANTING, GrantCause.OWNER_LOST): GrantStatus.ABSENT,
    (GrantStatus.GRANTED, GrantCause.PROGRESS): GrantStatus.GRANTED,
    (GrantStatus.GRANTED, GrantCause.FINAL): GrantStatus.REVOKED,
    (GrantStatus.GRANTED, GrantCause.REVOKE): GrantStatus.REVOKING,
    (GrantStatus.GRANTED, GrantCause.VANISHED): GrantStatus.REVOKED,
    (GrantStatus.GRANTED, GrantCause.OWNER_LOST): GrantStatus.ABSENT,
    (GrantStatus.REVOKING, GrantCause.PROGRESS): GrantStatus.REVOKING,
    (GrantStatus.REVOKING, GrantCause.FINAL): GrantStatus.REVOKED,
    (GrantStatus.REVOKING, GrantCause.VANISHED): GrantStatus.REVOKED,
    (GrantStatus.REVOKING, GrantCause.OWNER_LOST): GrantStatus.ABSENT,
    (GrantStatus.REVOKED, GrantCause.FINISHED): GrantStatus.ABSENT,
    (GrantStatus.REVOKED, GrantCause.OWNER_LOST): GrantStatus.ABSENT,
}
"""Whatever is not here changes nothing."""

HELD = (GrantStatus.GRANTING, GrantStatus.GRANTED)


class PartitionInfo(NamedTuple):
    """What the log says about a partition."""

    start: int
    """The oldest offset that can be read."""
    end: int
    after: tuple[tuple[int, int], ...] = ()
    """Shards, and up to which offset each has to be done before this one begins: it has taken topics over from them."""


class Lease(NamedTuple):
    """A borrower that may have been delivering a range when the record was stored."""

    borrower: str
    start: int
    end: int
    """-1 for no end."""


class PartitionRecord(msgspec.Struct, frozen=True):
    """What is stored of a partition."""

    progress: GroupProgress
    owner: str = ""
    """Name of the member that had it last."""
    home: str = ""
    """Name of the member that gets it back when it returns."""
    expired: int = 0
    """Offsets that retention dropped before they were acknowledged, so far."""
    redelivered: int = 0
    """Events that were with an owner which lost the partition before it acknowledged them, so far."""
    leases: tuple[Lease, ...] = ()
    """Stored before the first event is delivered, and removed when the partition was given back in good order: what a
    crash leaves here is suspect."""
    suspects: redelivery.Suspects = ()


@dataclasses.dataclass
class Partition:
    """One partition, as the leader sees it."""

    number: int
    info: PartitionInfo
    done: AcknowledgedOffsets
    generation: int
    attempts: dict[int, int] = dataclasses.field(default_factory=dict)
    status: GrantStatus = GrantStatus.ABSENT
    owner: str = ""
    """The borrower that has it; empty when absent."""
    grant: int = 0
    until: int = -1
    """What the owner was told."""
    former: str = ""
    """Slot that had it last, or has it."""
    home: str = ""
    """Slot that should have it: others keep it only as long as that one is away."""
    expired: int = 0
    untold: int = 0
    """Of these, dropped while it had no owner: the next one is told."""
    redelivered: int = 0
    owner_expired: int = 0
    """What the owner has said of this."""
    sent_at: float = 0.0
    revoked_at: float = 0.0
    is_dirty: bool = True
    damaged: tuple[tuple[int, int], ...] = ()
    """What its owner cannot read."""
    has_vanished: bool = False
    leases: set[Lease] = dataclasses.field(default_factory=set)
    suspects: redelivery.Suspects = ()
    lease: Lease | None = None
    """That of the owner."""
    is_waiting: bool = False
    """The owner is not told before its lease is stored."""
    is_suspect: bool = False
    """Granted as a piece of which a member may have died: its owner has no other such piece, so that the next death
    accuses one of them."""
    wished_until: int = -1
    """What the group's declaration said when it was granted; `until` may be nearer, for caution."""

    @classmethod
    def load(cls, number: int, info: PartitionInfo, record: PartitionRecord) -> Partition:
        progress = record.progress
        return cls(
            number,
            info,
            AcknowledgedOffsets(progress.low, progress.ranges),
            progress.generation,
            dict(progress.attempts),
            former=record.owner,
            home=record.home,
            expired=record.expired,
            redelivered=record.redelivered,
            is_dirty=False,
            leases=set(record.leases),
            suspects=record.suspects,
        )

    def record(self) -> PartitionRecord:
        return PartitionRecord(
            self.progress(), self.former, self.home, self.expired, self.redelivered, tuple(sorted(self.leases)),
            self.suspects,
        )  # fmt: skip

    @property
    def base(self) -> Partition:
        """The partition whose record tells of this one."""
        return self

    @property
    def awaits_answer(self) -> bool:
        """Its owner was told something that is repeated until it answers."""
        return self.status not in (GrantStatus.ABSENT, GrantStatus.GRANTED) and not self.is_waiting

    def is_overdue(self, limit: float) -> bool:
        """Its owner was told before that time to give it back, and has not."""
        return self.status is GrantStatus.REVOKING and self.revoked_at <= limit

    def progress(self) -> GroupProgress:
        return snapshot(self.done, self.generation, self.attempts)

    def move(self, cause: GrantCause) -> bool:
        """Let something happen; False when it changes nothing in this state."""
        after = TRANSITIONS.get((self.status, cause))
        if after is None:
            return False
        self.status = after
        self.is_suspect = self.is_suspect and after is not GrantStatus.ABSENT
        self.is_waiting = self.is_waiting and after is GrantStatus.GRANTING
        if after is GrantStatus.ABSENT:
            self.owner = ""
        return True

    def merge(self, progress: GroupProgress) -> None:
        """Take over what an owner has done.  Nothing that is done is ever undone."""
        if progress.generation != self.generation:
            return
        self.damaged = progress.damaged
        added = self.done.merge(progress)
        if added:
            self.is_dirty = True
            self.suspects = redelivery.acquit(self.suspects, self.done)
            self.expired += min(added, self.news_of_expired(progress))
        for offset, count in progress.attempts.items():
            if offset not in self.done and count > self.attempts.get(offset, 0):
                self.attempts[offset] = count
                self.is_dirty = True

    def news_of_expired(self, progress: GroupProgress) -> int:
        """Offsets that the owner has not found any more, since it said so last."""
        news = progress.expired - self.owner_expired
        self.owner_expired = max(self.owner_expired, progress.expired)
        return max(0, news)

    def expire(self) -> None:
        """Give up what retention has dropped.  What has an owner is for that one to tell: it may have read it."""
        if self.info.start > self.done.low and self.status is GrantStatus.ABSENT:
            lost = self.done.missing(self.done.low, self.info.start)
            self.expired += lost
            self.untold += lost
            self.done.add(self.done.low, self.info.start)
            self.suspects = redelivery.acquit(self.suspects, self.done)
            self.is_dirty = True

    def reset(self, generation: int, position: int) -> None:
        """Begin at another place.  Only while it has no owner."""
        self.generation = generation
        self.done = AcknowledgedOffsets(position)
        self.attempts.clear()
        self.leases.clear()
        self.suspects = ()
        self.is_dirty = True

    def settle_in(self, slot: str, slots: Collection[str]) -> None:
        """A partition that moves while its home is there has found a new one; otherwise it is only lent."""
        if self.home != slot and (not self.home or self.home in slots):
            self.home = slot
            self.is_dirty = True

    def count_alone(self, start: int, end: int, count: int) -> None:
        """A suspect that is delivered alone knows how often it was delivered before, if that was written down."""
        if end - start == 1 and count > max(1, self.attempts.get(start, 0)):
            self.attempts[start] = count

    # -- owners

    def take_lease(self, lease: Lease) -> None:
        """Note the owner, which is told when that is stored."""
        self.lease = lease
        self.is_waiting = lease not in self.base.leases
        if self.is_waiting:
            self.base.leases.add(lease)
            self.base.is_dirty = True

    def end_lease(self) -> None:
        """The owner has given it back in good order."""
        if self.lease is not None and self.lease in self.base.leases:
            self.base.leases.discard(self.lease)
            self.base.is_dirty = True
        self.lease = None

    def forget_holder(self, borrower: str) -> None:
        """A borrower that may have had something of it has left in good order."""
        ended = {lease for lease in self.leases if lease.borrower == borrower}
        self.leases -= ended
        self.is_dirty = self.is_dirty or bool(ended)

    def accuse(self, lease: Lease, attempts_max: int) -> None:
        """The holder of a lease died: what it may have had is suspect."""
        self.leases.discard(lease)
        self.is_dirty = True
        start, end, most = max(lease.start, self.done.low), lease.end, redelivery.group_count_max(attempts_max)
        if end < 0:
            end, most = min(self.info.end, start + redelivery.WIDE_OFFSETS), 1
        elif end - lease.start == 1:
            most = 1 << 30
        for begin, stop in redelivery.undone(self.done, start, end):
            self.suspects = redelivery.accuse(self.suspects, begin, stop, most)


class QueuePortion(Partition):
    """A short range of a shard of a queue, from `start` up to but without `until`."""

    def __init__(self, number: int, base: Partition, start: int, until: int) -> None:
        super().__init__(number, base.info, AcknowledgedOffsets(start), base.generation, is_dirty=False)
        self._base = base
        self.start = start
        self.until = until
        self.granted_at = 0.0
        self.delays: dict[int, float] = {}
        self.is_probe = False
        """Handed out to see whether damaged offsets can be read again."""
        self.is_returned = False
        """What was not done of it is free again."""

    @property
    def base(self) -> Partition:
        return self._base

    def merge(self, progress: GroupProgress) -> None:
        expired = self.expired
        super().merge(progress)
        base = self._base
        if progress.generation != base.generation:
            return
        self.delays.update(progress.delays)
        done = ((self.start, self.done.low), *self.done.ranges())
        added = sum(base.done.add(begin, min(end, self.until)) for begin, end in done)
        if added:
            base.is_dirty = True
            base.expired += min(added, self.expired - expired)
            base.suspects = redelivery.acquit(base.suspects, base.done)
            for offset in [offset for offset in base.attempts if offset in base.done]:
                del base.attempts[offset]
        for offset, count in self.attempts.items():
            if offset not in base.done and count > base.attempts.get(offset, 0):
                base.attempts[offset] = count
                base.is_dirty = True

    def end_lease(self) -> None:
        """A lease without end is for all portions of its holder: it ends when that one leaves."""
        if self.lease is not None and self.lease.end >= 0:
            super().end_lease()
        self.lease = None

    def is_overdue(self, limit: float) -> bool:  # noqa: ARG002
        return False  # what is left of a portion keeps no member waiting

    def undone(self) -> Sequence[tuple[int, int]]:
        return redelivery.undone(self._base.done, self.start, self.until)
