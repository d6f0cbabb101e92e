"""The seeded simulator of the core: many nodes, virtual time, every fault, and an oracle.

``simulate(seed)`` runs publishers, subscribers and caches over a faulty network and raises `SimulationFailure` when the
delivery contract is broken.  The same seed gives the same run with the same trace, so every failure can be replayed.
No thread, no socket, no real time: thousands of runs take a minute.

==================  =========================================================================
``world``           virtual clock, random numbers, trace
``profiles``        families of scenarios
``network``         links, loss, repetition, delay, partition, queries
``publishers``      a node that publishes; ``subscribers`` and ``caches``: the other nodes
``oracle``          what must hold at any time; ``verdict``: at the end
``scenario``        one run; ``fault_schedule``: its faults; ``runner``: many runs
==================  =========================================================================

It simulates the core, not the drivers: those have the conformance suite.
"""

from __future__ import annotations

from pubsub_api.testing.simulator.profiles import PROFILES, Profile, profile_of
from pubsub_api.testing.simulator.runner import Report, run_seeds, simulate
from pubsub_api.testing.simulator.scenario import Cores
from pubsub_api.testing.simulator.world import SimulationFailure

__all__ = ["PROFILES", "Cores", "Profile", "Report", "SimulationFailure", "profile_of", "run_seeds", "simulate"]
