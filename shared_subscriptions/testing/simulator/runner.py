"""Running seeds: one, or many with progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pubsub_api.testing.simulator.seeds import run_each, run_scenario
from pubsub_api.testing.simulator.world import SimulationFailure
from shared_subscriptions.testing.simulator.profiles import Profile, profile_of
from shared_subscriptions.testing.simulator.scenario import Cores, Scenario


@dataclasses.dataclass(frozen=True)
class Report:
    """What happened in a run that broke no invariant."""

    seed: int
    profile: str
    digest: str
    """Hash of the trace: equal for equal runs."""
    virtual_s: float
    steps: int
    events: int
    deliveries: int
    duplicates: int
    messages: int
    grants: int


def simulate(seed: int, profile: Profile | None = None, *, cores: Cores | None = None) -> Report:
    """Run one seed under ``profile``, or under the one the seed selects.  Raises SimulationFailure."""
    chosen = profile or profile_of(seed)
    world, scenario = run_scenario(seed, chosen.name, lambda world: Scenario(world, chosen, cores or Cores()))
    oracle = scenario.oracle
    return Report(
        seed=seed,
        profile=chosen.name,
        digest=world.digest(),
        virtual_s=world.now,
        steps=world.steps,
        events=sum(len(keys) for keys in scenario.store.shards),
        deliveries=sum(oracle.deliveries.values()),
        duplicates=oracle.duplicates,
        messages=scenario.network.sent,
        grants=oracle.grants,
    )


def run_seeds(
    first: int,
    count: int,
    on_progress: Callable[[Report | SimulationFailure], None] | None = None,
    *,
    profile: Profile | None = None,
    cores: Cores | None = None,
    is_first_enough: bool = False,
) -> list[SimulationFailure]:
    """Run ``count`` seeds from ``first`` on, or to the first failure; returns the failures.

    ``on_progress`` is called after each seed.
    """
    seeds = range(first, first + count)
    return run_each(
        seeds, lambda seed: simulate(seed, profile, cores=cores), on_progress, is_first_enough=is_first_enough
    )
