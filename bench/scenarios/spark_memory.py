"""How much memory ``heliograph pipeline compact`` and ``ingest`` need, run as users do, with 4 GB for the driver.

Spark belongs to no transport, so this runs under ``zmq`` only.  The table that is compacted is written from columns:
how events get into it is not the question there.  ``--events 5000000`` makes 50 million of them; a tenth as many are
taken in from a log in which all are hot, because those are what tasks in Python read.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import msgspec

from bench import events as made
from bench import spark_session
from bench.plan import Outcome, Plan, Row
from bench.scenarios.spark import make_log
from bench.targets import check
from bench.workers import WorkerFailed

SHARE = 10.0
KEYS_SHARE = 0.1
"""Objects, as a part of the events."""
CHUNK_EVENTS = 1_000_000
TOPICS = 8
DRIVER_MEMORY = "4g"
LOOK_S = 0.2
_SCATTER = 7919
"""A prime: consecutive events are of objects far apart."""


def measure(plan: Plan, driver: str) -> Outcome:
    reason = "Spark belongs to no transport: see zmq" if driver != "zmq" else spark_session.problem()
    if reason is not None:
        return Outcome("spark_memory", driver, [], [], [reason])
    count = int(plan.events * SHARE)
    keys = int(count * KEYS_SHARE)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as name:
        lake = pathlib.Path(name, "lake")
        plan.say(f"writing {count:,} events into a table")
        for first in range(0, count, CHUNK_EVENTS):
            _add(lake, range(first, min(first + CHUNK_EVENTS, count)), keys)
        plan.say(f"compacting {count:,} events with {DRIVER_MEMORY} for the driver")
        started = time.perf_counter()
        objects, peaks = _compact(lake, pathlib.Path(name))
        rows = [_row("compact", count, time.perf_counter() - started, peaks) | {"objects": objects}]
        plan.say(f"taking in {plan.events:,} events from the hot tail of a log")
        url = make_log(pathlib.Path(name, "log"), plan.events)
        started = time.perf_counter()
        taken, ingested = _ingest(url, pathlib.Path(name))
        rows.append(_row("ingest", taken, time.perf_counter() - started, ingested))
    measured = {
        "peak": peaks["java"] / 1e9, "missing": float(keys - objects), "ingest": ingested["python"] / 1e9,
    }  # fmt: skip
    return Outcome("spark_memory", driver, rows, check("spark_memory", driver, measured))


def _row(case: str, events: int, seconds: float, peaks: dict[str, int]) -> Row:
    return {
        "case": case, "events": events, "seconds": round(seconds, 1), "driver_memory": DRIVER_MEMORY,
        "peak of the JVM, GB": round(peaks["java"] / 1e9, 2), "peak of Python, GB": round(peaks["python"] / 1e9, 2),
    }  # fmt: skip


def _add(lake: pathlib.Path, numbers: range, keys: int) -> None:
    """Append events of these numbers to the table."""
    import deltalake
    import numpy
    import pyarrow as pa

    from spark_pipeline.lake import PARTITION
    from spark_pipeline.schema import LOG

    at = numpy.arange(numbers.start, numbers.stop, dtype=numpy.int64)
    names = numpy.char.add("port-", numpy.char.zfill((at * _SCATTER % keys).astype(str), 9))
    values = pa.array([msgspec.msgpack.encode(value) for value in made.VALUES], pa.binary())
    topics = pa.array([made.topic(number) for number in range(TOPICS)])
    now_ns = time.time_ns()

    def same(value: Any, kind: Any) -> Any:
        return pa.repeat(pa.scalar(value, kind), len(at))

    columns = {
        "shard": pa.array(at % 4, pa.int32()), "offset": at // 4, "guid": same(bytes(16), pa.binary()),
        "topic": topics.take(pa.array(at % TOPICS)), "seq": at // TOPICS + 1, "table": same(made.TABLE, pa.string()),
        "key": pa.array(names), "action": same("set", pa.string()), "value": values.take(pa.array(at % made.POOL)),
        "version": at + 1, "timestamp": now_ns + at, "appended_ns": now_ns + at,
        LOG: same("bench", pa.string()),
        PARTITION: same(datetime.datetime.now(datetime.timezone.utc).date().isoformat(), pa.string()),
    }  # fmt: skip
    deltalake.write_deltalake(str(lake), pa.table(columns), mode="append", partition_by=[PARTITION])


def _compact(lake: pathlib.Path, directory: pathlib.Path) -> tuple[int, dict[str, int]]:
    """How many objects it found, and the most memory its processes had at once."""
    out = str(directory / "snapshot")
    said, peaks = _run_job(directory, "compact", "--lake", str(lake), "--out", out)
    return int(said[-1]["objects"]), peaks


def _ingest(url: str, directory: pathlib.Path) -> tuple[int, dict[str, int]]:
    """How many events it took in, and the most memory its processes had at once."""
    said, peaks = _run_job(directory, "ingest", "--log", url, "--lake", str(directory / "taken-in"))
    return sum(int(one["events"]) for one in said), peaks


def _run_job(directory: pathlib.Path, job: str, *arguments: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Run a command; what it said, and the most memory its processes had at once."""
    config = directory / "spark.conf"
    config.write_text(f"[spark]\ndriver_memory = {DRIVER_MEMORY}\noptions = spark.local.dir:{directory}\n")
    command = [
        sys.executable, "-m", "heliograph", "pipeline", job, *arguments, "--master", spark_session.MASTER,
        "--config-file", str(config), "--json",
    ]  # fmt: skip
    errors = directory / "errors.txt"
    peaks = {"java": 0, "python": 0}
    with open(errors, "wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, start_new_session=True)
        while process.poll() is None:
            peaks |= {name: max(size, peaks[name]) for name, size in _resident(process.pid).items() if name in peaks}
            time.sleep(LOOK_S)
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode:
        raise WorkerFailed(f"{job} ended with {process.returncode}: {errors.read_text()[-2000:]}")
    return [json.loads(line) for line in said.splitlines()], peaks


def _resident(session: int) -> dict[str, int]:
    """Resident bytes of the processes of a session, by the name of their program.

    One that the JVM has forked, and that runs nothing else yet, has the name of a thread: its memory is the JVM's and
    must not be counted twice.
    """
    found: dict[str, int] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
        except OSError:
            continue  # it ended while we looked
        if int(fields[3]) == session:
            found[name] = found.get(name, 0) + int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return found
