"""From workers through the publisher service to a subscriber and to a controller's copy, compared with a publisher that
sends directly to a subscriber.

Events/s of four workers together and CPU of everybody involved: first until a subscriber was called with them, then
until a `LocalCache` holds them and has told so.  Then how long a lone event takes at 1,000 events/s.
Drivers that let every process publish need no service and are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench import catalog, hop
from bench.hop import HopRun
from bench.plan import Outcome, Plan, Row, median
from bench.runs import Load, Run, run
from bench.scenarios.latency import RATE, SAMPLES, SAMPLES_QUICK, p50_us, p99_us, percentile_us
from bench.sinks import LatencySink
from bench.targets import check
from pubsub_api import loading

WORKERS = 4


def measure(plan: Plan, driver: str) -> Outcome:
    with catalog.transport(driver) as transport:
        case = transport.ours
        if not loading.build_driver(loading.conf_from_url(case.server)).capabilities.bind_based:
            return Outcome("service", driver, [], [], ["every process publishes directly: no service is needed"])
        flood = Load(case.count(plan.events))
        lone = Load(SAMPLES_QUICK if plan.is_quick else SAMPLES, rate=RATE, stamped=True)
        direct: list[Run] = []
        served: list[HopRun] = []
        direct_lone: list[Run] = []
        served_lone: list[HopRun] = []
        copied: list[HopRun] = []
        for number in range(1, plan.rounds + 1):
            plan.say(f"round {number} of {plan.rounds}: {driver}, directly")
            direct.append(run(case, flood))
            direct_lone.append(run(case, lone, LatencySink))
            plan.say(f"round {number} of {plan.rounds}: {driver}, through the service")
            served.append(hop.run(case, flood, WORKERS))
            served_lone.append(hop.run(case, lone, 1, LatencySink))
            plan.say(f"round {number} of {plan.rounds}: {driver}, through the service into a copy")
            copied.append(hop.run(case, flood, WORKERS, is_copied=True))
    measured = {
        "received": _ratio(served, direct),
        "applied": _ratio(copied, direct),
        "lost": float(sum(one.lost for one in (*served, *copied))),
    }
    rows = [
        _direct_row(direct, direct_lone),
        _hop_row("received", served) | _lone_columns(served_lone),
        _hop_row("applied in a copy", copied),
    ]
    return Outcome("service", driver, rows, check("service", driver, measured))


def _direct_row(runs: Sequence[Run], lone: Sequence[Run]) -> Row:
    return {
        "case": "one publisher, directly",
        "events/s": round(median(runs, lambda run: run.events_per_s)),
        "worker us/event": round(median(runs, lambda run: run.publisher_cpu_us), 2),
        "subscriber us/event": round(median(runs, lambda run: run.subscriber_cpu_us), 2),
        "p50 us": round(median(lone, p50_us)),
        "p99 us": round(median(lone, p99_us)),
        "lost": sum(run.lost for run in runs),
    }


def _hop_row(what: str, runs: Sequence[HopRun]) -> Row:
    return {
        "case": f"{WORKERS} workers, through the service, {what}",
        "events/s": round(_median(runs, lambda run: run.events_per_s)),
        "worker us/event": round(_median(runs, lambda run: run.worker_cpu_us), 2),
        "service us/event": round(_median(runs, lambda run: run.service_cpu_us), 2),
        "subscriber us/event": round(_median(runs, lambda run: run.subscriber_cpu_us), 2),
        "lost": sum(run.lost for run in runs),
        "events per batch": round(_median(runs, lambda run: run.events_per_batch), 1),
    }


def _lone_columns(runs: Sequence[HopRun]) -> Row:
    return {
        "p50 us": round(_median(runs, lambda run: percentile_us(run.finding["latencies_ns"], 0.5))),
        "p99 us": round(_median(runs, lambda run: percentile_us(run.finding["latencies_ns"], 0.99))),
    }


def _ratio(ours: Sequence[HopRun], bus: Sequence[Run]) -> float:
    """The median of the ratios within each round."""
    return statistics.median(mine.events_per_s / its.events_per_s for mine, its in zip(ours, bus, strict=True))


def _median(runs: Sequence[HopRun], value: Callable[[HopRun], float]) -> float:
    return statistics.median(value(one) for one in runs)
