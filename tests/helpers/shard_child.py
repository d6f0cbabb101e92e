"""A controller with key shards in a process of its own, which notes in a file what it does.

``python -m tests.helpers.shard_child worker URL DIRECTORY LEASE_S`` works on the table ``port``.  Each run appends two
notes to ``DIRECTORY/runs``, at its begin and at its end.  While there is ``DIRECTORY/gate-PID``, a run makes
``DIRECTORY/blocked-PID`` and waits.  It answers ``{"ask": "statistics"}``.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import NamedTuple

from nb_api import Controller, LocalCache, Request
from nb_api.coordination.key_shards import KeyShards
from pubsub_api.testing.child import ChildProcess
from tests.helpers.nb_tools import open_nb
from tests.helpers.waiting import wait_until

SHARDS = 8


class RunNote(NamedTuple):
    what: str
    pid: int
    shard: int
    token: int
    key: str
    value: int | None
    is_held: bool


def worker_process(url: str, directory: pathlib.Path, lease_s: float) -> ChildProcess:
    return ChildProcess("worker", url, str(directory), str(lease_s), module=__name__)


def run_notes(directory: pathlib.Path) -> list[RunNote]:
    path = directory / "runs"
    return [RunNote(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def be_worker(url: str, directory: pathlib.Path, lease_s: float) -> None:
    pid = os.getpid()
    gate, blocked = directory / f"gate-{pid}", directory / f"blocked-{pid}"
    notes = os.open(directory / "runs", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(what: str, request: Request) -> None:
        value = None if request.object is None else request.object.value
        assert request.token is not None
        one = RunNote(
            what, pid, shards.shard_of(request.table, request.key), request.token, request.key, value, request.is_held
        )
        os.write(notes, json.dumps(one).encode() + b"\n")

    def reconcile(request: Request) -> None:
        note("begin", request)
        if gate.exists():
            blocked.touch()
            wait_until(lambda: not gate.exists(), what="the gate to be opened")
        note("end", request)

    with (
        open_nb(url) as nb,
        LocalCache(nb, tables=["port"]) as cache,
        KeyShards(nb.db, "ports", count=SHARDS, holder=str(pid), lease_s=lease_s) as shards,
        Controller(cache, reconcile, workers=2, shards=shards) as controller,
    ):
        for _ in sys.stdin:
            told, counted = shards.statistics(), controller.statistics()
            answer = {"pid": pid, "held": told.held, "lapses": told.lapses, "unheld": counted.unheld_runs}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _, _, _url, _directory, _lease_s = sys.argv
    be_worker(_url, pathlib.Path(_directory), float(_lease_s))
