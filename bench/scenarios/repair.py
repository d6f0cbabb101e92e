"""Frames get lost on their way to the subscriber: what that costs, how long repair takes, what the cache costs.

Frames of every kind are dropped at random between the driver and the core, replies and hellos too; every option has its
default.  On zenoh the Advanced pub/sub of zenoh.ext runs next to it; there single samples are dropped, since it does
not batch, and what its cache answers passes.

The *time to repair* is that of the very events whose frames were dropped, from the call that published them to the
callback that got them in the end: to notice the loss, to wait for late frames, to ask, to be answered.  So it means the
same in each case, and is read where a user would.  It is measured at a moderate rate, in runs of their own, and where
only data is lost as well, since that is what happens to zenoh.ext.  An event that is never delivered has no such time;
it is counted as lost.

The cost of a cache is small against what two runs of the same case differ by.  So it is measured by runs of their own:
in every round one with a cache, two without, and one with it again, so that a machine that becomes slower or faster
meanwhile takes and gives alike, and the median of the rounds counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench import catalog
from bench.catalog import Transport
from bench.ends import Case
from bench.plan import Outcome, Plan, Row, in_turns, median, percentile_us, ratio
from bench.runs import Load, Run, run
from bench.sinks import AuditSink, RepairSink
from bench.targets import check
from pubsub_api.config import GROUP

LOSSES = {"1% loss": 0.01, "10% loss": 0.1}
LENGTH = 4
"""Runs are longer here, because the last repair falls after the last event: its time is not to decide the rate."""
PAIR_LENGTH = 2
RATE = 2000.0
SAMPLES, SAMPLES_QUICK = 10_000, 1000
HASTY = {GROUP: {"message_delay_window": 0.001}}
"""For a transport that never reorders, and a network that does not either: late frames are hardly waited for."""


def measure(plan: Plan, driver: str) -> Outcome:
    with catalog.transport(driver) as transport:
        lossy = {
            name: transport.ours_with(f"heliograph, {name}", receiver={"drop": drop}) for name, drop in LOSSES.items()
        }
        uncached = transport.ours_with("heliograph, no cache", sender={"settings": {GROUP: {"with_cache": False}}})
        others = _advanced(driver)
        cases = [transport.ours, *lossy.values(), *others]
        timed = [*lossy.values(), *_data_lost(transport), *(case for case in others if case.sender_options)]
        runs = in_turns(plan, cases, lambda case: run(case, Load(case.count(plan.events * LENGTH)), AuditSink))
        pairs = _pairs(plan, transport.ours, uncached)
        times = _times(plan, timed)
    measured = _measured(runs[transport.ours.name], [runs[case.name] for case in lossy.values()], pairs)
    rows = [_row(case.name, runs[case.name]) for case in cases]
    rows += [_row(f"{case.name}, in pairs", kept) for case, kept in zip((transport.ours, uncached), pairs, strict=True)]
    rows += [_time_row(run) for run in times]
    return Outcome("repair", driver, rows, check("repair", driver, measured))


def _pairs(plan: Plan, cached: Case, uncached: Case) -> tuple[list[Run], list[Run]]:
    """Runs with a cache and without, two of each per round, the second two in reverse."""
    runs: dict[str, list[Run]] = {cached.name: [], uncached.name: []}
    for number in range(1, plan.rounds + 1):
        for case in (cached, uncached, uncached, cached):
            plan.say(f"cost of the cache, round {number} of {plan.rounds}: {case.driver}, {case.name}")
            runs[case.name].append(run(case, Load(case.count(plan.events * PAIR_LENGTH)), AuditSink))
    return runs[cached.name], runs[uncached.name]


def cache_ratio(cached: Sequence[Run], uncached: Sequence[Run]) -> float:
    """Events/s with a cache, of those without: the median over rounds of two runs each."""
    rounds = range(0, len(cached), 2)
    return statistics.median(_rate(cached[at : at + 2]) / _rate(uncached[at : at + 2]) for at in rounds)


def _rate(runs: Sequence[Run]) -> float:
    return sum(run.received for run in runs) / sum(run.seconds for run in runs)


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


def _data_lost(transport: Transport) -> list[Case]:
    """Ours where nothing but data is lost, with the default wait for late frames and with hardly any."""
    return [
        transport.ours_with(f"heliograph{wait}, {name} of data", receiver={"drop": drop, "data_only": True, **settings})
        for wait, settings in (("", {}), (", window 1 ms", {"settings": HASTY}))
        for name, drop in LOSSES.items()
    ]


def _times(plan: Plan, cases: Sequence[Case]) -> list[Run]:
    """At a moderate rate, each case once."""
    load = Load(SAMPLES_QUICK if plan.is_quick else SAMPLES, rate=RATE, stamped=True)
    runs = []
    for case in cases:
        plan.say(f"time to repair: {case.driver}, {case.name}")
        runs.append(run(case, load, RepairSink))
    return runs


def repair_times_ns(run: Run) -> list[int]:
    """How long the events took, from the publish call to the callback, whose frames were dropped on the way."""
    ranges = run.publisher.get("dropped_ranges") or run.subscriber.get("dropped_ranges", ())
    dropped = {run.sent_ns[number - 1] for first, last in ranges for number in range(first, last + 1)}
    seen = run.findings[0]
    return [took for sent, took in zip(seen["versions"], seen["latencies_ns"], strict=True) if sent in dropped]


def _measured(
    ours: Sequence[Run], lossy: Sequence[Sequence[Run]], pairs: tuple[Sequence[Run], Sequence[Run]]
) -> dict[str, float]:
    losing = [run for runs in lossy for run in runs]
    return {
        **{name: ratio(runs, ours, lambda run: run.events_per_s) for name, runs in zip(LOSSES, lossy, strict=True)},
        "resyncs": float(sum(_resyncs(run) for run in losing)),
        "undetected": float(sum(run.undetected() for run in [*ours, *losing])),
        "cache": cache_ratio(*pairs),
    }


def _resyncs(run: Run) -> int:
    """Beyond the initial one."""
    return int(run.subscriber.get("resyncs", 1)) - 1


def _dropped(run: Run) -> int:
    """By what drops."""
    return int(run.publisher.get("dropped", 0) + run.subscriber.get("dropped", 0))


def _row(name: str, runs: Sequence[Run]) -> Row:
    return {
        "case": name,
        "events/s": round(median(runs, lambda run: run.events_per_s)),
        "dropped": sum(_dropped(run) for run in runs),
        "repaired": sum(run.subscriber.get("repaired", 0) for run in runs),
        "resyncs": sum(_resyncs(run) for run in runs),
        "delivered": sum(run.received for run in runs),
        "lost": sum(run.lost for run in runs),
        "lost undetected": sum(run.undetected() for run in runs),
    }


def _time_row(run: Run) -> Row:
    times_ns = repair_times_ns(run)
    return {
        "case": f"{run.case}, {RATE:,.0f} events/s",
        "dropped": _dropped(run),
        "resyncs": _resyncs(run),
        "delivered": run.received,
        "lost": run.lost,
        "events dropped": len(times_ns),
        "repair p50 ms": round(percentile_us(times_ns, 0.5) / 1000, 1),
        "repair p99 ms": round(percentile_us(times_ns, 0.99) / 1000, 1),
        "any event p50 ms": round(percentile_us(run.findings[0]["latencies_ns"], 0.5) / 1000, 1),
    }
