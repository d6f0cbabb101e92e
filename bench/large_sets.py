"""Sets of the durability service that are larger than memory: what a service takes that has one on disk.

    python -m bench.large_sets make DIRECTORY --objects 10000000
    python -m bench.large_sets measure DIRECTORY

``make`` writes two stores: one with that many objects, and one in which 0.1% of them are older.  ``measure`` starts a
service with the first, reads pages of history as a late joiner does, changes objects at random, and has a second
service start with the other store and get what it lacks.  Services are processes of their own, over ZeroMQ; the memory
is the most that was ever resident, as the kernel counts it.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import json
import pathlib
import random
import shutil
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import pubsub_api
from durability_service import config
from durability_service.client import DurabilityClient
from durability_service.core.effects import Apply, BeginFill, CompleteFill, Fill, StoreMarks
from durability_service.core.messages import Epoch
from durability_service.core.sets.batches import pack
from durability_service.core.sets.samples import Sample, bucket_of, make_sample
from durability_service.protocol import HISTORY, Ask, ServiceStatus
from durability_service.service import DurabilityService
from durability_service.storage.store import SampleStore
from pubsub_api import Event, Session, loading
from pubsub_api.core.events import encode_event
from pubsub_api.testing.child import ChildProcess

BUCKETS = config.BUCKETS_MAX
DIFFERENT = 1000
"""One of so many objects is older in the second store."""
TOPICS = 1000
PAGES = 300
LIVE = 3000
TIMEOUT_S = 280.0
_FILL_BUCKETS = 64
_WRITER = bytes(16)


def _instance(number: int) -> tuple[str, str, str]:
    return f"tenant-{number % TOPICS}/port", "port", f"port-{number:012}"


def _sample(number: int, stamp: int, value: str) -> Sample:
    topic, table, key = _instance(number)
    event = Event(topic=topic, table=table, key=key, action="set", value=value, version=1)
    return make_sample(
        topic, table, key, timestamp=stamp, writer=_WRITER, number=number + 1, is_delete=False,
        event=encode_event(event, stamp),
    )  # fmt: skip


def make(directory: pathlib.Path, objects: int) -> None:
    numbers = [array.array("I") for _ in range(BUCKETS)]
    for number in range(objects):
        numbers[bucket_of(_instance(number), BUCKETS)].append(number)
    stamp = time.time_ns() - 10**9
    marks = StoreMarks(Epoch(1, "a"), alive=time.time_ns())
    with SampleStore(directory / "a.db") as store:
        store.do([BeginFill("all", ("#",), BUCKETS)])
        for start in range(0, BUCKETS, _FILL_BUCKETS):
            buckets = range(start, min(start + _FILL_BUCKETS, BUCKETS))
            made = {one: pack([_sample(number, stamp, "v" * 100) for number in numbers[one]]) for one in buckets}
            store.do([Fill("all", {one: batch for one, batch in made.items() if batch.count})])
        store.do([CompleteFill("all", marks)])
        _say(f"written: {(directory / 'a.db').stat().st_size / objects:.0f} bytes on disk per object")
    shutil.copy(directory / "a.db", directory / "b.db")
    with contextlib.closing(sqlite3.connect(directory / "b.db")) as other, other:
        other.execute("DELETE FROM meta")
    other.close()
    chosen = random.Random(1).sample(range(objects), objects // DIFFERENT)
    with SampleStore(directory / "a.db") as store:
        old = [_sample(number, stamp, "v" * 100) for number in chosen]
        new = [_sample(number, stamp + 1, "w" * 100) for number in chosen]
        store.do([Apply("all", new, old)])


def _resident_mib() -> float:
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def _conf(**options: object) -> object:
    conf = loading.conf_from_url("zmq://127.0.0.1:0")
    config.register(conf)
    for name, value in {"initial_discovery_period": 1.0, "buckets": BUCKETS, **options}.items():
        conf.set_override(name, value, group=config.GROUP)
    return conf


def serve(path: str, settings: dict[str, list[str]]) -> None:
    """A service, told what to do on standard input."""
    began = time.monotonic()
    conf = _conf(store=path, node=pathlib.Path(path).stem)
    with DurabilityService(conf, publishers=settings["publishers"], peers=settings["peers"]) as service:  # type: ignore[arg-type]
        _answer(address=service.address, seconds=time.monotonic() - began, resident=_resident_mib())
        for line in sys.stdin:
            if json.loads(line)["do"] == "listen":
                service.listen_to(peer=json.loads(line)["peer"])
            (space,) = service.status().name_spaces
            _answer(
                digest=space.digest, samples=space.samples, complete=space.is_complete, resident=_resident_mib(),
                counters=service.status().counters, aligned=space.counters["aligned"],
            )  # fmt: skip


def _answer(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class _Service(ChildProcess):
    def __init__(self, path: pathlib.Path, publishers: list[str], peers: list[str]) -> None:
        settings = json.dumps({"publishers": publishers, "peers": peers})
        super().__init__("serve", str(path), settings, module="bench.large_sets")
        self.started = self.receive(TIMEOUT_S)

    def wait(self, condition: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition(found := self.ask(do="status")):
            assert time.monotonic() < deadline, f"it does not come to an end: {found}"
            time.sleep(0.1)
        return found


def measure(directory: pathlib.Path) -> None:
    session = pubsub_api.open(conf=_conf())  # type: ignore[arg-type]
    publisher = session.publisher()
    began = time.monotonic()
    first = _Service(directory / "a.db", [publisher.address], [])
    with first:
        _say(f"start: {first.started['seconds']:.1f} s, {first.started['resident']:.0f} MiB")
        found = first.wait(lambda status: bool(status["complete"]))
        _say(f"complete after {time.monotonic() - began:.1f} s (discovery is 1 s): {found['samples']} objects")
        times = sorted(_pages(session, str(first.started["address"])))
        _say(f"a page of history: median {statistics.median(times):.1f} ms, 99% {times[-len(times) // 100]:.1f} ms")
        objects = int(str(found["samples"]))
        began = time.monotonic()
        for _ in range(LIVE):
            topic, table, key = _instance(random.randrange(objects))
            publisher.send_event(Event(topic=topic, table=table, key=key, action="set", value="x" * 100))
        publisher.confirm(services=1, timeout_s=TIMEOUT_S, addresses=[str(first.started["address"])])
        _say(f"objects changed at random, until durable: {LIVE / (time.monotonic() - began):.0f} per second")
        _say(f"memory: {first.ask(do='status')['resident']:.0f} MiB")
        began = time.monotonic()
        second = _Service(directory / "b.db", [], [str(first.started["address"])])
        with second:
            first.ask(do="listen", peer=second.started["address"])
            _say(f"start of the other: {second.started['seconds']:.1f} s")
            digest = first.ask(do="status")["digest"]
            found = second.wait(lambda status: bool(status["complete"]) and status["digest"] == digest)
            _say(f"aligned {time.monotonic() - began:.1f} s after it was begun: {found['aligned']} objects were new")
            _say(f"memory: source {first.ask(do='status')['resident']:.0f} MiB, aligned {found['resident']:.0f} MiB")
            _say(f"counters of the aligned: {found['counters']}")
    session.close()


def _pages(session: Session, address: str) -> Iterator[float]:
    """How long each of the first pages takes, in milliseconds."""
    with DurabilityClient(session, addresses=[address]) as client:
        statuses: list[ServiceStatus] = client.status()
        ask = Ask(id=0, durability=HISTORY, topics=["#"], name_space="all", to=statuses[0].node)
        for _ in range(PAGES):
            began = time.perf_counter()
            page = client._ask_one(ask, time.monotonic() + TIMEOUT_S)
            yield 1000 * (time.perf_counter() - began)
            assert page is not None
            if page.bucket < 0:
                return
            ask.bucket, ask.after = page.bucket, page.after


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    if len(sys.argv) > 3 and sys.argv[1] == "serve":
        serve(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.large_sets", description=__doc__)
    parser.add_argument("what", choices=["make", "measure"])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--objects", type=int, default=10_000_000)
    options = parser.parse_args()
    if options.what == "make":
        make(options.directory, options.objects)
    else:
        measure(options.directory)


if __name__ == "__main__":
    main()
