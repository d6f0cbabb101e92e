"""What is with the user of a group at the moment."""

from __future__ import annotations

import dataclasses

from pubsub_api.core.events import GroupEvent
from shared_subscriptions.core.consuming.handler import LoanState


@dataclasses.dataclass(eq=False)
class HandlerCall:
    """A batch that is with the user.  `since` and `place` are written by the thread that calls, all else under the
    lock."""

    loan: LoanState
    batch: list[GroupEvent]
    since: float
    """When the user got the event that it has now, or the whole batch."""
    place: int = 0
    """Events before this one are done with."""
    settled: int = 0
    """Events before this one are settled."""
    is_exclusive: bool = False
    """Each of its events holds its object until it is settled (`PartitionDelivery.take`)."""
    is_abandoned: bool = False
    """Taken back: whatever comes of it is late."""
