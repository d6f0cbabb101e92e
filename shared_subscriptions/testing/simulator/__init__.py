"""The seeded simulator of groups: several hosts, virtual time, every fault, and an oracle of the invariants.

``simulate(seed)`` runs the handlers, agents, borrowers, candidates and leaders that run in production over a bad
network and a store that fails now and then.  The same seed gives the same run, so every failure can be replayed.

=============  ============================================================================
``store``      the log: events in shards, records by compare-and-set, writes that fail
``network``    messages between hosts: lost, repeated, late, cut off
``hosts``      a process with a clock of its own; ``programs``: what its user does; ``leading``: how it leads
``oracle``     what must hold at every step, L1 to L11; ``verdict``: when all is quiet
``scenario``   one run; ``profiles``: kinds of runs; ``runner``: many runs
=============  ============================================================================
"""

from __future__ import annotations

from shared_subscriptions.testing.simulator.profiles import PROFILES, Profile, profile_of
from shared_subscriptions.testing.simulator.runner import Report, run_seeds, simulate
from shared_subscriptions.testing.simulator.scenario import Cores

__all__ = ["PROFILES", "Cores", "Profile", "Report", "profile_of", "run_seeds", "simulate"]
