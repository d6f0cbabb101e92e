"""How long a lone event takes at 1,000 events/s, from just before the publish call to the callback."""

from __future__ import annotations

from collections.abc import Sequence

from bench import catalog
from bench.plan import Outcome, Plan, Row, in_turns, median, percentile_us, ratio
from bench.runs import Load, Run, run
from bench.sinks import LatencySink
from bench.targets import check

RATE = 1000.0
SAMPLES, SAMPLES_QUICK = 3000, 300


def measure(plan: Plan, driver: str) -> Outcome:
    load = Load(SAMPLES_QUICK if plan.is_quick else SAMPLES, rate=RATE, stamped=True)
    with catalog.transport(driver) as transport:
        cases = [transport.plain, transport.ours]
        runs = in_turns(plan, cases, lambda case: run(case, load, LatencySink))
    ours, raw = runs[transport.ours.name], runs[transport.plain.name]
    measured = {"p50": ratio(ours, raw, p50_us), "p99": ratio(ours, raw, p99_us)}
    return Outcome(
        "latency", driver, [_row(case.name, runs[case.name]) for case in cases], check("latency", driver, measured)
    )


def p50_us(run: Run) -> float:
    return percentile_us(run.findings[0]["latencies_ns"], 0.5)


def p99_us(run: Run) -> float:
    return percentile_us(run.findings[0]["latencies_ns"], 0.99)


def _row(name: str, runs: Sequence[Run]) -> Row:
    return {
        "case": name,
        "p50 us": round(median(runs, p50_us)),
        "p99 us": round(median(runs, p99_us)),
        "lost": sum(run.lost for run in runs),
        "publisher us/event": round(median(runs, lambda run: run.publisher_cpu_us), 1),
        "subscriber us/event": round(median(runs, lambda run: run.subscriber_cpu_us), 1),
    }
