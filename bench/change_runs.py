"""One run of one system: writers and followers in processes of their own, and what they measured in each phase.

The conversation of a phase: the followers begin; the writers are told to go, and say what they have written; the
followers say when their copies had it; only then the writers and the database server are asked for their CPU time, so
that what they did after the last commit is counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from bench.change_ends import (
    BROKER_IS_DATABASE,
    OBJECTS,
    ChangeSystem,
    ChangeWriter,
    CopySink,
    key_of,
    object_write,
)
from bench.database_servers import DatabaseServer
from bench.ours import QUIET_S
from bench.ours_nb import nb_conf, split_bus
from bench.runs import RUN_TIMEOUT_S
from bench.sinks import NS_PER_S
from bench.workers import Usage, Worker, allow_many_files, usage_now
from publisher_service.service import PublisherService

_EARLY_NS = 50_000


@dataclasses.dataclass(frozen=True)
class Phase:
    """What is written, by all writers together."""

    name: str
    seconds: float
    rate: float = 0.0
    """Changes per second; 0 is as fast as it goes."""
    size: int = 1
    """Changes per transaction."""


class Written(NamedTuple):
    changes: int
    begun_ns: int
    ended_ns: int
    """The last commit has returned."""
    newest: dict[str, int]
    """Number of the last write to every object."""


class Followed(NamedTuple):
    latencies_ns: array[int]
    ended_ns: int
    usage: Usage
    missing: int
    """Objects whose last change the copy has not."""


@dataclasses.dataclass(frozen=True)
class ChangeRun:
    """What one phase measured.  CPU is per change, in microseconds: of all writers, of one follower."""

    changes: int
    committing_s: float
    """Until the last commit returned."""
    seconds: float
    """Until the last follower had the last change."""
    latencies_ns: array[int]
    """Of all followers."""
    writer_cpu_us: float
    follower_cpu_us: float
    server_cpu_us: float
    """Of the database server."""
    service_cpu_us: float
    missing: int

    @property
    def committed_per_s(self) -> float:
        return self.changes / self.committing_s

    @property
    def changes_per_s(self) -> float:
        return self.changes / self.seconds


class Staff(NamedTuple):
    """The processes of a run, and the database server, which outlives it."""

    writers: list[Worker]
    followers: list[Worker]
    services: list[Worker]
    server: DatabaseServer


def run(
    system: ChangeSystem, server: DatabaseServer, phases: Sequence[Phase], *, followers: int, writers: int = 1
) -> dict[str, ChangeRun]:
    """Phase -> what it measured.  Raises WorkerFailed."""
    database = server.new_url()
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heliograph-bench-")))
        bus = _bus_url(system, database, directory)
        addresses: list[str] = []
        services = [stack.enter_context(Worker(serve, database, bus))] if system.has_service else []
        for service in services:
            addresses.append(service.hear())
        writing = [stack.enter_context(Worker(write, system, database, bus, n, writers)) for n in range(writers)]
        for writer in writing:
            addresses += writer.hear()
        following = [stack.enter_context(Worker(follow, system, database, bus, addresses)) for _ in range(followers)]
        for follower in following:
            follower.hear()
        staff = Staff(writing, following, services, server)
        measured = {phase.name: _measure(staff, phase) for phase in phases}
        for worker in (*writing, *following, *services):
            worker.tell("stop")
        for worker in (*following, *writing, *services):
            worker.end()
    return measured


def _bus_url(system: ChangeSystem, database: str, directory: pathlib.Path) -> str:
    if not system.bus:
        return ""
    url = database.partition("?")[0] if system.bus == BROKER_IS_DATABASE else system.bus
    return f"{url}#{directory}/workers" if system.has_service else url


def _measure(staff: Staff, phase: Phase) -> ChangeRun:
    for worker in (*staff.followers, *staff.services):
        worker.tell("begin")
    for worker in (*staff.followers, *staff.services):
        worker.hear()
    server_before_s = staff.server.cpu_s()
    for writer in staff.writers:
        writer.tell(dataclasses.replace(phase, rate=phase.rate / len(staff.writers)))
    written: list[Written] = [writer.hear(RUN_TIMEOUT_S) for writer in staff.writers]
    newest = {key: number for one in written for key, number in one.newest.items()}
    for follower in staff.followers:
        follower.tell(newest)
    followed: list[Followed] = [follower.hear(RUN_TIMEOUT_S) for follower in staff.followers]
    for worker in (*staff.writers, *staff.services):
        worker.tell("over")
    spent: list[Usage] = [writer.hear(RUN_TIMEOUT_S) for writer in staff.writers]
    spent_by_service: list[Usage] = [service.hear() for service in staff.services]
    server_s = staff.server.cpu_s() - server_before_s
    changes = sum(one.changes for one in written)
    begun_ns, committed_ns = min(one.begun_ns for one in written), max(one.ended_ns for one in written)
    ended_ns = max([committed_ns, *(one.ended_ns for one in followed)])
    us_per_change = 1e6 / max(changes, 1)
    return ChangeRun(
        changes=changes,
        committing_s=(committed_ns - begun_ns) / NS_PER_S,
        seconds=(ended_ns - begun_ns) / NS_PER_S,
        latencies_ns=sum((one.latencies_ns for one in followed), array("q")),
        writer_cpu_us=sum(usage.cpu_s for usage in spent) * us_per_change,
        follower_cpu_us=sum(one.usage.cpu_s for one in followed) / max(len(followed), 1) * us_per_change,
        server_cpu_us=server_s * us_per_change,
        service_cpu_us=sum(usage.cpu_s for usage in spent_by_service) * us_per_change,
        missing=sum(one.missing for one in followed),
    )


# -- in a writer's process


def write(pipe: Connection, system: ChangeSystem, database: str, bus: str, position: int, writers: int) -> None:
    """Write a share of the objects in turn, over and over."""
    places = range(position * OBJECTS // writers, (position + 1) * OBJECTS // writers)
    writer = system.writer(database, bus)
    try:
        writer.fill([object_write(place, -1) for place in places])
        pipe.send(writer.addresses)
        first = 0
        for phase in phases_of(pipe):
            before = usage_now()
            begun_ns = time.monotonic_ns()
            after = first + write_for(phase, writer_step(writer, places, first, phase.size))
            ended_ns = time.monotonic_ns()
            writer.finish()
            last = range(max(first, after - len(places)), after)
            newest = {key_of(places[number % len(places)]): number for number in last}
            pipe.send(Written(after - first, begun_ns, ended_ns, newest))
            pipe.recv()
            pipe.send(usage_now() - before)
            first = -(-after // len(places)) * len(places)  # transactions begin where tenants begin
    finally:
        writer.close()


def phases_of(pipe: Connection) -> Iterator[Phase]:
    """What the parent asks for, until it says something else."""
    while isinstance(phase := pipe.recv(), Phase):
        yield phase


def writer_step(writer: ChangeWriter, places: range, first: int, size: int) -> Callable[[int], None]:
    """What makes the next transaction, called with the number of changes that were made in this phase."""
    count = len(places)

    def put(done: int) -> None:
        number = first + done
        writer.put(object_write(places[number % count], number))

    def put_together(done: int) -> None:
        start = first + done
        writer.put_together([object_write(places[n % count], n) for n in range(start, start + size)])

    return put if size == 1 else put_together


def write_for(phase: Phase, step: Callable[[int], None]) -> int:
    """Make transactions for the time of a phase, at its rate; after a stall what is due is made at once, so that the
    rate holds on average.  Returns the number of changes."""
    clock = time.monotonic_ns
    begun_ns = now_ns = clock()
    over_ns = begun_ns + int(phase.seconds * NS_PER_S)
    done = 0
    while now_ns < over_ns:
        if phase.rate:
            early_ns = begun_ns + done * NS_PER_S / phase.rate - now_ns
            if early_ns > _EARLY_NS:
                time.sleep(early_ns / NS_PER_S)
        step(done)
        done += phase.size
        now_ns = clock()
    return done


# -- in a follower's process


def follow(pipe: Connection, system: ChangeSystem, database: str, bus: str, addresses: Sequence[str]) -> None:
    assert system.follower is not None
    sink = CopySink()
    follower = system.follower(database, bus, addresses, sink)
    try:
        pipe.send("ready")
        while pipe.recv() != "stop":
            sink.begin()
            before = usage_now()
            pipe.send("ready")
            wanted = pipe.recv()
            sink.wait(wanted, QUIET_S)
            usage = usage_now() - before
            copy = follower.numbers()
            missing = sum(copy.get(key) != number for key, number in wanted.items())
            pipe.send(Followed(sink.latencies_ns, sink.ended_ns, usage, missing))
    finally:
        follower.close()


# -- in the publisher service's process


def serve(pipe: Connection, database: str, bus: str) -> None:
    allow_many_files()
    url, workers = split_bus(bus)
    with PublisherService(nb_conf(url, workers=workers, database=database)) as service:
        pipe.send(service.publisher.address)
        while pipe.recv() != "stop":
            before = usage_now()
            pipe.send("ready")
            pipe.recv()
            pipe.send(usage_now() - before)
