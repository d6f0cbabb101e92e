"""From a commit to the copies of its followers: Heliograph and what one writes by hand, on the same databases.

500 objects of about 150 bytes, one writer, 5 followers, each in a process of its own.  The delay is from right before
the call that commits until the follower's copy has the change; at 300 changes/s, then as fast as it goes.  The writer
by hand promises less: a follower that was away has missed what was told meanwhile, and nothing repairs it.

Writing is compared with SQLite alone, too, the same driver and transactions without an outbox and a bus, and there
no process follows: followers would take the processor from the writer of one of the two only.
"""

from __future__ import annotations

from bench import change_systems
from bench.change_cases import (
    FLOOD,
    RATE,
    STEADY,
    ChangeCase,
    ChangeFindings,
    committed_per_s,
    flood,
    follower_us,
    measure_in_turns,
    most,
    not_held,
    p50_ms,
    p99_ms,
    rows,
    steady,
    writer_us,
)
from bench.change_systems import (
    ETCD,
    LISTEN,
    LISTEN_TUNED,
    PEERS,
    POSTGRES,
    REDIS,
    SQLITE,
    SQLITE_ALONE,
    SQLITE_UNFOLLOWED,
)
from bench.plan import Outcome, Plan
from bench.targets import check

SIZES = (1, 10, 100)
"""Changes per transaction."""
SEE_ZMQ = "the systems that are compared are the same for all drivers: see zmq"


def measure(plan: Plan, driver: str) -> Outcome:
    if driver != "zmq":
        return Outcome("changes", driver, [], [], [SEE_ZMQ])
    lone = [steady(plan), flood(plan)]
    sized = [flood(plan, size) for size in SIZES]
    cases = [ChangeCase(system.name, system, lone, peer=system.peer) for system in change_systems.ALL]
    cases += [
        ChangeCase(SQLITE_UNFOLLOWED.name, SQLITE_UNFOLLOWED, sized, followers=0, peer=SQLITE_ALONE.name),
        ChangeCase(SQLITE_ALONE.name, SQLITE_ALONE, sized, followers=0),
    ]
    findings = measure_in_turns(plan, cases)
    measured = _with_peers(findings) | _with_sqlite_alone(findings, plan) | {"missing": findings.missing()}
    checks = check("changes", driver, measured)
    notes = [*not_held(cases, findings), *_beside_tuned(findings)]
    return Outcome("changes", driver, rows(cases, findings), checks, notes)


def _beside_tuned(findings: ChangeFindings) -> list[str]:
    p50 = findings.ratio(POSTGRES.name, LISTEN_TUNED.name, STEADY, p50_ms)
    p99 = findings.ratio(POSTGRES.name, LISTEN_TUNED.name, STEADY, p99_ms)
    rate = findings.ratio(POSTGRES.name, LISTEN_TUNED.name, FLOOD, most)
    if p50 is None or p99 is None or rate is None:
        return []
    return [f"{POSTGRES.name}, times {LISTEN_TUNED.name}: p50 {p50:.2f}, p99 {p99:.2f}, changes/s {rate:.2f}"]


def _with_peers(findings: ChangeFindings) -> dict[str, float]:
    """By the names of the targets.  What compares with something that is absent is left out."""
    measured: dict[str, float | None] = {"sqlite twice": findings.ratio(SQLITE.name, LISTEN.name, FLOOD, most)}
    for name, system in (("postgres", POSTGRES), ("etcd", ETCD), ("sqlite", SQLITE)):
        measured[f"{name} p50"] = findings.ratio(system.name, system.peer, STEADY, p50_ms)
        measured[f"{name} p99"] = findings.ratio(system.name, system.peer, STEADY, p99_ms)
        measured[f"{name} rate"] = findings.ratio(system.name, system.peer, FLOOD, most)
    ours = [system.name for system in (POSTGRES, ETCD, SQLITE, REDIS) if findings.runs(system.name, STEADY)]
    peers = [system.name for system in PEERS if findings.runs(system.name, FLOOD)]
    measured["held"] = min(findings.median(name, STEADY, committed_per_s) for name in ours) / RATE
    if peers:
        for target, value in (("follower cpu", follower_us), ("writer cpu", writer_us)):
            worst = max(findings.median(name, FLOOD, value) for name in ours)
            measured[target] = worst / min(findings.median(name, FLOOD, value) for name in peers)
    return {name: found for name, found in measured.items() if found is not None}


def _with_sqlite_alone(findings: ChangeFindings, plan: Plan) -> dict[str, float]:
    phases = {size: flood(plan, size).name for size in SIZES}
    found = {
        f"by {size}": findings.ratio(SQLITE_UNFOLLOWED.name, SQLITE_ALONE.name, phase, most)
        for size, phase in phases.items()
    }
    return {name: measured for name, measured in found.items() if measured is not None}
