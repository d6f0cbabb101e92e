"""What a leader knows of the members of its group, and remembers of the partitions that went from one to another."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict

from shared_subscriptions.core import messages as m

_REMEMBERED_MAX = 10_000


@dataclasses.dataclass
class ConnectedMember:
    """A borrower that this leader knows."""

    id: str
    name: str
    joined: int
    """Rises with every member."""
    expires: float
    is_expelled: bool = False
    """Gets no lease any more; its partitions are free when the last one has ended."""
    is_unheard: bool = False
    """It said something while the leader had to be silent."""
    seen: dict[int, int] = dataclasses.field(default_factory=dict)
    """The last sequence number by what it was about; at most one entry per partition."""
    sent: int = 0
    portions_max: int = 1
    """Of a queue, how many portions it wants at once."""
    offsets_max: int = 0
    """Of a queue, how large its portions may be; 0 for no bound of its own."""
    rate: float = 0.0
    """Offsets of a queue that it handles in a second; 0 when that is not known."""
    served: int = 0
    """Number of the portion that it got last: of members that have as little, the one that waits longest is next."""
    finished_at: float = 0.0
    """When it had handled a portion last."""

    @property
    def slot(self) -> str:
        return self.name or self.id


@dataclasses.dataclass(frozen=True)
class Move:
    """A partition went from one member to another."""

    partition: int
    source: str
    target: str
    reason: str
    at: float


class RecentBorrowers:
    """The last borrowers that something was true of."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, borrower: str) -> bool:
        return borrower in self._known

    def add(self, borrower: str) -> None:
        self._known[borrower] = None
        if len(self._known) > _REMEMBERED_MAX:
            self._known.popitem(last=False)


class GroupMembers:
    """The members of a group by borrower, those that were, and what is said to them."""

    def __init__(self, epoch: int, counters: Counter[str]) -> None:
        self.known: dict[str, ConnectedMember] = {}
        self.departed = RecentBorrowers()
        self.alive = RecentBorrowers()
        """Borrowers of the past whose members have come back: they did not die."""
        self.messages: list[m.ToBorrower] = []
        self._epoch = epoch
        self._counters = counters
        self._joined = 0

    def add(self, message: m.Connect) -> ConnectedMember:
        self._joined += 1
        member = self.known[message.borrower] = ConnectedMember(
            message.borrower, message.name, self._joined, 0.0, seen={m.LEASE: message.seq},
            portions_max=max(1, message.portions), offsets_max=message.offsets,
        )  # fmt: skip
        return member

    def slots(self) -> dict[str, ConnectedMember]:
        """Slot -> the member that is to get its partitions: the youngest of that name."""
        valid = [member for member in self.known.values() if not member.is_expelled]
        return {member.slot: member for member in sorted(valid, key=lambda member: member.joined)}

    def send(self, member: ConnectedMember, kind: type[m.ToBorrower], **fields: object) -> None:
        member.sent += 1
        message: m.ToBorrower = kind(borrower=member.id, seq=member.sent, epoch=self._epoch, **fields)  # type: ignore[arg-type]
        self.messages.append(message)

    def invalidate(self, borrower: str, reason: str, *, is_final: bool = False) -> None:
        """Tell a borrower, known or not, to begin anew."""
        member = self.known.get(borrower)
        if member is not None:
            self.send(member, m.Invalidate, reason=reason, is_final=is_final)
            return
        self._counters["invalidated"] += 1
        unknown = m.Invalidate(borrower=borrower, seq=2**62, epoch=self._epoch, reason=reason, is_final=is_final)
        self.messages.append(unknown)
