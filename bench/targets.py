"""What Heliograph has to reach, as numbered data.  A scenario measures, `check` compares, the report prints both."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Target:
    number: int
    scenario: str
    name: str
    """Unique within a scenario."""
    driver: str
    """The driver it holds for; empty: every one."""
    what: str
    relation: Literal[">=", "<="]
    bound: float
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class Check:
    """A target and what was measured."""

    target: Target
    driver: str
    measured: float

    @property
    def is_met(self) -> bool:
        if self.target.relation == ">=":
            return self.measured >= self.target.bound
        return self.measured <= self.target.bound


_ROWS: tuple[tuple[str, str, str, str, Literal[">=", "<="], float, str], ...] = (
    ("throughput", "plain", "zmq", "events/s, times raw multipart + msgpack", ">=", 5.0, "x"),
    ("throughput", "tuned", "zmq", "events/s, times the tuned raw sender", ">=", 1.8, "x"),
    ("throughput", "bound", "zmq", "events/s, of 64 events per raw frame", ">=", 0.7, "x"),
    ("throughput", "publisher cpu", "zmq", "CPU per event, publisher", "<=", 1.5, "us"),
    ("throughput", "subscriber cpu", "zmq", "CPU per event, subscriber", "<=", 1.5, "us"),
    ("throughput", "plain", "redis", "events/s, times plain PUBLISH", ">=", 20.0, "x"),
    ("throughput", "pipelined", "redis", "events/s, times PUBLISH pipelined by 64", ">=", 2.0, "x"),
    ("throughput", "plain", "zenoh", "events/s, times raw put and callback", ">=", 2.0, "x"),
    ("throughput", "undetected", "", "events lost without detection", "<=", 0.0, ""),
    ("latency", "p50", "", "p50 at 1,000 events/s, times raw", "<=", 1.5, "x"),
    ("latency", "p99", "", "p99 at 1,000 events/s, times raw", "<=", 2.0, "x"),
    ("fanout", "growth", "", "CPU per event that 49 more subscribers add, beyond raw by 64", "<=", 0.2, "us"),
    ("topics", "tuned", "zmq", "events/s over 10,000 topics, times the tuned raw sender", ">=", 0.5, "x"),
    ("topics", "publisher memory", "", "memory per idle stream, publisher", "<=", 1000.0, "B"),
    ("topics", "subscriber memory", "", "memory per idle stream, subscriber", "<=", 1000.0, "B"),
    ("slow", "undetected", "", "events lost without detection, subscriber at half speed", "<=", 0.0, ""),
    ("repair", "1% loss", "", "events/s with 1% of the frames lost, of the lossless run", ">=", 0.7, "x"),
    ("repair", "10% loss", "", "events/s with 10% of the frames lost, of the lossless run", ">=", 0.7, "x"),
    ("repair", "resyncs", "", "resyncs because of that loss", "<=", 0.0, ""),
    ("repair", "undetected", "", "events lost without detection", "<=", 0.0, ""),
    ("repair", "cache", "", "events/s with a cache, of those without", ">=", 0.9, "x"),
    ("commit", "by 1", "", "changes/s committed and published one by one, of sqlite alone", ">=", 0.9, "x"),
    ("commit", "by 10", "", "the same, 10 per transaction", ">=", 0.9, "x"),
    ("commit", "by 100", "", "the same, 100 per transaction", ">=", 0.9, "x"),
    ("changes", "postgres p50", "zmq", "p50 from commit to copy at 300/s, times LISTEN/NOTIFY", "<=", 1.0, "x"),
    ("changes", "postgres p99", "zmq", "p99 of that", "<=", 1.0, "x"),
    ("changes", "postgres rate", "zmq", "changes/s as fast as it goes, times LISTEN/NOTIFY", ">=", 1.5, "x"),
    ("changes", "etcd p50", "zmq", "p50 from commit to copy at 300/s, times put and watch", "<=", 1.1, "x"),
    ("changes", "etcd p99", "zmq", "p99 of that", "<=", 1.0, "x"),
    ("changes", "etcd rate", "zmq", "changes/s as fast as it goes, times put and watch", ">=", 1.5, "x"),
    ("changes", "sqlite p50", "zmq", "p50 from commit to copy at 300/s, SQLite, times OVSDB", "<=", 1.0, "x"),
    ("changes", "sqlite p99", "zmq", "p99 of that", "<=", 1.0, "x"),
    ("changes", "sqlite twice", "zmq", "changes/s as fast as it goes, SQLite, times LISTEN/NOTIFY", ">=", 3.8, "x"),
    ("changes", "by 1", "zmq", "changes/s one by one without followers, of sqlite alone", ">=", 0.9, "x"),
    ("changes", "by 10", "zmq", "the same, 10 per transaction", ">=", 0.9, "x"),
    ("changes", "by 100", "zmq", "the same, 100 per transaction", ">=", 0.9, "x"),
    ("changes", "held", "zmq", "changes/s on the slowest database, of 300", ">=", 0.98, "x"),
    ("changes", "follower cpu", "zmq", "a follower's CPU at full speed, times the least of the others", "<=", 0.5, "x"),
    ("changes", "writer cpu", "zmq", "the writer's CPU at full speed, times the least of the others", "<=", 1.0, "x"),
    ("changes", "missing", "zmq", "objects whose last change a copy did not get", "<=", 0.0, ""),
    ("changes_followers", "missing", "zmq", "objects whose last change a copy did not get", "<=", 0.0, ""),
    ("changes_transactions", "missing", "zmq", "objects whose last change a copy did not get", "<=", 0.0, ""),
    ("changes_service", "p50", "zmq", "p50 through the service, times the direct publisher's", "<=", 1.3, "x"),
    ("changes_service", "rate", "zmq", "changes/s through the service, of the direct publisher's", ">=", 0.8, "x"),
    ("changes_service", "missing", "zmq", "objects whose last change a copy did not get", "<=", 0.0, ""),
    ("changes_writers", "missing", "zmq", "objects whose last change a copy did not get", "<=", 0.0, ""),
    ("many_controllers", "snapshots", "zmq", "snapshots that the database has open at a time", "<=", 16.0, ""),
    ("many_controllers", "after restart", "zmq", "snapshots read after a restart of the service", "<=", 0.0, ""),
    ("many_controllers", "missing", "zmq", "last changes that a cache did not get", "<=", 0.0, ""),
    ("sync", "time", "", "CPU of a controller's first copy, of reading the rows with sqlite3", "<=", 2.0, "x"),
    ("sync", "memory", "", "memory of that copy, of a dict of the values", "<=", 2.0, "x"),
    ("sync", "missing", "", "objects missing in that copy", "<=", 0.0, ""),
    ("service", "received", "", "events/s of 4 workers through the service, of the bus's own", ">=", 0.8, "x"),
    ("service", "applied", "", "the same, until they are applied in a controller's copy", ">=", 0.8, "x"),
    ("service", "p50", "", "p50 of a lone event through the service, times the bus's own", "<=", 1.3, "x"),
    ("service", "lost", "", "events lost on that way", "<=", 0.0, ""),
    ("log", "append", "zmq", "events/s appended, of plain SQLite with the same frames and commits", ">=", 0.8, "x"),
    ("log", "read", "zmq", "events/s read, of a plain SELECT", ">=", 0.5, "x"),
    ("log", "columns", "", "events/s read from segments as columns, of pyarrow alone", ">=", 0.9, "x"),
    ("throughput", "plain", "longpoll", "events/s, times a gRPC unary call per event", ">=", 3.0, "x"),
    ("subscriptions", "connections", "longpoll", "connections per subscriber", "<=", 1.0, ""),
    ("subscriptions", "memory", "longpoll", "publisher's memory per subscription", "<=", 400.0, "B"),
    ("subscriptions", "subscribing", "longpoll", "until all subscriptions are in effect", "<=", 10.0, "s"),
    ("subscriptions", "publish cost", "longpoll", "cost of a frame, times that with 100th of them", "<=", 1.5, "x"),
    ("durability", "append", "zmq", "events/s kept durably, of the log's own append", ">=", 0.7, "x"),
    ("durability", "align", "zmq", "samples/s aligned, of events/s read from the log", ">=", 0.7, "x"),
    ("durability", "store", "zmq", "samples/s aligned and stored, of events/s from log to log", ">=", 0.5, "x"),
    ("durability", "equal", "zmq", "bytes of samples moved between equal sets", "<=", 0.0, "B"),
    ("durability", "one", "zmq", "data moved for one difference, of the whole set", "<=", 1.0, "%"),
    ("groups", "single", "redis", "events/s of 4 members, times XREADGROUP and XACK one by one", ">=", 2.0, "x"),
    ("groups", "batch", "redis", "events/s of 4 members, times XREADGROUP and XACK of 100", ">=", 0.8, "x"),
    ("spark", "bulk read", "zmq", "rows/s read from sealed segments, of Spark's own Parquet reader", ">=", 0.95, "x"),
    ("spark", "hot tail", "zmq", "rows/s read from the hot tail, of a bare Python source with Arrow", ">=", 0.9, "x"),
    ("spark", "compact", "zmq", "time to compact, times the best plain plan", "<=", 1.1, "x"),
    ("spark", "audit", "zmq", "time to count, times bitmaps on the bare files", "<=", 1.0, "x"),
    ("groups", "embedded", "zmq", "events/s acknowledged by 4 members, embedded log", ">=", 50_000.0, ""),
    ("groups", "member killed", "zmq", "until a killed member's streams flow again, beyond its lease", "<=", 1.0, "s"),
    ("groups", "leader killed", "zmq", "until a group flows without its leader, beyond the claim time", "<=", 1.0, "s"),
    ("groups", "sqlite p50", "zmq", "p50 from publisher to callback, log in SQLite", "<=", 5.0, "ms"),
    ("groups", "redis p50", "redis", "p50 from publisher to callback, log in Redis", "<=", 3.0, "ms"),
    ("groups", "idle cpu", "", "share of a core that 1,000 idle groups of one process take", "<=", 0.02, ""),
    ("groups", "idle threads", "", "threads of that process", "<=", 100.0, ""),
    ("groups", "queue", "zmq", "jobs of 10 ms done by 4 members of a queue, of what is possible", ">=", 0.95, ""),
    ("groups", "slow member", "zmq", "time of them with one member 10 times slower, of the shortest", "<=", 1.1, "x"),
    ("spark_live", "p95", "zmq", "p95 from the bus to a row in foreachBatch, 10,000 events/s", "<=", 500.0, "ms"),
    ("spark_live", "growth", "zmq", "growth of that lag over the run, per minute", "<=", 50.0, "ms"),
    ("spark_live", "missing", "zmq", "events that did not become a row, or became two", "<=", 0.0, ""),
    ("spark_memory", "peak", "zmq", "memory of the JVM, of which 4 GB are the driver's", "<=", 5.0, "GB"),
    ("spark_memory", "ingest", "zmq", "memory of the Python processes of an ingest, all events hot", "<=", 1.0, "GB"),
    ("spark_memory", "missing", "zmq", "objects missing in the snapshot", "<=", 0.0, ""),
    ("controller", "memory", "", "memory of a copy with two indexes, of a dict of the values", "<=", 1.5, "x"),
    ("controller", "look-up", "", "a look-up in that copy, by key or by index", "<=", 2.0, "us"),
    ("controller", "changes", "", "changes/s decoded, applied, indexed and told, per core", ">=", 100_000.0, ""),
    ("controller", "wrong", "", "objects that an index does not have as a scan finds them", "<=", 0.0, ""),
    ("controller", "verify", "", "CPU to verify a copy of a million objects that is equal", "<=", 1.0, "s"),
    ("controller", "differences", "", "objects that verifying an equal copy finds different", "<=", 0.0, ""),
    ("controller", "reconcile", "", "CPU of a run by Controller of a function that does nothing", "<=", 20.0, "us"),
    ("controller", "runs", "", "runs of a key that 1,000 changes of it in a burst cause", "<=", 10.0, ""),
    ("log", "frames", "zmq", "events read from segments as frames, millions in a CPU second", ">=", 1.0, "M"),
    ("log", "seal", "zmq", "events sealed, millions in a CPU second", ">=", 0.3, "M"),
    ("log", "anywhere", "zmq", "CPU time of a read anywhere in sealed segments", "<=", 20.0, "ms"),
)

TARGETS: tuple[Target, ...] = tuple(
    Target(number, scenario, name, driver, what, relation, bound, unit)
    for number, (scenario, name, driver, what, relation, bound, unit) in enumerate(_ROWS, 1)
)


def check(scenario: str, driver: str, measured: dict[str, float]) -> list[Check]:
    """The targets of a scenario that hold for this driver and were measured, in the order of the table."""
    return [
        Check(target, driver, measured[target.name])
        for target in TARGETS
        if target.scenario == scenario and target.driver in ("", driver) and target.name in measured
    ]
