"""What a leader knows of the members of its group, and remembers of the streams that went from one to another."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Member:
    """A borrower that this leader knows."""

    id: str
    name: str
    joined: int
    """Rises with every member."""
    expires: float
    is_expelled: bool = False
    """Gets no lease any more; its streams are free when the last one has ended."""
    seen: dict[int, int] = dataclasses.field(default_factory=dict)
    """The last sequence number by what it was about; at most one entry per stream."""
    sent: int = 0

    @property
    def slot(self) -> str:
        return self.name or self.id


@dataclasses.dataclass(frozen=True)
class Move:
    """A stream went from one member to another."""

    stream: int
    source: str
    target: str
    reason: str
    at: float
