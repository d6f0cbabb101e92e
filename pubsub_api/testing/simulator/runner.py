"""Running seeds: one, or many with progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pubsub_api.testing.simulator.profiles import Profile, profile_of
from pubsub_api.testing.simulator.scenario import Cores, Scenario
from pubsub_api.testing.simulator.seeds import failing_with_seed, run_each
from pubsub_api.testing.simulator.world import SimulationFailure, World


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
    profile = profile or profile_of(seed)
    world = World(seed)
    with failing_with_seed(seed, profile.name, world):
        scenario = Scenario(world, profile, cores or Cores())
        scenario.run()
    network, oracle = scenario.network, scenario.oracle
    return Report(
        seed=seed,
        profile=profile.name,
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
