"""Many controllers: local caches by the hundred in a few processes, one publisher service, one database, one writer.

A cache follows one tenant of fifty, as the controller of a host follows what its host has.  All are begun at once from
nothing; then changes come at a rate, and again while the publisher service is killed and started again.  Each process
notes when the database had a snapshot open for one of its caches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from bench import events
from bench.change_ends import OBJECTS, TABLE, CopySink, key_of, object_write
from bench.change_runs import Phase, Written, phases_of, serve, write_for
from bench.database_servers import DatabaseServer
from bench.ours import QUIET_S
from bench.ours_nb import PutWriter, nb_conf, split_bus, tell_changes
from bench.runs import RUN_TIMEOUT_S
from bench.workers import Usage, Worker, allow_many_files, usage_now
from nb_api import LocalCache, NbApi
from nb_api.core.own_tables import is_own
from nb_api.db_api import DbApi, DbObject, Snapshot
from pubsub_api.errors import WaitTimeout
from pubsub_api.testing.ports import free_port

TENANTS = 50
TENANT_SIZE = OBJECTS // TENANTS
CACHES_PER_PROCESS = 250
SYNC_TIMEOUT_S = 240.0
"""Caches that are not complete after that are counted, and measuring goes on."""
_LOOK_INTERVAL_S = 0.05
_KILL_AFTER = 0.3
"""The service is killed when this part of the phase is over."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """What the caches of a process have taken, each."""

    threads: float
    files: float
    kib: float
    idle_cpu: float
    """Of a core, while nothing happens."""


class Syncs(NamedTuple):
    """What caches have read from the database so far."""

    snapshots: int
    deltas: int
    failures: int
    without_slot: int

    def __add__(self, other: Syncs) -> Syncs:  # type: ignore[override]
        return Syncs(*(mine + its for mine, its in zip(self, other, strict=True)))

    def __sub__(self, before: Syncs) -> Syncs:
        return Syncs(*(now - then for now, then in zip(self, before, strict=True)))


class Synced(NamedTuple):
    ended_ns: int
    open_ns: list[tuple[int, int]]
    """When the database had a snapshot open for a cache: from, until."""
    slot_reads: int
    """How often a cache looked for a slot."""
    usage: Usage
    syncs: Syncs
    unsynced: int
    """Caches that were not complete in time."""


class Told(NamedTuple):
    latencies_ns: array[int]
    missing: int
    """Last changes that a cache did not get."""
    usage: Usage
    syncs: Syncs


@dataclasses.dataclass(frozen=True)
class PhaseFindings:
    latencies_ns: array[int]
    rate: float
    missing: int
    caches_cpu_us: float
    """Per change that a cache got."""
    server_cpu: float
    """Of a core."""
    syncs: Syncs


@dataclasses.dataclass(frozen=True)
class ControllerRun:
    caches: int
    sync_s: float
    """From nothing until the last cache was complete."""
    unsynced: int
    """Caches that were not complete in time."""
    snapshots_at_once: int
    slot_reads: int
    server_sync_cpu_s: float
    cache_sync_cpu_ms: float
    """Of each cache."""
    syncs: Syncs
    resources: Resources
    calm: PhaseFindings
    restart: PhaseFindings


def most_at_once(spans: Iterable[tuple[int, int]]) -> int:
    """How many of these spans of time had a moment in common, at most."""
    steps = sorted(step for begun, ended in spans for step in ((begun, 1), (ended, -1)))
    now = most = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


class ServiceProcess:
    """The publisher service, to be killed and started again at its address, with its journal."""

    def __init__(self, stack: contextlib.ExitStack, database: str, bus: str) -> None:
        self._stack, self._arguments = stack, (database, bus)
        self.address = ""
        self.start()

    def start(self) -> None:
        self._worker = self._stack.enter_context(Worker(serve, *self._arguments))
        self.address = self._worker.hear()

    def kill(self) -> None:
        os.kill(self._worker.pid, signal.SIGKILL)
        self._worker.end()


def run(
    server: DatabaseServer,
    directory: pathlib.Path,
    *,
    caches: int,
    seconds: float,
    rate: float,
    say: Callable[[str], None],
) -> ControllerRun:
    """Raises WorkerFailed.  ``directory`` is for the service's files, and empty.  ``say`` is told what comes next."""
    database = server.new_url()
    bus = f"zmq://127.0.0.1:{free_port()}#{directory}/workers"
    with contextlib.ExitStack() as stack:
        service = ServiceProcess(stack, database, bus)
        writer = stack.enter_context(Worker(write, database, bus))
        writer.hear()
        firsts = range(0, caches, CACHES_PER_PROCESS)
        sizes = [min(CACHES_PER_PROCESS, caches - first) for first in firsts]
        controllers = [
            stack.enter_context(Worker(control, database, bus, service.address, first, size))
            for first, size in zip(firsts, sizes, strict=True)
        ]
        for controller in controllers:
            controller.hear()
        say(f"{caches:,} caches: from cold")
        before_s, begun_ns = server.cpu_s(), time.monotonic_ns()
        synced: list[Synced] = _ask_all(controllers, "go", SYNC_TIMEOUT_S + RUN_TIMEOUT_S)
        sync_cpu_s = server.cpu_s() - before_s
        say(f"{caches:,} caches: idle")
        resources: list[Resources] = _ask_all(controllers, seconds / 2, RUN_TIMEOUT_S)
        say(f"{caches:,} caches: {rate:g} changes/s")
        calm = _phase(server, writer, controllers, Phase("calm", seconds, rate))
        say(f"{caches:,} caches: {rate:g} changes/s, and the service is killed")
        restart = _phase(server, writer, controllers, Phase("restart", seconds, rate), service)
        for worker in (writer, *controllers):
            worker.tell("stop")
        for worker in (*controllers, writer):
            worker.end()
    return ControllerRun(
        caches=caches,
        sync_s=(max(one.ended_ns for one in synced) - begun_ns) / 1e9,
        unsynced=sum(one.unsynced for one in synced),
        snapshots_at_once=most_at_once(span for one in synced for span in one.open_ns),
        slot_reads=sum(one.slot_reads for one in synced),
        server_sync_cpu_s=sync_cpu_s,
        cache_sync_cpu_ms=sum(one.usage.cpu_s for one in synced) / caches * 1e3,
        syncs=sum((one.syncs for one in synced), Syncs(0, 0, 0, 0)),
        resources=_mean(resources, sizes),
        calm=calm,
        restart=restart,
    )


def _ask_all(workers: Sequence[Worker], question: object, timeout_s: float) -> list[Any]:
    for worker in workers:
        worker.tell(question)
    return [worker.hear(timeout_s) for worker in workers]


def _mean(found: Sequence[Resources], weights: Sequence[int]) -> Resources:
    def mean(value: Callable[[Resources], float]) -> float:
        return sum(value(one) * weight for one, weight in zip(found, weights, strict=True)) / sum(weights)

    return Resources(
        mean(lambda one: one.threads), mean(lambda one: one.files), mean(lambda one: one.kib),
        mean(lambda one: one.idle_cpu),
    )  # fmt: skip


def _phase(
    server: DatabaseServer,
    writer: Worker,
    controllers: Sequence[Worker],
    phase: Phase,
    killed: ServiceProcess | None = None,
) -> PhaseFindings:
    """``killed``: the service, which is killed meanwhile and started again at once."""
    _ask_all(controllers, "begin", RUN_TIMEOUT_S)
    before_s = server.cpu_s()
    writer.tell(phase)
    if killed is not None:
        time.sleep(_KILL_AFTER * phase.seconds)
        killed.kill()
        killed.start()
    written: Written = writer.hear(RUN_TIMEOUT_S)
    told: list[Told] = _ask_all(controllers, written.newest, RUN_TIMEOUT_S)
    writer.tell("over")
    writer.hear(RUN_TIMEOUT_S)
    committing_s = (written.ended_ns - written.begun_ns) / 1e9
    latencies_ns = sum((one.latencies_ns for one in told), array("q"))
    return PhaseFindings(
        latencies_ns=latencies_ns,
        rate=written.changes / committing_s,
        missing=sum(one.missing for one in told),
        caches_cpu_us=sum(one.usage.cpu_s for one in told) / max(len(latencies_ns), 1) * 1e6,
        server_cpu=(server.cpu_s() - before_s) / committing_s,
        syncs=sum((one.syncs for one in told), Syncs(0, 0, 0, 0)),
    )


# -- in the writer's process


def write(pipe: Connection, database: str, bus: str) -> None:
    writer = PutWriter(database, bus)
    try:
        writer.fill([_object(place, -1) for place in range(OBJECTS)])
        pipe.send("ready")
        number = 0
        for phase in phases_of(pipe):
            first, before, begun_ns = number, usage_now(), time.monotonic_ns()

            def step(done: int, first: int = first) -> None:
                writer.put(_object((first + done) * TENANT_SIZE % (OBJECTS - 1), first + done))

            number += write_for(phase, step)
            ended_ns = time.monotonic_ns()
            writer.finish()
            newest = {key_of(n * TENANT_SIZE % (OBJECTS - 1)): n for n in range(first, number)}
            pipe.send(Written(number - first, begun_ns, ended_ns, newest))
            pipe.recv()
            pipe.send(usage_now() - before)
    finally:
        writer.close()


def _object(place: int, number: int) -> Any:
    return object_write(place, number, tenant_size=TENANT_SIZE)


# -- in a process of caches


class _NotedSnapshot(Snapshot):
    """Says when it is closed."""

    def __init__(self, inner: Snapshot, on_close: Callable[[], None]) -> None:
        self._inner, self._on_close = inner, on_close

    @property
    def revision(self) -> int:
        return self._inner.revision

    def __iter__(self) -> Iterator[DbObject]:
        return iter(self._inner)

    def close(self) -> None:
        self._inner.close()
        self._on_close()


class SnapshotNotes:
    """When a database object had snapshots open for caches, and how often one of Heliograph's own tables was read."""

    def __init__(self, db: DbApi) -> None:
        self.open_ns: list[tuple[int, int]] = []
        self.own_reads = 0
        self._snapshot = db.snapshot
        setattr(db, "snapshot", self._noted)  # noqa: B010  of this one object, whose class is the driver's

    def _noted(self, tables: Sequence[str] | None = None, topics: Sequence[str] | None = None) -> Snapshot:
        if tables is not None and all(map(is_own, tables)):
            self.own_reads += 1
            return self._snapshot(tables, topics)
        begun_ns = time.monotonic_ns()
        inner = self._snapshot(tables, topics)
        return _NotedSnapshot(inner, lambda: self.open_ns.append((begun_ns, time.monotonic_ns())))


class _Caches:
    """The caches of one process, each with a sink of its own."""

    def __init__(self, nb: NbApi, address: str, first: int, count: int) -> None:
        self.sinks = [CopySink() for _ in range(count)]
        self._tenants = [number % TENANTS for number in range(first, first + count)]
        self.caches = [
            LocalCache(
                nb, tables=[TABLE], topics=[events.topic(tenant)], on_changes=tell_changes(sink.on_change),
                addresses=[address],
            )
            for tenant, sink in zip(self._tenants, self.sinks, strict=True)
        ]  # fmt: skip

    def syncs(self) -> Syncs:
        counters = [cache.statistics().syncs for cache in self.caches]
        return Syncs(
            sum(one.snapshots for one in counters),
            sum(one.deltas for one in counters),
            sum(one.failures for one in counters),
            sum(one.slots.without for one in counters),
        )

    def await_synced(self) -> int:
        """Returns how many are not complete in time."""
        deadline, unsynced = time.monotonic() + SYNC_TIMEOUT_S, 0
        for cache in self.caches:
            try:
                cache.wait_synced(timeout_s=max(0.0, deadline - time.monotonic()))
            except WaitTimeout:
                unsynced += 1
        return unsynced

    def await_changes(self, newest: dict[str, int]) -> int:
        """Returns how many last changes did not come.  Gives up when no cache has got anything for long: were each
        waited for by itself, those that lack something would take an hour."""
        lacking = []
        for tenant, sink in zip(self._tenants, self.sinks, strict=True):
            keys = map(key_of, range(tenant * TENANT_SIZE, (tenant + 1) * TENANT_SIZE))
            lacking.append((sink, {key: newest[key] for key in keys if key in newest}))
        begun_ns = time.monotonic_ns()
        while lacking := [(sink, wanted) for sink, wanted in lacking if sink.lacks(wanted)]:
            heard_ns = max(begun_ns, *(sink.ended_ns for sink in self.sinks))
            if time.monotonic_ns() - heard_ns > QUIET_S * 1e9:
                break
            time.sleep(_LOOK_INTERVAL_S)
        return sum(sink.lacks(wanted) for sink, wanted in lacking)

    def close(self) -> None:
        for cache in self.caches:
            cache.close()


def control(pipe: Connection, database: str, bus: str, address: str, first: int, count: int) -> None:
    allow_many_files()
    with NbApi.open(conf=nb_conf(split_bus(bus)[0]), url=database) as nb:
        notes = SnapshotNotes(nb.db)
        pipe.send("ready")
        pipe.recv()
        before, counts_before = usage_now(), _counts()
        made = _Caches(nb, address, first, count)
        unsynced = made.await_synced()
        ended_ns = time.monotonic_ns()
        used = usage_now() - before
        pipe.send(Synced(ended_ns, notes.open_ns, notes.own_reads, used, made.syncs(), unsynced))
        pipe.send(_resources(pipe.recv(), count, used, counts_before))
        while pipe.recv() != "stop":
            for sink in made.sinks:
                sink.begin()
            before, syncs_before = usage_now(), made.syncs()
            pipe.send("ready")
            missing = made.await_changes(pipe.recv())
            latencies_ns = sum((sink.latencies_ns for sink in made.sinks), array("q"))
            pipe.send(Told(latencies_ns, missing, usage_now() - before, made.syncs() - syncs_before))
        made.close()


def _resources(idle_s: float, count: int, used: Usage, before: tuple[int, int]) -> Resources:
    threads, files = (now - then for now, then in zip(_counts(), before, strict=True))
    idle = usage_now()
    time.sleep(idle_s)
    return Resources(
        threads / count, files / count, used.resident_bytes / 1024 / count, (usage_now() - idle).cpu_s / idle_s / count
    )


def _counts() -> tuple[int, int]:
    """Threads of this process, those of libraries included, and its open files."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
