"""Committing objects and telling the bus of them, against committing alone.

"sqlite alone" is the same driver with the same transactions, without an outbox and without a bus.  "sqlite3 by hand" is
less than that: a program that puts the same two rows per object into tables like the driver's, an object with its
version and a change for pollers, and that checks nothing, expects no second writer and has no driver around it.
Ours commits, has an outbox, publishes everything and notes what is published; the clock stops when the last change is
confirmed.  The objects of a transaction belong to one tenant, that is, to one topic.
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec
from oslo_config import cfg

from bench import ours_nb
from bench.plan import Outcome, Plan, Row, median, ratio
from bench.targets import check
from bench.workers import ask_once
from nb_api import NbApi
from nb_api.db_api import Write
from nb_api.loading import open_db

WRITES = 500
"""Of a transaction that fills a database."""
SIZES = {1: 100, 10: 10, 100: 3}
"""Writes per transaction -> which part of the events of a run is committed, so that all take about as long."""
TIMEOUT_S = 600.0
BY_HAND, ALONE, OURS = "sqlite3 by hand", "sqlite alone", "heliograph, published"
_TABLES = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE objects (
        table_name TEXT NOT NULL, key TEXT NOT NULL, topic TEXT NOT NULL, version INTEGER NOT NULL, value BLOB,
        UNIQUE (table_name, key));
    CREATE INDEX objects_by_topic ON objects (topic);
    CREATE TABLE changes (
        revision INTEGER PRIMARY KEY, action TEXT NOT NULL, table_name TEXT NOT NULL, key TEXT NOT NULL,
        topic TEXT NOT NULL, value BLOB);
"""
_URLS = {"zmq": "zmq://127.0.0.1:0", "zenoh": "zenoh://127.0.0.1:0"}


class Commits(NamedTuple):
    changes: int
    seconds: float


def _per_s(run: Commits) -> float:
    return run.changes / run.seconds


def nb_conf(driver: str, url: str = "") -> cfg.ConfigOpts:
    """A bus that this process publishes on itself."""
    return ours_nb.nb_conf(url or _URLS.get(driver, "redis://127.0.0.1:6379/0"))


def writes(first: int, count: int, *, tenant: int | None = None) -> list[Write]:
    """Objects as a network controller has them, of one tenant or of a thousand."""
    return [
        Write(
            "create",
            "port",
            f"port-{number:09}",
            {
                "id": number,
                "up": True,
                "mac": f"fa:16:3e:00:{number % 256:02x}",
                "tags": ["a", "b"],
                "net": number % 1000,
            },
            f"tenant-{number % 1000 if tenant is None else tenant}",
        )
        for number in range(first, first + count)
    ]


def measure(plan: Plan, driver: str) -> Outcome:
    rows: list[Row] = []
    measured: dict[str, float] = {}
    with _server(driver) as url:
        for size, share in SIZES.items():
            transactions = max(1, plan.events // (size * share))
            roles = {BY_HAND: commit_by_hand, ALONE: commit_alone, OURS: commit_and_publish}
            runs: dict[str, list[Commits]] = {name: [] for name in roles}
            for number in range(1, plan.rounds + 1):
                for name, role in roles.items():
                    plan.say(f"round {number} of {plan.rounds}: {name}, {size} per transaction")
                    runs[name].append(_run(role, driver, url, transactions, size))
            measured[f"by {size}"] = ratio(runs[OURS], runs[ALONE], _per_s)
            rows += [_row(name, size, runs) for name in runs]
    return Outcome("commit", driver, rows, check("commit", driver, measured))


@contextlib.contextmanager
def _server(driver: str) -> Iterator[str]:
    if driver != "redis":
        yield ""
        return
    from bench import redis_server

    with redis_server.running() as url:
        yield url


def _run(role: Callable[..., None], driver: str, url: str, transactions: int, size: int) -> Commits:
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        path = pathlib.Path(directory) / "objects.db"
        found: Commits = ask_once(role, path, driver, url, transactions, size, timeout_s=TIMEOUT_S)
        return found


def _row(name: str, size: int, runs: dict[str, list[Commits]]) -> Row:
    return {
        "case": f"{name}, {size} per transaction",
        "changes/s": round(median(runs[name], _per_s)),
        "of by hand": round(ratio(runs[name], runs[BY_HAND], _per_s), 2),
    }


# -- in processes of their own


def commit_by_hand(pipe: Connection, path: pathlib.Path, _driver: str, _url: str, transactions: int, size: int) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(_TABLES)
        start = time.monotonic()
        for number in range(transactions):
            connection.execute("BEGIN IMMEDIATE")
            (newest,) = connection.execute("SELECT coalesce(max(revision), 0) FROM changes").fetchone()
            rows = [
                (revision, write.action, write.table, write.key, write.topic, msgspec.msgpack.encode(write.value))
                for revision, write in enumerate(writes(number * size, size, tenant=number % 1000), newest + 1)
            ]
            connection.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", rows)
            objects = [(table, key, topic, revision, value) for revision, _, table, key, topic, value in rows]
            connection.executemany("INSERT INTO objects VALUES (?, ?, ?, ?, ?)", objects)
            connection.execute("COMMIT")
        pipe.send(Commits(transactions * size, time.monotonic() - start))


def commit_alone(pipe: Connection, path: pathlib.Path, _driver: str, _url: str, transactions: int, size: int) -> None:
    with contextlib.closing(open_db(f"sqlite://{path}", with_outbox=False)) as db:
        start = time.monotonic()
        for number in range(transactions):
            db.apply(writes(number * size, size, tenant=number % 1000))
        pipe.send(Commits(transactions * size, time.monotonic() - start))


def commit_and_publish(
    pipe: Connection, path: pathlib.Path, driver: str, url: str, transactions: int, size: int
) -> None:
    with NbApi.open(conf=nb_conf(driver, url), url=f"sqlite://{path}") as nb:
        nb.create("warm", "up", None, topic="t")
        nb.flush(timeout_s=TIMEOUT_S)
        start = time.monotonic()
        for number in range(transactions):
            with nb.transaction() as txn:
                for write in writes(number * size, size, tenant=number % 1000):
                    txn.create(write.table, write.key, write.value, topic=write.topic or "")
        nb.flush(timeout_s=TIMEOUT_S)
        pipe.send(Commits(transactions * size, time.monotonic() - start))
        assert nb.statistics().handover.left == 0
