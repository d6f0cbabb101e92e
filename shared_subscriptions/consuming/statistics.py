"""What a member counts."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class MemberLinkStatistics:
    """The links of a member to the leaders of its groups."""

    grants: int
    """Partitions that leaders gave to this member."""
    resets: int
    """How often a lease or the leader was lost and everything began anew."""
    protocol_errors: int
    bad_messages: int
    """Connections to a leader that were closed because of what came through them."""
    link_failures: int
    """Connections to a leader that were lost, or could not be made; each is made again."""


@dataclasses.dataclass(frozen=True)
class MemberLogStatistics:
    """The log, as the member reads it and writes dead letters to it."""

    errors: int
    damaged: int
    """Ranges of the log that this member came to and could not read, each counted once."""
    went_back: int
    """Shards that were found in an older state than this member had read, each time."""
    undecodable: int
    park_failures: int
    """Dead letters that could not be written; each is tried again."""


@dataclasses.dataclass(frozen=True)
class GroupSubscriberStatistics:
    """Counters since the subscriber was made: at the top what one watches, below it by what counts."""

    delivered: int
    """Events handed to the user."""
    redelivered: int
    """Of these, deliveries beyond the first of their event, as far as the group knows."""
    acknowledged: int
    failed: int
    """Attempts that ended in a nack or an error of the callback."""
    timed_out: int
    """Events taken back because they were with the user for longer than `handler_timeout`."""
    hung: int
    """Calls of the user that have not returned since."""
    dead_letters: int
    late: int
    """Acknowledged or refused after the partition was lost: the group may deliver it again."""
    expired: int
    """Offsets that retention dropped before they were delivered, by age, size or topic, for each lane: at most so many
    events are lost."""
    streams: int
    """Partitions held now."""
    waiting: int
    """Events read and not settled."""
    callback_errors: int
    is_leading: int
    """Groups that this process leads."""
    missing: int
    """Events that were lost to this process as leader, and that no cache had: the log, and so the group, lacks them."""
    standing_by: int
    """Groups whose leader this process stands by for: it keeps what was published last, should the leader die."""
    links: MemberLinkStatistics
    log: MemberLogStatistics
