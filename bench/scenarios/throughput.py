"""As many events as possible from one publisher to one subscriber, raw and with Heliograph.

Events/s from the first publish call to the last callback; CPU of both processes.  The publisher builds and encodes each
event, the subscriber decodes it and calls a callback that counts; all of that is inside the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import catalog
from bench.plan import Outcome, Plan, Row, in_turns, median, ratio
from bench.runs import Load, Run, run
from bench.targets import check


def measure(plan: Plan, driver: str) -> Outcome:
    with catalog.transport(driver) as transport:
        runs = in_turns(plan, transport.cases, lambda case: run(case, Load(case.count(plan.events))))
    ours = runs[transport.ours.name]
    compared = {"plain": transport.plain, "bound": transport.bound, **transport.rest}
    measured = {name: ratio(ours, runs[case.name], _rate) for name, case in compared.items()}
    measured["publisher cpu"] = median(ours, lambda run: run.publisher_cpu_us)
    measured["subscriber cpu"] = median(ours, lambda run: run.subscriber_cpu_us)
    measured["undetected"] = float(sum(undetected(run) for run in ours))
    rows = [_row(case.name, runs[case.name], ratio(ours, runs[case.name], _rate)) for case in transport.cases]
    return Outcome("throughput", driver, rows, check("throughput", driver, measured))


def undetected(run: Run) -> int:
    """Events of ours that are missing although no resync was told after the initial one."""
    return 0 if run.subscriber.get("resyncs", 0) > 1 else run.lost


def _rate(run: Run) -> float:
    return run.events_per_s


def _row(name: str, runs: Sequence[Run], ours_to_this: float) -> Row:
    return {
        "case": name,
        "events/s": round(median(runs, _rate)),
        "heliograph / this": round(ours_to_this, 2),
        "publisher us/event": round(median(runs, lambda run: run.publisher_cpu_us), 2),
        "subscriber us/event": round(median(runs, lambda run: run.subscriber_cpu_us), 2),
        "lost": sum(run.lost for run in runs),
        "events per frame": round(median(runs, _events_per_frame), 1),
    }


def _events_per_frame(run: Run) -> float:
    frames = run.publisher.get("frames", 0)
    return run.sent / frames if frames else 0.0
