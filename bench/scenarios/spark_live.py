"""From the bus to a row in ``foreachBatch``: how long an event takes while 10,000 of them come every second.

A publisher, a recorder that writes the log, and Spark with the streaming source are processes of their own, as in
production.  An event is late by the time from its publishing, which is its timestamp, until ``foreachBatch`` has it in
memory.  The first seconds are not counted: Spark compiles while it runs.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import durable_log
import pubsub_api
from bench import events as made
from bench import spark_session
from bench.plan import Outcome, Plan
from bench.targets import check
from bench.workers import Worker
from durable_log.recording.recorder import Recorder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS_PER_S, EVENTS_PER_S_QUICK = 10_000, 500
SECONDS, SECONDS_QUICK = 60, 2
WARM_UP_S, WARM_UP_S_QUICK = 40, 2
TICK_S = 0.01
TOPICS = 8
OPEN_S = 60.0
REST_S = 60.0
"""How long the last events may take."""
QUANTILES = (0.5, 0.95, 0.99)


def measure(plan: Plan, driver: str) -> Outcome:
    reason = "the recorder hides the transport: see zmq" if driver != "zmq" else spark_session.problem()
    if reason is not None:
        return Outcome("spark_live", driver, [], [], [reason])
    rate = EVENTS_PER_S_QUICK if plan.is_quick else EVENTS_PER_S
    warm_up_s = WARM_UP_S_QUICK if plan.is_quick else WARM_UP_S
    seconds = warm_up_s + (SECONDS_QUICK if plan.is_quick else SECONDS)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as name, spark_session.session() as spark:
        plan.say(f"{rate:,} events/s for {seconds} s, from the bus into Spark")
        delays = _run(spark, pathlib.Path(name), rate, seconds)
    return _judge(driver, delays, rate, warm_up_s, seconds)


def _judge(driver: str, delays: _Delays, rate: int, warm_up_s: int, seconds: int) -> Outcome:
    import numpy

    published, late_ms = delays.arrays()
    counted = published >= published.min() + warm_up_s * 10**9
    at_s, counted_ms = (published[counted] - published.min()) / 1e9, late_ms[counted]
    slope_ms_per_s = float(numpy.polyfit(at_s, counted_ms, 1)[0])
    found = numpy.quantile(counted_ms, QUANTILES)
    row = {
        "case": "bus to foreachBatch", "offered events/s": rate, "seconds": seconds - warm_up_s,
        "batches": delays.batches,
        **{f"p{quantile * 100:g}, ms": round(float(value)) for quantile, value in zip(QUANTILES, found, strict=True)},
        "longest, ms": round(float(counted_ms.max())),
    }  # fmt: skip
    measured = {
        "p95": float(found[1]), "growth": slope_ms_per_s * 60, "missing": float(abs(rate * seconds - len(late_ms))),
    }  # fmt: skip
    return Outcome("spark_live", driver, [row], check("spark_live", driver, measured))


class _Delays:
    """What ``foreachBatch`` saw.  It runs on one thread."""

    def __init__(self) -> None:
        self._published: list[object] = []
        self._seen_ns: list[int] = []
        self.count = 0
        self.batches = 0

    def add(self, batch: DataFrame, _number: int) -> None:
        stamps = batch.select("timestamp").toArrow().column("timestamp").to_numpy()
        self._published.append(stamps)
        self._seen_ns.append(time.time_ns())
        self.count += len(stamps)
        self.batches += 1

    def arrays(self):  # type: ignore[no-untyped-def]  # numpy is imported only here
        """When each event was published, in nanoseconds, and by how many milliseconds it was late."""
        import numpy

        late = [seen - stamps for seen, stamps in zip(self._seen_ns, self._published, strict=True)]
        return numpy.concatenate(self._published), numpy.concatenate(late) / 1e6


def _run(spark: SparkSession, directory: pathlib.Path, rate: int, seconds: int) -> _Delays:
    url = f"sqlite://{directory}/log.db?shards=2"
    with contextlib.closing(durable_log.open(url)):
        pass  # made before two processes open it
    delays = _Delays()
    with Worker(publish, rate, seconds) as publisher, contextlib.ExitStack() as stack:
        recorder = stack.enter_context(Worker(record, publisher.hear(), url))
        recorder.hear()
        stream = spark.readStream.format("heliograph").option("log", url).load()
        query = stream.writeStream.foreachBatch(delays.add).option("checkpointLocation", str(directory / "c")).start()
        try:
            publisher.tell("go")
            total = publisher.hear(seconds * 2 + OPEN_S)
            _wait(lambda: delays.count >= total or query.exception() is not None, REST_S)
        finally:
            query.stop()
        recorder.tell("stop")
        recorder.end()
    return delays


def _wait(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


# -- the processes


def publish(pipe: Connection, rate: int, seconds: int) -> None:
    """Publish at an even rate, in ticks."""
    with pubsub_api.open("zmq://127.0.0.1:0") as session:
        publisher = session.publisher(name="bench")
        pipe.send(publisher.address)
        pipe.recv()
        topics = [made.topic(number) for number in range(TOPICS)]
        per_tick, sent, began = round(rate * TICK_S), 0, time.monotonic()
        while sent < rate * seconds:
            pause_s = began + sent / rate - time.monotonic()
            if pause_s > 0:
                threading.Event().wait(pause_s)
            for number in range(sent, sent + per_tick):
                publisher.send_event(made.event(number, topics[number % TOPICS]))
            sent += per_tick
        publisher.flush(timeout_s=OPEN_S)
        pipe.send(sent)
        pipe.poll(OPEN_S + REST_S)  # the caches answer as long as the recorder may ask


def record(pipe: Connection, address: str, url: str) -> None:
    with (
        pubsub_api.open("zmq://127.0.0.1:0") as session,
        durable_log.open(url) as log,
        Recorder(session, log, ["#"], addresses=[address]) as recorder,
    ):
        recorder.wait_ready(OPEN_S)
        pipe.send("ready")
        pipe.recv()
