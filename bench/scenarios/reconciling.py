"""What a `Controller` adds to each run of its function, and how many runs a burst of changes causes.

The function does nothing, so what is measured is queue, locks and requests: one worker makes a run for every object of
a complete copy.  Several workers wake each other for the next key, which is measured as well.  Then a hundred keys
change a thousand times each, as fast as the database commits it.
"""

from __future__ import annotations

import collections
import pathlib
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec

from bench.plan import Row, median
from bench.scenarios.commit import WRITES, writes
from nb_api import Controller, LocalCache, NbApi, Request

OURS = "heliograph Controller"
TABLE = "port"
WORKERS = 4
BURST_KEYS = 100
BURST_TIMES = 1000
"""How often each of them changes; less often in a small run."""
TIMEOUT_S = 300.0


class Reconciled(NamedTuple):
    objects: int
    us: float
    """CPU of one run that does nothing."""
    us_by_several: float
    """The same with several workers."""
    changes: int
    """Of the burst."""
    runs_per_key: int
    """The most that the burst caused for any key."""


def reconcile(pipe: Connection, path: pathlib.Path, objects: int) -> None:
    """A role: fills a database of its own at ``path``, and works on its objects."""
    runs: collections.Counter[str] = collections.Counter()

    def count(request: Request) -> None:
        runs[request.key] += 1

    with NbApi.open(f"sqlite://{path}") as nb:
        for first in range(0, objects, WRITES):
            nb.db.apply(writes(first, min(WRITES, objects - first), tenant=1))
        with LocalCache(nb, tables=[TABLE]) as cache:
            cache.wait_synced(timeout_s=TIMEOUT_S)
            us = _us_of_a_run(cache, count, objects, workers=1)
            us_by_several = _us_of_a_run(cache, count, objects, workers=WORKERS)
            with Controller(cache, count) as controller:
                controller.wait_idle(timeout_s=TIMEOUT_S)
                runs.clear()
                burst = writes(0, min(BURST_KEYS, objects), tenant=1)
                times = min(BURST_TIMES, objects)
                for number in range(times):
                    nb.db.apply([msgspec.structs.replace(one, action="put", value={"n": number}) for one in burst])
                cache.wait_revision(nb.db.revision(), timeout_s=TIMEOUT_S)
                controller.wait_idle(timeout_s=TIMEOUT_S)
    pipe.send(Reconciled(objects, us, us_by_several, times * len(burst), max(runs.values())))


def _us_of_a_run(cache: LocalCache, function: Callable[[Request], None], objects: int, *, workers: int) -> float:
    start = time.process_time()
    with Controller(cache, function, workers=workers) as controller:
        controller.wait_idle(timeout_s=TIMEOUT_S)
        return (time.process_time() - start) / objects * 1e6


def row(runs: Sequence[Reconciled]) -> Row:
    return {
        "case": OURS,
        "objects": runs[0].objects,
        "us/run": round(median(runs, lambda run: run.us), 1),
        "by 4": round(median(runs, lambda run: run.us_by_several), 1),
        "burst": runs[0].changes,
        "runs/key": max(run.runs_per_key for run in runs),
    }
