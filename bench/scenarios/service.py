"""From workers through the publisher service to a subscriber and to a controller's copy, compared with a publisher that
sends directly to a subscriber.

Events/s of four workers together and CPU of all processes: first until a subscriber was called with them, then
until a `LocalCache` holds them and has told so.  Then how long a lone event takes at 1,000 events/s.
Drivers that let every process publish need no service and are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench import catalog, through_service
from bench.plan import Outcome, Plan, Row, median, percentile_us, ratio
from bench.runs import Load, Run, run
from bench.scenarios.latency import RATE, SAMPLES, SAMPLES_QUICK, p50_us, p99_us
from bench.sinks import LatencySink
from bench.targets import check
from bench.through_service import ServiceRun
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
        served: list[ServiceRun] = []
        direct_lone: list[Run] = []
        served_lone: list[ServiceRun] = []
        copied: list[ServiceRun] = []
        for number in range(1, plan.rounds + 1):
            plan.say(f"round {number} of {plan.rounds}: {driver}, directly")
            direct.append(run(case, flood))
            direct_lone.append(run(case, lone, LatencySink))
            plan.say(f"round {number} of {plan.rounds}: {driver}, through the service")
            served.append(through_service.run(case, flood, WORKERS))
            served_lone.append(through_service.run(case, lone, 1, LatencySink))
            plan.say(f"round {number} of {plan.rounds}: {driver}, through the service into a copy")
            copied.append(through_service.run(case, flood, WORKERS, is_copied=True))
    measured = {
        "received": ratio(served, direct, lambda run: run.events_per_s),
        "applied": ratio(copied, direct, lambda run: run.events_per_s),
        "p50": statistics.median(
            _lone_us(mine, 0.5) / p50_us(other) for mine, other in zip(served_lone, direct_lone, strict=True)
        ),
        "lost": float(sum(one.lost for one in (*served, *copied))),
    }
    rows = [
        _direct_row(direct, direct_lone),
        _service_row("received", served) | _lone_columns(served_lone),
        _service_row("applied in a copy", copied),
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


def _service_row(what: str, runs: Sequence[ServiceRun]) -> Row:
    return {
        "case": f"{WORKERS} workers, through the service, {what}",
        "events/s": round(median(runs, lambda run: run.events_per_s)),
        "worker us/event": round(median(runs, lambda run: run.worker_cpu_us), 2),
        "service us/event": round(median(runs, lambda run: run.service_cpu_us), 2),
        "subscriber us/event": round(median(runs, lambda run: run.subscriber_cpu_us), 2),
        "lost": sum(run.lost for run in runs),
        "events per batch": round(median(runs, lambda run: run.events_per_batch), 1),
    }


def _lone_us(run: ServiceRun, part: float) -> float:
    return percentile_us(run.finding["latencies_ns"], part)


def _lone_columns(runs: Sequence[ServiceRun]) -> Row:
    return {
        "p50 us": round(median(runs, lambda run: _lone_us(run, 0.5))),
        "p99 us": round(median(runs, lambda run: _lone_us(run, 0.99))),
    }
