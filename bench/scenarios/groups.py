"""Four members of one group: events/s acknowledged, next to four consumers of a Redis stream on the same server.

Under ``redis`` the log lies in Redis, and the consumers of the stream use XREADGROUP and XACK, one entry per call and
100 per call.  Under ``zmq`` the embedded log is measured, how well a queue spreads jobs over its members, and how long
a group stands still when a member or its leader is killed.  Under both it is measured what idle groups cost, and how
long an event takes from its publisher over the bus and the log to a callback.  What is consumed is there before the
first consumer begins, but for jobs and events whose time is taken, for which members wait.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator

import durable_log
from bench import consumers, events, failover, group_latency, redis_server
from bench.plan import Outcome, Plan, Row, percentile_us
from bench.targets import check
from bench.workers import Worker
from pubsub_api.testing.ports import free_port
from shared_subscriptions import groups
from shared_subscriptions.config import CLAIM_LEASES

MEMBERS, MEMBERS_QUICK = 4, 2
SHARDS = 8
TOPICS = 64
FRAME_EVENTS = 64
SHARES = {"one by one": 0.05, "100 per call": 0.5}
OURS_SHARE = 2.0
JOB_S = 0.01
JOBS = 1200
LATENCY, LATENCY_QUICK = 1000, 20
IDLE, IDLE_QUICK = 1000, 20
IDLE_S, IDLE_QUICK_S = 20.0, 0.5
OURS = "heliograph, $shared"
LOGS = {"zmq": "sqlite", "redis": "redis"}
RAW = {name: f"XREADGROUP and XACK, {name}" for name in SHARES}


def measure(plan: Plan, driver: str) -> Outcome:
    if driver not in LOGS:
        return Outcome("groups", driver, [], [], ["a group belongs to no transport: see zmq for SQLite, and redis"])
    rates = _rates(plan, driver)
    ours = rates[OURS]
    rows: list[Row] = [{"case": name, "events/s": round(statistics.median(found))} for name, found in rates.items()]
    measured: dict[str, float] = {}
    for part in (_measure_latency, _measure_idle):
        row, found = part(plan, driver)
        rows.append(row)
        measured |= found
    if driver == "redis":
        measured |= {
            name: statistics.median(mine / other for mine, other in zip(ours, rates[case], strict=True))
            for name, case in (("single", RAW["one by one"]), ("batch", RAW["100 per call"]))
        }
        return Outcome("groups", driver, rows, check("groups", driver, measured))
    measured["embedded"] = statistics.median(ours)
    jobs = _jobs(plan)
    rows += [{"case": f"$queue, {name}", "of the shortest time": round(found, 3)} for name, found in jobs.items()]
    measured |= {"queue": 1 / jobs["jobs of 10 ms"], "slow member": jobs["one member 10 times slower"]}
    if plan.is_quick:
        notes = ["no process was killed: that takes longer than quick"]
        return Outcome("groups", driver, rows, check("groups", driver, measured), notes)
    stalls = _stalls(plan)
    rows += [{"case": f"{killed} killed", "seconds": round(seconds, 2)} for killed, seconds in stalls.items()]
    measured["member killed"] = stalls["member"] - failover.OPTIONS["member_lease"]
    measured["leader killed"] = stalls["leader"] - CLAIM_LEASES * failover.OPTIONS["member_lease"]
    return Outcome("groups", driver, rows, check("groups", driver, measured))


def _rates(plan: Plan, driver: str) -> dict[str, list[float]]:
    """Events/s of every round, by case."""
    rates: dict[str, list[float]] = {}
    members = MEMBERS_QUICK if plan.is_quick else MEMBERS
    for number in range(1, plan.rounds + 1):
        plan.say(f"round {number} of {plan.rounds}: groups, {driver}")
        with _store(driver) as url:
            if driver == "redis":
                for name, batch in (("one by one", 1), ("100 per call", 100)):
                    rate = _raw(url, max(200, int(plan.events * SHARES[name])), batch, members)
                    rates.setdefault(RAW[name], []).append(rate)
            count = max(TOPICS * FRAME_EVENTS, int(plan.events * OURS_SHARE))
            rates.setdefault(OURS, []).append(_ours(url, count, members))
    return rates


def _jobs(plan: Plan) -> dict[str, float]:
    """How long a burst of jobs takes, times the shortest possible."""
    members = MEMBERS_QUICK if plan.is_quick else MEMBERS
    cases = {"jobs of 10 ms": [JOB_S] * members, "one member 10 times slower": [10 * JOB_S] + [JOB_S] * (members - 1)}
    found: dict[str, list[float]] = {}
    for number in range(1, plan.rounds + 1):
        for name, speeds in cases.items():
            plan.say(f"round {number} of {plan.rounds}: groups, {name}")
            with _store("zmq") as url:
                found.setdefault(name, []).append(_burst(url, speeds, 20 if plan.is_quick else JOBS))
    return {name: statistics.median(times) for name, times in found.items()}


def _burst(url: str, speeds: list[float], count: int) -> float:
    """Jobs of one topic, appended while members wait for them; each member takes its own time for a job."""
    with contextlib.closing(durable_log.open(url)) as log, contextlib.ExitStack() as stack:
        groups.declare(log, consumers.GROUP, "#", mode="queue")
        workers = [stack.enter_context(Worker(consumers.worker, url, job_s)) for job_s in speeds]
        for worker in workers:
            worker.hear()
        begun_ns = time.monotonic_ns()
        _append(log, os.urandom(16), events.topic(0), count)
        rate = consumers.events_per_s(workers, count, begun_ns)
        _stop(workers)
    return sum(1 / job_s for job_s in speeds) / rate


def _measure_latency(plan: Plan, driver: str) -> tuple[Row, dict[str, float]]:
    """How long lone events take from their publisher to a callback of one of two members."""
    plan.say(f"groups, {driver}: from publisher to callback")
    with _store(driver) as url:
        bus = url.partition("?")[0] if driver == "redis" else f"zmq://127.0.0.1:{free_port()}"
        took = group_latency.measure(bus, url, LATENCY_QUICK if plan.is_quick else LATENCY)
    p50, p99 = (percentile_us(took, part) / 1000 for part in (0.5, 0.99))
    return {"case": "publisher to callback", "p50 ms": round(p50, 2), "p99 ms": round(p99, 2)}, {
        f"{LOGS[driver]} p50": p50
    }


def _measure_idle(plan: Plan, driver: str) -> tuple[Row, dict[str, float]]:
    plan.say(f"groups, {driver}: idle ones")
    count, watch_s = (IDLE_QUICK, IDLE_QUICK_S) if plan.is_quick else (IDLE, IDLE_S)
    with _store(driver) as url, Worker(consumers.idle, url, count, watch_s) as worker:
        ready_s, share, threads, descriptors = worker.hear()
        worker.end()
    row: Row = {
        "case": f"{count} idle groups", "of a core": round(share, 4), "threads": threads,
        "descriptors": descriptors, "ready after s": round(ready_s, 2),
    }  # fmt: skip
    return row, {"idle cpu": share, "idle threads": float(threads)}


def _stalls(plan: Plan) -> dict[str, float]:
    """The longest time that a killed process of each kind kept its streams from flowing."""
    stalls: dict[str, float] = {}
    for number in range(1, plan.rounds + 1):
        for killed in ("member", "leader"):
            plan.say(f"round {number} of {plan.rounds}: groups, {killed} killed")
            with _store("zmq") as url:
                stalled_s = failover.stalled_s(url, kills_leader=killed == "leader")
            stalls[killed] = max(stalls.get(killed, 0.0), stalled_s)
    return stalls


@contextlib.contextmanager
def _store(driver: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        if driver == "zmq":
            yield f"sqlite://{directory}/log.db?shards={SHARDS}"
        else:
            with redis_server.running() as address:
                yield f"{address}?shards={SHARDS}&segment_directory={directory}"


def _ours(url: str, count: int, members: int) -> float:
    with contextlib.closing(durable_log.open(url)) as log:
        total = _fill(log, count)
        groups.declare(log, consumers.GROUP, "#", start="earliest")
        groups.pause(log, consumers.GROUP)
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(Worker(consumers.member, url)) for _ in range(members)]
            for worker in workers:
                worker.hear()
            begun_ns = time.monotonic_ns()
            groups.resume(log, consumers.GROUP)
            rate = consumers.events_per_s(workers, total, begun_ns)
            _stop(workers)
        groups.destroy(log, consumers.GROUP)
    return rate


def _fill(log: durable_log.LogApi, count: int) -> int:
    """About ``count`` events over all topics, framed as a publisher does in a flood; returns how many."""
    guid, per_topic = os.urandom(16), max(1, count // TOPICS // FRAME_EVENTS)
    for number in range(TOPICS):
        _append(log, guid, events.topic(number), per_topic * FRAME_EVENTS)
    return TOPICS * per_topic * FRAME_EVENTS


def _append(log: durable_log.LogApi, guid: bytes, topic: str, count: int) -> None:
    made = []
    for first in range(1, count + 1, FRAME_EVENTS):
        numbers = range(first, min(first + FRAME_EVENTS, count + 1))
        made.append(events.frame(guid, topic, [events.event(number, topic) for number in numbers], first))
    log.append(made)


def _raw(url: str, count: int, batch: int, members: int) -> float:
    import msgpack
    import redis

    address = url.partition("?")[0]
    with redis.Redis.from_url(address) as client:
        client.delete(consumers.STREAM)
        for first in range(0, count, 1000):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, min(first + 1000, count)):
                pipeline.xadd(consumers.STREAM, {"e": msgpack.packb(events.mapping(number))})
            pipeline.execute()
        client.xgroup_create(consumers.STREAM, consumers.GROUP, id="0")
        with contextlib.ExitStack() as stack:
            workers = [
                stack.enter_context(Worker(consumers.stream_consumer, address, f"c{number}", batch))
                for number in range(members)
            ]
            for worker in workers:
                worker.hear()
            begun_ns = time.monotonic_ns()
            for worker in workers:
                worker.tell("go")
            rate = consumers.events_per_s(workers, count, begun_ns)
            _stop(workers)
        client.delete(consumers.STREAM)
    return rate


def _stop(workers: list[Worker]) -> None:
    for worker in workers:
        worker.tell("stop")
    for worker in workers:
        worker.end()
