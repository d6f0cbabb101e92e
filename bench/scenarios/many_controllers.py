"""Many controllers at one database: 500 and 2,000 local caches, from cold, at 50 changes/s, and when the publisher
service is killed and started again (`bench.controller_runs`).

The database is a PostgreSQL, whose CPU is that of the whole server.  The caches share the processor with everything
else here, so delays say more about the machine than about Heliograph; what is checked is what must hold on any machine:
how many snapshots the database has open at a time, and that no cache reads one after a restart.
"""

from __future__ import annotations

import pathlib
import tempfile

from bench import controller_runs, database_servers
from bench.controller_runs import ControllerRun, PhaseFindings
from bench.plan import Outcome, Plan, Row, percentile_us
from bench.scenarios.changes import SEE_ZMQ
from bench.targets import check
from bench.workers import WorkerFailed

DATABASE = "postgres"
SIZES, SIZES_QUICK = (500, 2000), (10,)
RATE = 50.0
SECONDS, SECONDS_QUICK = 20.0, 1.0


def measure(plan: Plan, driver: str) -> Outcome:
    """One round: the sizes are no cases to compare."""
    if driver != "zmq":
        return Outcome("many_controllers", driver, [], [], [SEE_ZMQ])
    if (problem := database_servers.problem(DATABASE)) is not None:
        return Outcome("many_controllers", driver, [], [], [problem])
    runs: list[ControllerRun] = []
    rows: list[Row] = []
    notes: list[str] = []
    for caches in SIZES_QUICK if plan.is_quick else SIZES:
        plan.say(f"{caches:,} caches: starting")
        try:
            run = _run(plan, caches)
        except WorkerFailed as error:  # the others were measured, and are told
            rows.append({"case": f"{caches:,} caches, not measured"})
            notes.append(f"{caches:,} caches: {error}")
            continue
        runs.append(run)
        rows += _rows(run)
        notes += _notes(run)
    measured = {
        "snapshots": float(max(run.snapshots_at_once for run in runs)),
        "after restart": float(sum(run.restart.syncs.snapshots for run in runs)),
        "missing": float(sum(run.unsynced + run.calm.missing + run.restart.missing for run in runs)),
    } if runs else {}  # fmt: skip
    return Outcome("many_controllers", driver, rows, check("many_controllers", driver, measured), notes)


def _run(plan: Plan, caches: int) -> ControllerRun:
    """Raises WorkerFailed."""
    seconds = SECONDS_QUICK if plan.is_quick else SECONDS
    with (
        database_servers.running(DATABASE) as server,
        tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory,
    ):
        return controller_runs.run(
            server, pathlib.Path(directory), caches=caches, seconds=seconds, rate=RATE, say=plan.say
        )


def _rows(run: ControllerRun) -> list[Row]:
    cold = {
        "case": f"{run.caches:,} caches, from cold",
        "s": round(run.sync_s, 1),
        "snapshots": run.syncs.snapshots,
        "at once": run.snapshots_at_once,
        "without slot": run.syncs.without_slot,
        "deltas": run.syncs.deltas,
        "failures": run.syncs.failures,
        "lost": run.unsynced,
        "slot reads": run.slot_reads,
        "db cpu": round(run.server_sync_cpu_s / run.sync_s, 2),
    }
    return [cold, _phase_row(f"{run.caches:,} caches", run.calm), _phase_row(f"{run.caches:,}, restart", run.restart)]


def _phase_row(name: str, found: PhaseFindings) -> Row:
    return {
        "case": f"{name}, {RATE:g}/s",
        "changes/s": round(found.rate),
        "p50 ms": round(percentile_us(found.latencies_ns, 0.5) / 1000, 2),
        "p99 ms": round(percentile_us(found.latencies_ns, 0.99) / 1000, 1),
        "snapshots": found.syncs.snapshots,
        "deltas": found.syncs.deltas,
        "failures": found.syncs.failures,
        "db cpu": round(found.server_cpu, 2),
        "copy us": round(found.caches_cpu_us),
        "lost": found.missing,
    }


def _notes(run: ControllerRun) -> list[str]:
    each = run.resources
    return [
        f"each of {run.caches:,} caches: {each.threads:.1f} threads, {each.files:.1f} open files, {each.kib:.0f} KiB, "
        f"{run.cache_sync_cpu_ms:.0f} ms of CPU to start, {each.idle_cpu:.3%} of a core when idle"
    ]
