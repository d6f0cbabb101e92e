"""What the runners of all simulators need: a failure that names its seed, and runs of many seeds.

Other packages simulate their cores in the same `World`, with scenarios of their own, and use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from pubsub_api.testing.simulator.world import SimulationFailure, Violation, World

TRACE_LINES = 80

ProfileT = TypeVar("ProfileT")
ReportT = TypeVar("ReportT")


class Runnable(Protocol):
    """One run of a simulator."""

    def run(self) -> None:
        """Raises Violation."""


ScenarioT = TypeVar("ScenarioT", bound=Runnable)


def profile_for(seed: int, profiles: Mapping[str, ProfileT], large: Mapping[str, int]) -> ProfileT:
    """The profile that a seed selects.  ``large``: profile that takes long -> one of so many seeds selects it."""
    for name, every in large.items():
        if seed % every == every - 1:
            return profiles[name]
    usual = [name for name in profiles if name not in large]
    return profiles[usual[seed % len(usual)]]


def run_scenario(seed: int, profile: str, make: Callable[[World], ScenarioT]) -> tuple[World, ScenarioT]:
    """Run one seed.  Raises SimulationFailure, with the seed and the end of the trace, for every exception."""
    world = World(seed)
    try:
        scenario = make(world)
        scenario.run()
    except Violation as violation:
        raise SimulationFailure(seed, str(violation), world.lines(TRACE_LINES), profile) from None
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise SimulationFailure(seed, what, world.lines(TRACE_LINES), profile) from error
    return world, scenario


def run_each(
    seeds: Iterable[int],
    simulate: Callable[[int], ReportT],
    on_progress: Callable[[ReportT | SimulationFailure], None] | None = None,
    *,
    is_first_enough: bool = False,
) -> list[SimulationFailure]:
    """Simulate these seeds, or until the first failure; returns the failures.  ``on_progress`` is called after each."""
    failures: list[SimulationFailure] = []
    for seed in seeds:
        outcome: ReportT | SimulationFailure
        try:
            outcome = simulate(seed)
        except SimulationFailure as failure:
            outcome = failure
            failures.append(failure)
        if on_progress is not None:
            on_progress(outcome)
        if failures and is_first_enough:
            break
    return failures
