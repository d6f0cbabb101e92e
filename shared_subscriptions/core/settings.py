"""The times and bounds of the protocol, as plain values.  Where they come from is `shared_subscriptions.config`."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class LeaseSettings:
    """How long each may act.  Every pair of times is chosen so that a holder stops before others take its place."""

    member_lease_s: float = 5.0
    """The leader gives a member's partitions away when it has heard nothing of it for this long."""
    claim_time_s: float = 10.0
    """Another process becomes leader when the leader's record has not changed for this long."""
    holder_share: float = 0.8
    """A member stops delivering after this share of its lease, counted from when it asked for it."""

    @property
    def holder_lease_s(self) -> float:
        return self.member_lease_s * self.holder_share

    @property
    def leader_hold_s(self) -> float:
        """A leader is silent when its record is older than this: leases it gave end before another one can lead."""
        return self.claim_time_s - self.member_lease_s

    @property
    def beat_s(self) -> float:
        """How often a leader renews its record."""
        return self.leader_hold_s / 5

    @property
    def watch_s(self) -> float:
        """How often the others look at it."""
        return min(0.5, self.claim_time_s / 20)

    @property
    def ping_s(self) -> float:
        """How often a member asks for its lease to be renewed."""
        return self.holder_lease_s / 4


@dataclasses.dataclass(frozen=True)
class BorrowerSettings:
    find_leader_s: float = 1.0
    """How often `leader_wanted` is repeated."""
    ping_s: float = 1.0
    unsubscribe_timeout_s: float = 5.0
    """How long the last events may take after unsubscribing; then what is known is reported."""
    revoke_timeout_s: float = 10.0
    """The same for a partition that is taken away."""


@dataclasses.dataclass(frozen=True)
class LeaderSettings:
    lease: LeaseSettings = LeaseSettings()
    resend_s: float = 1.0
    """How long grant, revoke and revoked wait for their answer before they are sent again."""
    rebalance_delay_s: float = 0.1
    """Members come and go in packs: assignment waits this long for the rest of a pack."""
    revoke_timeout_s: float = 15.0
    """A member that has not finished a partition this long after the revoke is expelled."""
    attempts_max: int = 5
    """Deliveries of one event, also when each of them kills its consumer; 0 for no end."""
    members_max: int = 10_000
    moves_kept: int = 50


@dataclasses.dataclass(frozen=True)
class DeliverySettings:
    attempts_max: int = 5
    """Deliveries of one event before it is parked as a dead letter; 0 for no end."""
    retry_delay_s: float = 1.0
    """Before the second attempt; later waits double."""
    retry_delay_max_s: float = 60.0
    window: int = 20_000
    """Events of one partition that are read and not acknowledged."""

    def backoff_s(self, attempt: int) -> float:
        """The wait after a failed attempt, the first being 1."""
        return float(min(self.retry_delay_max_s, self.retry_delay_s * 2 ** min(attempt - 1, 30)))
