"""Running seeds: one, or many."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from durability_service.core.service import DurabilityCore
from durability_service.testing.simulator.profiles import Profile, profile_of
from durability_service.testing.simulator.scenario import Scenario
from pubsub_api.testing.simulator.seeds import run_each, run_scenario
from pubsub_api.testing.simulator.world import SimulationFailure


@dataclasses.dataclass(frozen=True)
class Report:
    """What happened in a run that broke no guarantee."""

    seed: int
    profile: str
    digest: str
    """Hash of the trace: equal for equal runs."""
    services: int
    steps: int
    writes: int
    acknowledgements: int
    messages: int
    samples_moved: int


def simulate(seed: int, profile: Profile | None = None, *, core_class: type[DurabilityCore] = DurabilityCore) -> Report:
    """Run one seed under ``profile``, or under the one the seed selects.  Raises SimulationFailure."""
    chosen = profile or profile_of(seed)
    world, scenario = run_scenario(seed, chosen.name, lambda world: Scenario(world, chosen, core_class))
    return Report(
        seed=seed,
        profile=chosen.name,
        digest=world.digest(),
        services=len(scenario.nodes),
        steps=world.steps,
        writes=len(scenario.oracle.written),
        acknowledgements=scenario.oracle.acknowledgements,
        messages=scenario.network.messages,
        samples_moved=scenario.network.samples_moved,
    )


def run_seeds(seeds: Iterable[int], profile: Profile | None = None) -> list[SimulationFailure]:
    """Run these seeds; returns the failures."""
    return run_each(seeds, lambda seed: simulate(seed, profile))
