"""A subscriber at half the publisher's speed, with every queue at its default.

The raw transports lose events in silence.  Heliograph may lose events as well, once
``receive_queue_bytes_max`` and ``pending_bytes_max`` are full, but then says so: each event is received, or a resync
that was told after it was published covers it.  The last case makes both small, so that this happens.
"""

from __future__ import annotations

import functools

from bench import catalog
from bench.plan import Outcome, Plan, Row
from bench.runs import Load, Run, run
from bench.sinks import AuditSink
from bench.targets import check
from pubsub_api.config import GROUP

RATE = {"zmq": 40_000.0, "zenoh": 40_000.0, "redis": 6_000.0, "longpoll": 500.0}
"""Events per second, below what the raw library can do."""
SECONDS, SECONDS_QUICK = 5.0, 0.5
SMALL_QUEUE_BYTES = 256 * 1024


def measure(plan: Plan, driver: str) -> Outcome:
    rate = RATE[driver]
    load = Load(int(rate * (SECONDS_QUICK if plan.is_quick else SECONDS)), rate=rate)
    make_sink = functools.partial(AuditSink, rate_max=rate / 2)
    with catalog.transport(driver, unlimited=False) as transport:
        sizes = {"receive_queue_bytes_max": SMALL_QUEUE_BYTES, "pending_bytes_max": SMALL_QUEUE_BYTES}
        small = {"settings": {GROUP: sizes}}
        runs = []
        for case in (transport.plain, transport.ours, transport.ours_with("heliograph, small queue", receiver=small)):
            plan.say(f"half speed: {driver}, {case.name}")
            runs.append(run(case, load, make_sink))
    measured = {"undetected": float(sum(run.undetected() for run in runs[1:]))}
    return Outcome("slow", driver, [_row(run) for run in runs], check("slow", driver, measured))


def _row(run: Run) -> Row:
    return {
        "case": run.case,
        "sent": run.sent,
        "received": run.received,
        "missing": run.lost,
        "missing undetected": run.undetected(),
        "out of order or twice": sum(finding["misplaced"] for finding in run.findings),
        "resyncs": run.subscriber.get("resyncs", 1) - 1,
    }
