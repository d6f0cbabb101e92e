"""10,000 topics in turn, the worst case for batching by topic; and what a stream costs in memory when nothing happens.

A stream is idle when its last event has left the publisher's cache by age.  For the memory figure that age is short,
and events come slowly enough that no queue grows.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import catalog
from bench.catalog import Transport
from bench.plan import Outcome, Plan, Row, in_turns, median, ratio
from bench.runs import Load, Run, run
from bench.targets import check
from pubsub_api.config import GROUP

TOPICS, TOPICS_QUICK = 10_000, 500
STREAMS, STREAMS_QUICK = 30_000, 2_000
STREAMS_RATE = 8_000.0
CACHE_AGE_S = 0.1


def measure(plan: Plan, driver: str) -> Outcome:
    topics = TOPICS_QUICK if plan.is_quick else TOPICS
    with catalog.transport(driver) as transport:
        theirs = transport.rest.get("tuned", transport.plain)
        cases = [theirs, transport.ours]
        runs = in_turns(plan, cases, lambda case: run(case, Load(int(plan.events * theirs.share), topics=topics)))
        memory_row, memory = _memory(plan, transport)
    measured = {"tuned": ratio(runs[transport.ours.name], runs[theirs.name], _rate), **memory}
    rows = [_row(case.name, topics, runs[case.name]) for case in cases]
    return Outcome("topics", driver, [*rows, memory_row], check("topics", driver, measured))


def _memory(plan: Plan, transport: Transport) -> tuple[Row, dict[str, float]]:
    streams = STREAMS_QUICK if plan.is_quick else STREAMS
    plan.say(f"memory of {streams} idle streams: {transport.driver}")
    case = transport.ours_with("idle streams", sender={"settings": {GROUP: {"cache_age_max": CACHE_AGE_S}}})
    grown = run(case, Load(streams, topics=streams, rate=STREAMS_RATE))
    measured = {
        "publisher memory": grown.publisher_grown_bytes / streams,
        "subscriber memory": grown.subscriber_grown_bytes / streams,
    }
    row = {
        "case": case.name,
        "topics": streams,
        "lost": grown.lost,
        "publisher B/stream": round(measured["publisher memory"]),
        "subscriber B/stream": round(measured["subscriber memory"]),
    }
    return row, measured


def _rate(run: Run) -> float:
    return run.events_per_s


def _row(name: str, topics: int, runs: Sequence[Run]) -> Row:
    return {
        "case": name,
        "topics": topics,
        "events/s": round(median(runs, _rate)),
        "publisher us/event": round(median(runs, lambda run: run.publisher_cpu_us), 2),
        "subscriber us/event": round(median(runs, lambda run: run.subscriber_cpu_us), 2),
        "lost": sum(run.lost for run in runs),
    }
