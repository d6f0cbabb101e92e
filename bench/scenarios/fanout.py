"""What 49 more subscribers cost the publisher.

Its transport copies every message for each of them; Heliograph must add nothing to that.  What the copies cost is seen
in the raw case that sends 64 events per message: one that sends an event per message pays 64 times as many copies, and
next to that anything would look cheap.  The subscribers share a few processes, since only the publisher is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench import catalog
from bench.ends import Case
from bench.plan import Outcome, Plan, Row, in_turns, median
from bench.runs import Load, Run, run
from bench.targets import check

MANY, MANY_QUICK = 50, 5
PROCESSES = 5
SHARE = 0.1
"""Of the events of a run: each is delivered fifty times."""


def measure(plan: Plan, driver: str) -> Outcome:
    many = MANY_QUICK if plan.is_quick else MANY
    rows: list[Row] = []
    with catalog.transport(driver) as transport:
        cases = [transport.bound, transport.ours]
        alone = in_turns(plan, cases, lambda case: run(case, Load(_count(plan, case))))
        crowd = in_turns(plan, cases, lambda case: run(
            case, Load(_count(plan, case), subscribers=many, processes=min(PROCESSES, many))
        ))  # fmt: skip
    for case in cases:
        rows += [_row(case.name, 1, alone[case.name]), _row(case.name, many, crowd[case.name])]
    raw, ours = (_growths(alone[case.name], crowd[case.name]) for case in cases)
    measured = {"growth": statistics.median(mine - theirs for mine, theirs in zip(ours, raw, strict=True))}
    return Outcome("fanout", driver, rows, check("fanout", driver, measured))


def _count(plan: Plan, case: Case) -> int:
    return case.count(int(plan.events * SHARE))


def _growths(alone: Sequence[Run], crowd: Sequence[Run]) -> list[float]:
    """What the further subscribers cost, in each round."""
    return [many.publisher_cpu_us - one.publisher_cpu_us for one, many in zip(alone, crowd, strict=True)]


def _cpu(runs: Sequence[Run]) -> float:
    return median(runs, lambda run: run.publisher_cpu_us)


def _row(name: str, subscribers: int, runs: Sequence[Run]) -> Row:
    return {
        "case": name,
        "subscribers": subscribers,
        "publisher us/event": round(_cpu(runs), 2),
        "events/s": round(median(runs, lambda run: run.events_per_s)),
        "lost": sum(run.lost for run in runs),
        "resyncs": sum(run.subscriber.get("resyncs", 1) - 1 for run in runs),
    }
