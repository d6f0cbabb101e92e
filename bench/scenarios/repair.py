"""Frames get lost on their way to the subscriber: what that costs, how long repair takes, what the cache costs.

Frames of every kind are dropped at random between the driver and the core, replies and hellos too.  The queue before
the callback takes the whole run in every case, so that a machine too busy for the callback does not pass for a loss
that was not repaired.  On zenoh the Advanced pub/sub of zenoh.ext runs next to it; there single samples are dropped,
since it does not batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import catalog
from bench.catalog import Transport
from bench.ends import Case
from bench.plan import Outcome, Plan, Row, in_turns, median, ratio
from bench.runs import Load, Run, run
from bench.scenarios.latency import percentile_us
from bench.sinks import AuditSink, LatencySink
from bench.targets import check
from pubsub_api.config import GROUP

LOSSES = {"1% loss": 0.01, "10% loss": 0.1}
LENGTH = 4
"""Runs are longer here, because the last repair falls after the last event: its time is not to decide the rate."""
QUEUE_BYTES = 512 * 1024 * 1024
LATE_US = 50_000
"""An event that takes longer waited for a repair: its own, or that of an earlier one."""
RATE = 2000.0
SAMPLES, SAMPLES_QUICK = 8000, 600


def measure(plan: Plan, driver: str) -> Outcome:
    with catalog.transport(driver) as transport:
        roomy = {"settings": {GROUP: {"receive_queue_bytes_max": QUEUE_BYTES}}}
        lossless = transport.ours_with(transport.ours.name, receiver=roomy)
        lossy = {
            name: transport.ours_with(f"heliograph, {name}", receiver={"drop": drop, **roomy})
            for name, drop in LOSSES.items()
        }
        uncached = transport.ours_with(
            "heliograph, no cache", sender={"settings": {GROUP: {"with_cache": False}}}, receiver=roomy
        )
        others = _advanced(driver)
        cases = [lossless, uncached, *lossy.values(), *others]
        runs = in_turns(plan, cases, lambda case: run(case, Load(case.count(plan.events * LENGTH)), AuditSink))
        late = _late(plan, [*lossy.values(), *others])
    measured = _measured(transport, runs, uncached, lossy)
    rows = [_row(case.name, runs[case.name], late.get(case.name)) for case in cases]
    return Outcome("repair", driver, rows, check("repair", driver, measured))


def _advanced(driver: str) -> list[Case]:
    """zenoh.ext under the same part of lost samples."""
    if driver != "zenoh":
        return []
    from bench import raw_zenoh as raw

    lossless = Case("zenoh.ext", "zenoh", raw.AdvancedSender, raw.AdvancedReceiver, "", 0.5)
    return [lossless] + [
        Case(f"zenoh.ext, {name}", "zenoh", raw.AdvancedSender, raw.AdvancedReceiver, "", 0.3, {"drop": drop})
        for name, drop in LOSSES.items()
    ]


def _late(plan: Plan, cases: Sequence[Case]) -> dict[str, Run]:
    """At a moderate rate, how late the events come that a loss held up."""
    load = Load(SAMPLES_QUICK if plan.is_quick else SAMPLES, rate=RATE, stamped=True)
    runs = {}
    for case in cases:
        plan.say(f"time to repair: {case.driver}, {case.name}")
        runs[case.name] = run(case, load, LatencySink)
    return runs


def _measured(
    transport: Transport, runs: dict[str, list[Run]], uncached: Case, lossy: dict[str, Case]
) -> dict[str, float]:
    ours = runs[transport.ours.name]
    losing = [run for case in lossy.values() for run in runs[case.name]]
    return {
        **{name: ratio(runs[case.name], ours, lambda run: run.events_per_s) for name, case in lossy.items()},
        "resyncs": float(sum(_resyncs(run) for run in losing)),
        "undetected": float(sum(run.undetected() for run in [*ours, *losing])),
        "cache": ratio(ours, runs[uncached.name], lambda run: run.events_per_s),
    }


def _resyncs(run: Run) -> int:
    """Beyond the initial one."""
    return int(run.subscriber.get("resyncs", 1)) - 1


def _row(name: str, runs: Sequence[Run], late: Run | None) -> Row:
    row: Row = {
        "case": name,
        "events/s": round(median(runs, lambda run: run.events_per_s)),
        "dropped": sum(run.subscriber.get("dropped", 0) for run in runs),
        "repaired": sum(run.subscriber.get("repaired", 0) for run in runs),
        "resyncs": sum(_resyncs(run) for run in runs),
        "missing": sum(run.lost for run in runs),
        "missing undetected": sum(run.undetected() for run in runs),
    }
    if late is not None:
        latencies = [latency for latency in late.findings[0]["latencies_ns"] if latency > LATE_US * 1000]
        row |= {
            "late %": round(100 * len(latencies) / late.sent, 1),
            "late p50 ms": round(percentile_us(latencies, 0.5) / 1000, 1),
            "late p99 ms": round(percentile_us(latencies, 0.99) / 1000, 1),
        }
    return row
