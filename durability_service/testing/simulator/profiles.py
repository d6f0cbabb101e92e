"""Families of scenarios.  A seed selects one, and draws everything else."""

from __future__ import annotations

import dataclasses

from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.namespaces import SAME_ROLE, Alignee, Kind, NamespacePolicy
from pubsub_api.testing.simulator.seeds import profile_for


@dataclasses.dataclass(frozen=True)
class Profile:
    name: str
    services: tuple[int, int] = (2, 3)
    roles: int = 1
    duration_s: tuple[float, float] = (3.0, 5.0)
    writes: tuple[int, int] = (10, 40)
    keys: int = 6
    depth: int = 1
    lifespan_s: float = 0.0
    """Of samples of the topic ``a/x``; 0: for ever."""
    kind: Kind = Kind.PERSISTENT
    merge: MergePolicy = MergePolicy.MERGE
    merges: tuple[tuple[str, MergePolicy], ...] = ()
    """Scopes and policies; none: ``merge`` for all."""
    policies: tuple[NamespacePolicy, ...] = ()
    """Drawn from for each service; none: one made from ``merge``."""
    crashes: int = 0
    pauses: int = 0
    partitions: int = 0
    one_way_cuts: int = 0
    restarts: int = 0
    clones: int = 0
    """Services with the name of the first."""
    deletions: int = 0
    readers: int = 0
    """Late joiners."""
    stalls: int = 0
    """How often live events of one host do not reach one service for a while."""
    clock_jumps: int = 0
    """How often a clock is set to another time, within ``skew_s`` of the right one."""
    clock_moments: int = 0
    """How often a clock is minutes ahead for a moment, in which something is written."""
    cleanup_s: float = 86_400.0
    idle: bool = False
    """What is written is written at the beginning."""
    old_store: bool = False
    """One service starts first, with a set from long ago; no service remembers what was deleted since."""
    injection_peers_min: int = 0
    drop: float = 0.0
    live_drop: float = 0.0
    duplicate: float = 0.0
    late_s: float = 0.0
    skew_s: float = 0.0
    disk_s: float = 0.005
    equality_check: bool = True
    late_start: bool = True
    preload: bool = False
    """Some services start with a set on disk."""

    @property
    def is_faultless(self) -> bool:
        """Without faults: services start, and that is all."""
        faults = (
            self.crashes, self.pauses, self.partitions, self.one_way_cuts, self.restarts, self.drop, self.late_s,
            self.skew_s, self.policies,
        )  # fmt: skip
        return not any(faults)

    def policy(self) -> NamespacePolicy:
        return NamespacePolicy(
            merges=self.merges or ((SAME_ROLE, self.merge), ("*", self.merge)),
            equality_check=self.equality_check,
            durability=self.kind,
        )


CALM = Profile("calm")
LATE = Profile("late", drop=0.1, duplicate=0.1, late_s=0.2)
LOSSY = Profile("lossy", drop=0.3, duplicate=0.2, late_s=0.3, live_drop=0.1)
CRASHES = Profile("crashes", crashes=4, disk_s=0.05)
DISK = Profile("disk", crashes=6, disk_s=0.4, preload=True)
SPLIT = Profile("split", partitions=3, services=(2, 5))
SPLIT_DEEP = Profile("split_deep", partitions=3, depth=3, crashes=1)
ONE_WAY = Profile("one_way", one_way_cuts=3)
PAUSES = Profile("pauses", pauses=3, skew_s=0.5)
SKEW = Profile("skew", skew_s=5.0, partitions=2, clock_jumps=4)
DELETES = Profile("deletes", partitions=2, deletions=3, crashes=1)
CATCHUP = Profile("catchup", merge=MergePolicy.CATCHUP, partitions=2)
REPLACE = Profile("replace", merge=MergePolicy.REPLACE, partitions=2)
DELETE = Profile("delete", merge=MergePolicy.DELETE, partitions=2)
IGNORE = Profile("ignore", merge=MergePolicy.IGNORE, partitions=2)
ROLES = Profile("roles", roles=2, partitions=2, services=(2, 5))
SCOPES = Profile(
    "scopes", roles=2, partitions=2, services=(2, 5),
    merges=((SAME_ROLE, MergePolicy.MERGE), ("r0", MergePolicy.MERGE), ("*", MergePolicy.IGNORE)),
)  # fmt: skip
"""What r0 has is taken over by r1, and not the other way round."""
WHOLE = Profile("whole", equality_check=False, partitions=2, crashes=1)
TRANSIENT = Profile("transient", kind=Kind.TRANSIENT, partitions=1)
MIXED = Profile(
    "mixed",
    partitions=1,
    crashes=2,
    policies=(
        NamespacePolicy(master_priority=0),
        NamespacePolicy(aligner=False),
        NamespacePolicy(master_priority=200),
        NamespacePolicy(),
        NamespacePolicy(alignee=Alignee.LAZY),
        NamespacePolicy(alignee=Alignee.ON_REQUEST),
    ),
)
LIFESPAN = Profile(
    "lifespan", services=(2, 4), lifespan_s=1.0, depth=2, crashes=2, partitions=2, live_drop=0.05, skew_s=0.3,
    preload=True,
)  # fmt: skip
CHAOS = Profile(
    "chaos", services=(3, 6), crashes=4, pauses=1, partitions=2, one_way_cuts=1, deletions=1, drop=0.1, duplicate=0.1,
    late_s=0.2, live_drop=0.05, skew_s=1.0, disk_s=0.1, depth=2, preload=True, restarts=1,
)  # fmt: skip
IDLE = Profile("idle", cleanup_s=3.5, idle=True, duration_s=(6.0, 9.0), crashes=3, partitions=1)
AHEAD = Profile("ahead", clock_moments=3, skew_s=0.5, crashes=1)
OLD = Profile("old", cleanup_s=20.0, old_store=True, injection_peers_min=1, preload=True)
BEHIND = Profile("behind", readers=6, stalls=6)
READERS = Profile(
    "readers", readers=6, stalls=2, partitions=2, crashes=2, drop=0.1, live_drop=0.1, services=(2, 4), disk_s=0.05
)
CLONED = Profile("cloned", clones=1, partitions=1, drop=0.1, late_s=0.2)
CROWD = Profile("crowd", services=(20, 30), writes=(20, 40), duration_s=(2.0, 3.0), partitions=1, late_start=False)
MULTITUDE = Profile("multitude", services=(50, 50), writes=(20, 40), duration_s=(2.0, 3.0), late_start=False)

PROFILES = {
    profile.name: profile
    for profile in (
        CALM, LATE, LOSSY, CRASHES, DISK, SPLIT, SPLIT_DEEP, ONE_WAY, PAUSES, SKEW, DELETES, CATCHUP, REPLACE, DELETE,
        IGNORE, ROLES, SCOPES, WHOLE, TRANSIENT, MIXED, LIFESPAN, CHAOS, IDLE, AHEAD,
        OLD, BEHIND, READERS, CLONED, CROWD, MULTITUDE,
    )
}  # fmt: skip

_LARGE = {CROWD.name: 500, MULTITUDE.name: 10_000}
"""Profiles that take long come once in so many seeds."""


def profile_of(seed: int) -> Profile:
    """The profile of a seed for which none is named."""
    return profile_for(seed, PROFILES, _LARGE)
