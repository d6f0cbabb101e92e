"""Processes that consume together: members of a group, and consumers of a Redis stream as most people write them.

Each says that it is ready, then answers every question with how many events it has acknowledged, and when the last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from bench.sinks import NS_PER_S
from bench.workers import Worker, WorkerFailed

GROUP = "bench"
STREAM = "bench-stream"
RUN_TIMEOUT_S = 300.0
_POLL_S = 0.05


@dataclasses.dataclass
class Tally:
    """What one consumer has done."""

    count: int = 0
    ended_ns: int = 0

    def add(self, count: int) -> None:
        self.count += count
        self.ended_ns = time.monotonic_ns()


def events_per_s(workers: Sequence[Worker], total: int, begun_ns: int) -> float:
    """Wait until the workers have acknowledged everything that they were told to begin with.  Raises WorkerFailed."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while time.monotonic() < deadline:
        tallies: list[Tally] = [worker.ask("how many?") for worker in workers]
        if sum(tally.count for tally in tallies) >= total:
            return total / (max(tally.ended_ns for tally in tallies) - begun_ns) * NS_PER_S
        time.sleep(_POLL_S)
    raise WorkerFailed(f"only {sum(tally.count for tally in tallies)} of {total} events came in {RUN_TIMEOUT_S} s")


@contextlib.contextmanager
def _subscribed(url: str, filters: Sequence[str], **callbacks: Any) -> Iterator[None]:
    """A subscriber of these groups that is ready.  Imports here: the consumers of a stream need nothing of it."""
    import durable_log
    from pubsub_api.config import new_conf
    from shared_subscriptions import GroupSubscriber, config

    conf = config.register(new_conf())
    with GroupSubscriber(durable_log.open(url, conf=conf), conf, filters, **callbacks) as subscriber:
        subscriber.wait_ready(timeout_s=RUN_TIMEOUT_S)
        yield


def member(pipe: Connection, url: str) -> None:
    """A member of the group, which calls back with batches and acknowledges when the callback returns."""
    tally = Tally()
    with _subscribed(url, [f"$shared/{GROUP}/#"], on_events=lambda events: tally.add(len(events))):
        pipe.send("ready")
        _answer(pipe, tally)


def worker(pipe: Connection, url: str, job_s: float) -> None:
    """A member of a queue whose jobs take so long each."""
    tally = Tally()

    def on_event(_event: Any) -> None:
        time.sleep(job_s)
        tally.add(1)

    with _subscribed(url, [f"$queue/{GROUP}/#"], on_event=on_event):
        pipe.send("ready")
        _answer(pipe, tally)


def idle(pipe: Connection, url: str, count: int, watch_s: float) -> None:
    """A member of so many groups, to which nothing happens: tells what that costs its process."""
    filters = [f"$shared/g{number}/tenant-{number}/#" for number in range(count)]
    begun = time.monotonic()
    with _subscribed(url, filters, on_event=lambda _event: None):
        ready_s = time.monotonic() - begun
        time.sleep(watch_s)  # the last things that joining brings with it
        begun, used = time.monotonic(), time.process_time()
        time.sleep(watch_s)
        share = (time.process_time() - used) / (time.monotonic() - begun)
        pipe.send((ready_s, share, threading.active_count(), len(os.listdir("/proc/self/fd"))))


def stream_consumer(pipe: Connection, url: str, name: str, batch: int) -> None:
    """A consumer of a Redis stream: XREADGROUP, decode, XACK."""
    import msgpack
    import redis

    tally, stop = Tally(), threading.Event()
    with redis.Redis.from_url(url) as client:
        client.ping()

        def consume() -> None:
            while not stop.is_set():
                found = client.xreadgroup(GROUP, name, {STREAM: ">"}, count=batch, block=100)
                if found:
                    entries = found[0][1]
                    for _, fields in entries:
                        msgpack.unpackb(fields[b"e"])
                    client.xack(STREAM, GROUP, *[entry for entry, _ in entries])
                    tally.add(len(entries))

        thread = threading.Thread(target=consume)
        pipe.send("ready")
        pipe.recv()
        thread.start()
        try:
            _answer(pipe, tally)
        finally:
            stop.set()
            thread.join()


def _answer(pipe: Connection, tally: Tally) -> None:
    while pipe.recv() != "stop":
        pipe.send(dataclasses.replace(tally))
