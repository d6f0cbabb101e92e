"""What a leader knows of the members of its group, and remembers of the partitions that went from one to another."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class GroupMember:
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
    """Offsets of a queue that it handles in a second; 0 when nobody knows."""
    served: int = 0
    """Number of the portion that it got last: of those who have as little, whoever waits longest is next."""
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
