"""The option groups ``[election]`` and ``[discovery]``: how long leases are, and how often they are renewed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from oslo_config import cfg

from pubsub_api.config import check_group
from pubsub_api.runtime.options import advanced, seconds

ELECTION_GROUP = "election"
DISCOVERY_GROUP = "discovery"

RENEWALS_PER_LEASE = 4
"""Two renewals may fail and the next be late before a lease ends."""


ELECTION_OPTIONS: Sequence[cfg.Opt] = (
    seconds("lease", 10.0, 0.1, 3600.0,
            "A leader that shows no progress for this long is replaced. It stops to lead a tenth earlier, and renews "
            "its lease four times as often. Where it is not the same everywhere, the longer one of two counts."),
)  # fmt: skip

DISCOVERY_OPTIONS: Sequence[cfg.Opt] = advanced(
    seconds("lease", 60.0, 0.3, 86_400.0,
            "A publisher that shows no progress for this long is taken out of the directory; it renews its entry four "
            "times as often, and a subscriber looks into the directory twelve times as often. The same "
            "everywhere."),
)  # fmt: skip

REFRESHES_PER_LEASE = 12
REFRESH_INTERVAL_MIN_S = 0.05
"""A new publisher is found soon, by one cheap read; the time between two looks varies by half."""
PUBLISHERS_MAX = 10_000
"""Entries of the directory that a subscriber listens to, a connection each.  More are ignored, counted and logged."""


@dataclasses.dataclass(frozen=True)
class DiscoverySettings:
    lease_s: float
    renew_interval_s: float
    refresh_interval_s: float
    publishers_max: int


def read_election_lease(conf: cfg.ConfigOpts) -> float:
    """Seconds.  ``conf`` may lack the group."""
    conf.register_opts(ELECTION_OPTIONS, group=ELECTION_GROUP)
    check_group(conf, ELECTION_GROUP, ELECTION_OPTIONS)
    return float(conf[ELECTION_GROUP].lease)


def read_discovery(conf: cfg.ConfigOpts) -> DiscoverySettings:
    """``conf`` may lack the group.  Raises InvalidConfig."""
    conf.register_opts(DISCOVERY_OPTIONS, group=DISCOVERY_GROUP)
    check_group(conf, DISCOVERY_GROUP, DISCOVERY_OPTIONS)
    group = conf[DISCOVERY_GROUP]
    lease_s = float(group.lease)
    refresh_interval_s = max(lease_s / REFRESHES_PER_LEASE, REFRESH_INTERVAL_MIN_S)
    return DiscoverySettings(lease_s, lease_s / RENEWALS_PER_LEASE, refresh_interval_s, PUBLISHERS_MAX)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(ELECTION_GROUP, ELECTION_OPTIONS), (DISCOVERY_GROUP, DISCOVERY_OPTIONS)]
