"""What every simulator's runner needs: a failure that names its seed, and many seeds one after the other.

The cores of other packages are simulated in the same world, by scenarios of their own; they take this from here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pubsub_api.testing.simulator.world import SimulationFailure, Violation, World

TRACE_LINES = 80

ReportT = TypeVar("ReportT")


@contextlib.contextmanager
def failing_with_seed(seed: int, profile: str, world: World) -> Iterator[None]:
    """Turns whatever is raised within into a SimulationFailure that replays it and shows the end of the trace."""
    try:
        yield
    except Violation as violation:
        raise SimulationFailure(seed, str(violation), world.lines(TRACE_LINES), profile) from None
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise SimulationFailure(seed, what, world.lines(TRACE_LINES), profile) from error


def run_each(
    seeds: Iterable[int],
    simulate: Callable[[int], ReportT],
    on_progress: Callable[[ReportT | SimulationFailure], None] | None = None,
    *,
    is_first_enough: bool = False,
) -> list[SimulationFailure]:
    """Simulate these seeds, or up to the first failure; returns the failures.  ``on_progress`` is called after each."""
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
