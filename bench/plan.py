"""What a run of the benchmark was asked to do, what came of it, and the loop that makes ratios fair."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bench.ends import Case
from bench.runs import Run
from bench.targets import Check

AnyRun = TypeVar("AnyRun")
Row = dict[str, Any]
"""Column -> value: a line of a table."""


@dataclasses.dataclass(frozen=True)
class Plan:
    events: int
    """The size of a run; each case takes its share."""
    rounds: int
    is_quick: bool
    say: Callable[[str], None]
    """Tells the user what is under way."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one scenario found on one driver."""

    scenario: str
    driver: str
    rows: list[Row]
    checks: list[Check]
    notes: list[str] = dataclasses.field(default_factory=list)


def in_turns(plan: Plan, cases: Sequence[Case], measure: Callable[[Case], Run]) -> dict[str, list[Run]]:
    """Every case once per round, so that whatever else the machine does meets all of them alike."""
    runs: dict[str, list[Run]] = {case.name: [] for case in cases}
    for number in range(1, plan.rounds + 1):
        for case in cases:
            plan.say(f"round {number} of {plan.rounds}: {case.driver}, {case.name}")
            runs[case.name].append(measure(case))
    return runs


def median(runs: Sequence[AnyRun], value: Callable[[AnyRun], float]) -> float:
    return statistics.median(value(run) for run in runs)


def ratio(ours: Sequence[Any], theirs: Sequence[Any], value: Callable[[Any], float]) -> float:
    """The median of the ratios within each round."""
    return statistics.median(
        value(mine) / value(other) if value(other) else float("inf") for mine, other in zip(ours, theirs, strict=True)
    )


def percentile_us(latencies_ns: Sequence[int], part: float) -> float:
    """The smallest latency that at least ``part`` of all do not exceed; not a number when there are none."""
    if not latencies_ns:
        return math.nan
    ordered = sorted(latencies_ns)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] / 1000
