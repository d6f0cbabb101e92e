"""Kinds of runs.  A seed selects one, unless it is told which."""

from __future__ import annotations

import dataclasses

from pubsub_api.testing.simulator.seeds import profile_for
from shared_subscriptions.core.settings import BorrowerSettings, DeliverySettings, LeaderSettings, LeaseSettings

LEASE = LeaseSettings(member_lease_s=1.0, claim_time_s=2.0)
ATTEMPTS_MAX = 3
PROGRESS_S = 0.05
HANDLER_TIMEOUT_S = 0.5
LEADER = LeaderSettings(
    lease=LEASE, resend_s=0.3, rebalance_delay_s=0.05, revoke_timeout_s=2.0, attempts_max=ATTEMPTS_MAX
)  # fmt: skip
BORROWER = BorrowerSettings(find_leader_s=0.3, ping_s=LEASE.ping_s, unsubscribe_timeout_s=1.0, revoke_timeout_s=1.0)
DELIVERY = DeliverySettings(attempts_max=ATTEMPTS_MAX, retry_delay_s=0.1, retry_delay_max_s=0.5, window=16)


@dataclasses.dataclass(frozen=True)
class Profile:
    """How many of each, and how bad.  Pairs are bounds of what is drawn; single numbers are upper bounds."""

    name: str
    hosts: tuple[int, int] = (1, 4)
    shards: tuple[int, int] = (1, 4)
    lanes: int = 2
    bursts: tuple[int, int] = (4, 14)
    duration_s: tuple[float, float] = (4.0, 9.0)
    drop: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    partitions: int = 0
    crashes: int = 0
    freezes: int = 0
    joins: int = 2
    leaves: int = 2
    resubscribes: int = 2
    store_failures: float = 0.0
    outages: int = 0
    """Times at which one process cannot reach the store, while others can."""
    pauses: int = 0
    """Times at which the leader stands still for about the claim time."""
    slow_writes: float = 0.0
    """Share of writes that take a good part of a second."""
    hurry: bool = False
    """Leaders that leave do not always wait until they have all partitions back."""
    servers: int = 0
    """Processes that may lead and are no members."""
    clock_drift: float = 0.0
    failing: float = 0.0
    """Share of events whose callback fails at first."""
    hanging: float = 0.0
    """Share of batches whose callback does not return for a long time."""
    poison: int = 0
    """Events that kill the process that they are delivered to."""
    is_queue: bool = False
    commands: int = 0
    """Seeks, pauses and drains."""
    trims: int = 0
    vanishing: int = 0

    @property
    def is_faultless(self) -> bool:
        """Nothing may be delivered twice."""
        bad = (self.drop, self.late, self.partitions, self.crashes, self.freezes, self.store_failures)
        bad_users = self.failing, self.commands, self.hanging, self.poison
        return not any((*bad, *bad_users, self.outages, self.pauses))

    @property
    def is_crashing_only(self) -> bool:
        """Processes die, and nothing else happens that may repeat an event."""
        bad = (self.drop, self.late, self.partitions, self.freezes, self.store_failures, self.clock_drift)
        return not any((*bad, self.outages, self.pauses)) and not (self.failing or self.commands or self.hanging)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("calm"),
        Profile("joins", hosts=(1, 6), joins=6, leaves=6, resubscribes=0),
        Profile("resubscribes", resubscribes=10),
        Profile("duplicates", duplicate=0.3),
        Profile("lossy", drop=0.3, duplicate=0.2, late=0.3),
        Profile("crashes", crashes=4, joins=4),
        Profile("partitions", partitions=5, hosts=(2, 5)),
        Profile("freezes", freezes=5, hosts=(2, 5), clock_drift=0.01),
        Profile("store", store_failures=0.2, crashes=1, hosts=(2, 4)),
        Profile("failing", failing=0.3, crashes=1),
        Profile("commands", commands=5, crashes=1),
        Profile("retention", trims=3, vanishing=3, crashes=1),
        Profile(
            "chaos", hosts=(2, 6), drop=0.2, duplicate=0.2, late=0.2, partitions=3, crashes=3, freezes=3, joins=4,
            leaves=3, resubscribes=4, store_failures=0.1, clock_drift=0.01, failing=0.1, commands=2, trims=1,
        ),
        Profile(
            "leases", hosts=(2, 5), freezes=1, outages=4, pauses=4, servers=2, joins=1, leaves=3, store_failures=0.05,
            slow_writes=0.1, hurry=True, clock_drift=0.01,
        ),
        Profile("poison", poison=2, hosts=(1, 4), bursts=(6, 20)),
        Profile("hanging", hanging=0.2, hosts=(1, 4)),
        Profile("queue", is_queue=True, hosts=(1, 5), bursts=(6, 30), joins=4, leaves=4, duplicate=0.2),
        Profile("queue crashes", is_queue=True, crashes=4, joins=4, bursts=(6, 30)),
        Profile("queue poison", is_queue=True, poison=2, bursts=(6, 20)),
        Profile(
            "queue chaos", is_queue=True, hosts=(2, 6), drop=0.2, duplicate=0.2, late=0.2, partitions=3, crashes=3,
            freezes=3, joins=4, leaves=3, resubscribes=4, store_failures=0.1, clock_drift=0.01, failing=0.1, commands=2,
            hanging=0.05, trims=1, vanishing=1, bursts=(6, 30),
        ),
    )
}  # fmt: skip


def profile_of(seed: int) -> Profile:
    """The profile that a seed runs under unless told otherwise."""
    return profile_for(seed, PROFILES, {})
