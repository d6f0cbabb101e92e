"""Running seeds: one, or many with progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pubsub_api.testing.simulator.profiles import Profile, profile_of
from pubsub_api.testing.simulator.scenario import Cores, Scenario
from pubsub_api.testing.simulator.seeds import run_each, run_scenario
from pubsub_api.testing.simulator.world import SimulationFailure


@dataclasses.dataclass(frozen=True)
class Report:
    """What happened in a run that broke no guarantee."""

    seed: int
    profile: str
    digest: str
    """Hash of the trace: equal for equal runs."""
    virtual_s: float
    steps: int
    events: int
    deliveries: int
    frames: int
    hellos: int
    queries: int
    resyncs: dict[str, int]
    """By reason."""


def simulate(seed: int, profile: Profile | None = None, *, cores: Cores | None = None) -> Report:
    """Run one seed under ``profile``, or under the one the seed selects.  Raises SimulationFailure."""
    chosen = profile or profile_of(seed)
    world, scenario = run_scenario(seed, chosen.name, lambda world: Scenario(world, chosen, cores or Cores()))
    network, oracle = scenario.network, scenario.oracle
    return Report(
        seed=seed,
        profile=chosen.name,
        digest=world.digest(),
        virtual_s=world.now,
        steps=world.steps,
        events=oracle.events,
        deliveries=oracle.deliveries,
        frames=network.data_frames,
        hellos=network.hello_frames,
        queries=network.queries,
        resyncs=dict(oracle.resyncs),
    )


def run_seeds(
    first: int,
    count: int,
    on_progress: Callable[[Report | SimulationFailure], None] | None = None,
    *,
    profile: Profile | None = None,
) -> list[SimulationFailure]:
    """Run ``count`` seeds from ``first`` on; returns the failures.  ``on_progress`` is called after each seed."""
    return run_each(range(first, first + count), lambda seed: simulate(seed, profile), on_progress)
