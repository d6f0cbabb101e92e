"""The data pipeline: reading a log, compacting and auditing it, next to the best plain plans on the same Parquet files.

Spark belongs to no transport, so this runs under ``zmq`` only.  Every case ends in a number that depends on every row,
so that nothing can be left out, and all engines must agree on it.
"""

from __future__ import annotations

import contextlib
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import durable_log
from bench import events as made
from bench import spark_session
from bench.plan import Outcome, Plan, Row
from bench.targets import check
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHARE = 10.0
KEYS_SHARE = 0.1
"""Objects, as a part of the events."""
HOT_SHARE = 0.1
"""The hot tail, as a part of the events."""
FRAME_EVENTS = 64
APPEND_FRAMES = 512
TOPICS = 8
GUID = bytes(16)


def measure(plan: Plan, driver: str) -> Outcome:
    reason = "Spark belongs to no transport: see zmq" if driver != "zmq" else spark_session.problem()
    if reason is not None:
        return Outcome("spark", driver, [], [], [reason])
    count = int(plan.events * SHARE)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as name:
        plan.say(f"writing {count:,} events into a log and sealing them")
        sealed, hot = make_log(pathlib.Path(name) / "sealed", count), pathlib.Path(name) / "hot"
        _seal(sealed)
        hot_url = make_log(hot, int(count * HOT_SHARE))
        with spark_session.session() as spark:
            times = _Times(plan)
            for number in range(1, plan.rounds + 1):
                plan.say(f"round {number} of {plan.rounds}: Spark over {count:,} events")
                _reads(spark, times, sealed, hot_url, pathlib.Path(name))
                _jobs(spark, times, sealed)
    measured = {
        "bulk read": 1 / times.ratio("read, sealed", "read, Spark's Parquet reader"),
        "hot tail": 1 / times.ratio("read, hot", "read, bare Python source"),
        "compact": times.ratio("compact", "compact, best plain plan"),
        "audit": times.ratio("audit", "audit, bitmaps on bare files"),
    }
    for engine in ("DuckDB", "Polars"):
        times.notes.append(f"compact took {times.ratio('compact', f'compact, {engine}'):.1f} times as long as {engine}")
    return Outcome("spark", driver, times.rows(), check("spark", driver, measured), times.notes)


class _Times:
    """Seconds of every round, by what was done.  All cases of a kind must have the same answer."""

    def __init__(self, plan: Plan) -> None:
        self._say = plan.say
        self._seconds: dict[str, list[float]] = {}
        self._answers: dict[str, object] = {}
        self.notes: list[str] = []

    def add(self, name: str, work: Callable[[], object]) -> None:
        self._say(f"  {name}")
        start = time.perf_counter()
        answer = work()
        self._seconds.setdefault(name, []).append(time.perf_counter() - start)
        kind = name.partition(",")[0] if not name.endswith(("hot", "bare Python source")) else "hot"
        if self._answers.setdefault(kind, answer) != answer:
            self.notes.append(f"{name} gave {answer}, others {self._answers[kind]}")

    def ratio(self, ours: str, theirs: str) -> float:
        return statistics.median(self._seconds[ours]) / statistics.median(self._seconds[theirs])

    def rows(self) -> list[Row]:
        return [{"case": name, "seconds": round(statistics.median(found), 2)} for name, found in self._seconds.items()]


# -- the data


def make_log(directory: pathlib.Path, count: int) -> str:
    directory.mkdir()
    url = f"sqlite://{directory}/log.db?shards=4"
    keys = max(1, int(count * KEYS_SHARE))
    with contextlib.closing(durable_log.open(url)) as log:
        together: list[bytes] = []
        for first in range(1, count // TOPICS + 1, FRAME_EVENTS):
            together += [_frame(topic, first, keys) for topic in range(TOPICS)]
            if len(together) >= APPEND_FRAMES:
                log.append(together)
                together = []
        log.append(together)
    return url


def _frame(topic: int, first: int, keys: int) -> bytes:
    events = [made.event(number, made.topic(topic)) for number in range(first, first + FRAME_EVENTS)]
    for number, event in enumerate(events, first):
        event.key = f"port-{(number * TOPICS + topic) * 7919 % keys:08d}"
        event.version = number * TOPICS + topic
    return made.frame(GUID, made.topic(topic), events, first)


def _seal(url: str) -> None:
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        for shard in range(log.shards):
            Sealer(log).seal(shard)


def _files(url: str) -> list[str]:
    with contextlib.closing(durable_log.open(url)) as log:
        return [segment.path for segment in log.segments()]


# -- the cases


def _reads(spark: SparkSession, times: _Times, sealed: str, hot: str, directory: pathlib.Path) -> None:
    from spark_pipeline.reading.whole_log import read_log
    from spark_pipeline.schema import EVENT_SCHEMA

    times.add("read, Spark's Parquet reader", lambda: _all_of(spark.read.schema(EVENT_SCHEMA).parquet(*_files(sealed))))
    times.add("read, sealed", lambda: _all_of(read_log(spark, sealed)))
    bare = _bare_source(hot, directory / "hot.arrow")
    spark.dataSource.register(bare)
    times.add("read, bare Python source", lambda: _all_of(spark.read.format(bare.name()).load()))
    times.add("read, hot", lambda: _all_of(read_log(spark, hot)))


def _all_of(rows: DataFrame) -> tuple[object, ...]:
    """A number that every column of every row has a part in."""
    from pyspark.sql import functions as F

    from spark_pipeline.schema import EVENT_COLUMNS

    digest = F.sum(F.xxhash64(*EVENT_COLUMNS).cast("decimal(38,0)"))
    return tuple(rows.select(*EVENT_COLUMNS).agg(F.count("*"), digest).collect()[0])


def _bare_source(url: str, path: pathlib.Path) -> Any:
    """What a Python source can do at best: hand Spark batches that lie ready in a file."""
    import pyarrow
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from spark_pipeline.schema import EVENT_SCHEMA

    if not path.exists():
        with contextlib.closing(durable_log.open(url)) as log:
            parts = [durable_log.arrow_batches(log, state.shard, state.start, state.end) for state in log.state()]
            batches = [batch for part in parts for batch in part]
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    file_name, tasks = str(path), 4

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            with pyarrow.memory_map(file_name) as mapped:
                opened = pyarrow.ipc.open_file(mapped)
                for number in range(partition.value, opened.num_record_batches, tasks):
                    yield opened.get_batch(number)

    class Bare(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bare_arrow"

        def schema(self) -> str:
            return EVENT_SCHEMA

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
            return Reader()

    return Bare


def _jobs(spark: SparkSession, times: _Times, sealed: str) -> None:
    from spark_pipeline.jobs.audit import count_streams
    from spark_pipeline.jobs.compact import compact
    from spark_pipeline.reading.whole_log import read_log
    from spark_pipeline.schema import EVENT_SCHEMA

    files = _files(sealed)
    bare = spark.read.schema(EVENT_SCHEMA).parquet(*files)
    times.add("compact, best plain plan", lambda: _compacted(_plain_compact(bare)))
    times.add("compact", lambda: _compacted(compact(read_log(spark, sealed), keys_fit_in_memory=True)))
    times.add("compact, DuckDB", lambda: _duckdb_compact(files))
    times.add("compact, Polars", lambda: _polars_compact(files))
    times.add("audit, bitmaps on bare files", lambda: _audited(count_streams(bare)))
    times.add("audit", lambda: _audited(count_streams(read_log(spark, sealed))))


def _compacted(rows: DataFrame) -> tuple[object, ...]:
    from pyspark.sql import functions as F

    return tuple(rows.agg(F.count("*"), F.sum("version"), F.sum(F.length("value"))).collect()[0])


def _plain_compact(rows: DataFrame) -> DataFrame:
    """The fastest plan that is known for data without ties."""
    from pyspark.sql import functions as F

    newest = rows.groupBy("table", "key").agg(F.max("version").alias("version"))
    return rows.join(F.broadcast(newest), ["table", "key", "version"], "left_semi").where("action != 'delete'")


def _duckdb_compact(files: list[str]) -> tuple[object, ...]:
    import duckdb

    query = """
        SELECT count(*), sum(version)::BIGINT, sum(octet_length(value))::BIGINT FROM (
            SELECT version, value, action FROM read_parquet(?)
            QUALIFY row_number() OVER (PARTITION BY "table", key ORDER BY version DESC) = 1
        ) WHERE action <> 'delete'
    """
    return tuple(duckdb.execute(query, [files]).fetchall()[0])


def _polars_compact(files: list[str]) -> tuple[object, ...]:
    import polars

    newest = (
        polars.scan_parquet(files)
        .select("table", "key", "version", "value", "action")
        .group_by("table", "key")
        .agg(polars.col("version", "value", "action").sort_by("version").last())
        .filter(polars.col("action") != "delete")
    )
    found = newest.select(polars.len(), polars.col("version").sum(), polars.col("value").bin.size().sum()).collect()
    return tuple(found.row(0))


def _audited(rows: DataFrame) -> tuple[object, ...]:
    from pyspark.sql import functions as F

    return tuple(rows.agg(F.sum("events"), F.sum("lost"), F.sum("duplicated")).collect()[0])
