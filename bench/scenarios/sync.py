"""A controller's first copy of a large database: time and memory, against reading the same rows with sqlite3 alone.

The plain reader fetches and decodes every row and keeps the values in a dict by key: the least that any program could
do.  Time is that of the process's CPU, since both are bound by it and other programs must not decide; seconds on the
clock are in the table, too.
"""

from __future__ import annotations

import pathlib
import sqlite3
import tempfile
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec

from bench.plan import Outcome, Plan, Row, ratio
from bench.scenarios.commit import WRITES, nb_conf, writes
from bench.targets import check
from bench.workers import ask_once, usage_now
from nb_api import LocalCache, NbApi

PLAIN, OURS = "sqlite3 and a dict", "heliograph LocalCache"
OBJECTS_PER_EVENT = 10 / 3
"""A full run has a million objects."""
TIMEOUT_S = 900.0


class Sync(NamedTuple):
    objects: int
    seconds: float
    cpu_s: float
    bytes: int


def measure(plan: Plan, driver: str) -> Outcome:
    """``driver`` is the bus that the controller follows."""
    count = round(plan.events * OBJECTS_PER_EVENT)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        path = pathlib.Path(directory) / "objects.db"
        plan.say(f"writing {count:,} objects")
        ask_once(fill, path, count, timeout_s=TIMEOUT_S)
        runs: dict[str, list[Sync]] = {PLAIN: [], OURS: []}
        for number in range(1, plan.rounds + 1):
            for name, role in ((PLAIN, read_plainly), (OURS, read_into_a_cache)):
                plan.say(f"round {number} of {plan.rounds}: {name}")
                runs[name].append(ask_once(role, path, driver, timeout_s=TIMEOUT_S))
    measured = {
        "time": ratio(runs[OURS], runs[PLAIN], lambda run: run.cpu_s),
        "memory": ratio(runs[OURS], runs[PLAIN], lambda run: run.bytes),
        "missing": float(max(count - run.objects for run in runs[OURS])),
    }
    return Outcome("sync", driver, [_row(name, found) for name, found in runs.items()], check("sync", driver, measured))


def _row(name: str, runs: list[Sync]) -> Row:
    middle = sorted(runs, key=lambda run: run.cpu_s)[len(runs) // 2]
    return {
        "case": name,
        "objects": middle.objects,
        "cpu s": round(middle.cpu_s, 2),
        "s": round(middle.seconds, 2),
        "us/object": round(middle.cpu_s / middle.objects * 1e6, 2),
        "MiB": middle.bytes >> 20,
    }


# -- in processes of their own


def fill(pipe: Connection, path: pathlib.Path, count: int) -> None:
    with NbApi.open(url=f"sqlite://{path}") as nb:
        for first in range(0, count, WRITES):
            nb.db.apply(writes(first, min(WRITES, count - first)))
    pipe.send(None)


def read_plainly(pipe: Connection, path: pathlib.Path, _driver: str) -> None:
    decode = msgspec.msgpack.Decoder().decode
    connection = sqlite3.connect(path)
    before, start = usage_now(), time.monotonic()
    values = {}
    found = connection.execute("SELECT table_name, key, topic, value, version FROM objects WHERE deleted_at IS NULL")
    while rows := found.fetchmany(2000):
        for table, key, _topic, value, _version in rows:
            if table == "port":
                values[key] = decode(value)
    seconds = time.monotonic() - start
    used = usage_now() - before
    pipe.send(Sync(len(values), seconds, used.cpu_s, used.resident_bytes))


def read_into_a_cache(pipe: Connection, path: pathlib.Path, driver: str) -> None:
    with NbApi.open(conf=nb_conf(driver), url=f"sqlite://{path}") as nb:
        before, start = usage_now(), time.monotonic()
        with LocalCache(nb, tables=["port"]) as cache:
            cache.need_snapshot("benchmark", is_awaited=True)  # whether or not a publisher is there to be heard
            while not cache.is_loaded:
                time.sleep(0.001)
            seconds = time.monotonic() - start
            used = usage_now() - before
            pipe.send(Sync(cache.statistics().objects, seconds, used.cpu_s, used.resident_bytes))
