"""The seeded simulator of the durability service: many services, virtual time, every fault, and an oracle.

``simulate(seed)`` runs services over a bad network with slow disks and wrong clocks, and raises `SimulationFailure`
when an invariant is broken.  The same seed gives the same run, to the last line of its trace.

===============  ==========================================================================
``profiles``     families of scenarios
``network``      loss, repetition, delay, cuts in one direction or both
``store``        the disk, and what is left of it after a crash
``nodes``        a service: core, disk, clock
``readers``      late joiners
``oracle``       what must hold, at any time and at the end
``scenario``     one run; ``runner``: many
===============  ==========================================================================

It simulates the core; the shell has tests with real processes.
"""

from __future__ import annotations

from durability_service.testing.simulator.profiles import PROFILES, Profile, profile_of
from durability_service.testing.simulator.runner import Report, run_seeds, simulate
from pubsub_api.testing.simulator.world import SimulationFailure

__all__ = ["PROFILES", "Profile", "Report", "SimulationFailure", "profile_of", "run_seeds", "simulate"]
