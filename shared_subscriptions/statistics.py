"""What a member counts."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class GroupSubscriberStatistics:
    """Counters since the subscriber was made."""

    delivered: int
    """Events handed to the user."""
    redelivered: int
    """Of these, deliveries beyond the first of their event, as far as the group knows."""
    acknowledged: int
    failed: int
    """Attempts that ended in a nack or an error of the callback."""
    dead_letters: int
    late: int
    """Acknowledged or refused after the stream was lost: the group may deliver it again."""
    expired: int
    """Events that retention dropped before they were delivered."""
    undecodable: int
    streams: int
    """Streams held now."""
    waiting: int
    """Events read and not settled."""
    grants: int
    resets: int
    """How often a lease or the leader was lost and everything began anew."""
    log_errors: int
    protocol_errors: int
    callback_errors: int
    is_leading: int
    """Groups that this process leads."""
