"""Damaged and unusual logs: a clear error or a correct result, never a wrong one."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Callable

import deltalake
import msgspec
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import durable_log
from durable_log.core.checksums import frame_checksum
from durable_log.errors import LogCorrupt
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from pubsub_api.errors import UnsupportedVersion
from spark_pipeline.core.ranges import LogRange
from spark_pipeline.errors import PipelineError, SchemaMismatch
from spark_pipeline.jobs.audit import count_streams
from spark_pipeline.jobs.compact import compact
from spark_pipeline.jobs.report import audit_report
from spark_pipeline.lake import LakeTable
from spark_pipeline.reading.columns import ReadColumns
from spark_pipeline.reading.options import SourceOptions
from spark_pipeline.reading.partitions import LogPartition, read_partition
from spark_pipeline.reading.whole_log import read_log
from spark_pipeline.sessions.session import translated_errors
from tests.spark.conftest import log_frame, plain_rows
from tests.spark.supervising import run, run_to_end


@pytest.fixture
def sealed(log_url: str) -> tuple[str, pathlib.Path]:
    """A log of one topic whose first 1,000 events are sealed and whose last 100 are hot, and the sealed file."""
    with contextlib.closing(durable_log.open(log_url)) as log:
        assert isinstance(log, SegmentedLog)
        shard = durable_log.shard_of("a/port", log.shards)
        log.append([log_frame("a/port", first=start, count=100) for start in range(1, 1001, 100)])
        Sealer(log).seal(shard)
        log.append([log_frame("a/port", first=1001, count=100)])
        (segment,) = log.segments(shard)
    return log_url, pathlib.Path(segment.path)


def test_sealed_and_hot_events_are_one_table(spark: SparkSession, sealed: tuple[str, pathlib.Path]) -> None:
    url, _ = sealed
    events = read_log(spark, url)
    assert sorted(row[0] for row in events.select("seq").collect()) == list(range(1, 1101))
    assert compact(events).count() == 1100
    some = read_log(spark, url, start={durable_log.shard_of("a/port", 4): 990}, topics=["a/+"])
    assert sorted(row[0] for row in some.select("seq").collect()) == list(range(991, 1101))


def flip(file: pathlib.Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0x40
    file.write_bytes(content)


def tear(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def swap(file: pathlib.Path) -> None:
    """Another good file in its place: other events, the same columns, every page with its checksum."""
    table = pyarrow.parquet.read_table(file)
    pyarrow.parquet.write_table(table.slice(0, table.num_rows - 1), file, write_page_checksum=True)


def age(file: pathlib.Path) -> None:
    """A column is gone, as after a change of the format."""
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(file).drop_columns(["version"]), file)


def read_natively(spark: SparkSession, url: str, _directory: pathlib.Path) -> None:
    read_log(spark, url).count()


def read_through_python(spark: SparkSession, url: str, _directory: pathlib.Path) -> None:
    spark.read.format("heliograph").option("log", url).load().count()


def read_as_a_stream(spark: SparkSession, url: str, directory: pathlib.Path) -> None:
    stream = spark.readStream.format("heliograph").option("log", url).load()
    run_to_end(stream.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint")))


DAMAGES = (flip, tear, swap, age, pathlib.Path.unlink)
"""Spark's own reader meets all of them here, two of them in `./run chaos`.  Python has one reader for all kinds of
reads, which meets them without Spark, below and in the conformance suite of `durable_log`."""


@pytest.mark.parametrize(
    ("read", "damage"),
    [
        *((read_natively, damage) for damage in (flip, age, pathlib.Path.unlink)),
        *(pytest.param(read_natively, damage, marks=pytest.mark.chaos) for damage in (tear, swap)),
        (read_through_python, flip),
        (read_through_python, pathlib.Path.unlink),
        (read_as_a_stream, swap),
    ],
)
def test_a_segment_that_is_not_the_sealed_one_is_an_error_that_names_the_file(
    spark: SparkSession,
    sealed: tuple[str, pathlib.Path],
    tmp_path: pathlib.Path,
    read: Callable[[SparkSession, str, pathlib.Path], None],
    damage: Callable[[pathlib.Path], None],
) -> None:
    """Also when it was whole a moment ago, and both the driver and the workers have read it."""
    url, file = sealed
    read(spark, url, tmp_path / "before")
    file.chmod(0o600)
    damage(file)
    with pytest.raises((LogCorrupt, PipelineError), match=file.name), translated_errors("a test"):
        run(lambda: read(spark, url, tmp_path / "after"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_worker_that_has_read_a_segment_notices_that_it_is_another_one(
    sealed: tuple[str, pathlib.Path], damage: Callable[[pathlib.Path], None]
) -> None:
    """What runs in Spark's Python processes, in this one: they keep the log open from task to task."""
    url, file = sealed
    with contextlib.closing(durable_log.open(url)) as log:
        shard = durable_log.shard_of("a/port", log.shards)
        partition = LogPartition([LogRange(shard, 0, 1100)], ["#"], log.identity)
    options, columns = SourceOptions({"log": url}), ReadColumns(StructType().add("offset", "long"))
    assert sum(batch.num_rows for batch in read_partition(options, columns, partition)) == 1100
    file.chmod(0o600)
    damage(file)
    with pytest.raises(LogCorrupt, match=file.name):
        list(read_partition(options, columns, partition))


def test_a_page_that_changes_after_the_check_is_found_by_its_checksum(
    spark: SparkSession, sealed: tuple[str, pathlib.Path]
) -> None:
    url, file = sealed
    events = read_log(spark, url)
    file.chmod(0o600)
    flip(file)
    with pytest.raises(PipelineError, match=file.name), translated_errors("a test"):
        events.where("length(value) >= 0 and version >= 0 and seq >= 0 and length(key) > 0").count()


def test_a_frame_of_a_wire_version_from_the_future_is_refused_by_its_number(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path
) -> None:
    future = bytearray(log_frame("a/port", first=1, count=3))
    future[4] = 9
    with contextlib.closing(durable_log.open(log_url)) as log:
        with pytest.raises(UnsupportedVersion, match="wire version 9"):
            log.append([bytes(future)])
        log.append([log_frame("a/port", first=1, count=3)])
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as store, store:
        numbers = store.execute("SELECT id, count, skipped, appended_ns, stream, first FROM frames").fetchone()
        checksum = frame_checksum(bytes(future), *numbers)
        store.execute("UPDATE frames SET frame = ?, checksum = ?", (bytes(future), checksum))
    with pytest.raises(PipelineError, match="wire version 9"), translated_errors("a test"):
        run(lambda: read_log(spark, log_url).count())


def test_a_table_of_the_lake_whose_schema_changed_is_refused_by_the_name_of_the_column(
    spark: SparkSession, sealed: tuple[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    lake = LakeTable(tmp_path / "lake")
    lake.current().append(read_log(spark, sealed[0]), "a log", {}, {})
    table = deltalake.DeltaTable(str(tmp_path / "lake")).to_pyarrow_table()
    place = table.schema.get_field_index("version")
    changed = table.set_column(place, "version", table.column("version").cast(pyarrow.string()))
    deltalake.write_deltalake(str(tmp_path / "lake"), changed, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaMismatch, match="'version' is string, and must be bigint"):
        lake.read(spark)
    with pytest.raises(SchemaMismatch, match="'version' is string, and must be bigint"):
        lake.current()


def test_what_cannot_be_decoded_is_counted_and_stops_nobody(spark: SparkSession, log_url: str) -> None:
    """A body that is no event, an action that nobody knows; a value that is not a map is an event all right."""
    strange = [["port", "p1", "explode", None, 1, 1]]
    plain = [["port", "p2", "set", 17, 1, 1]]
    with contextlib.closing(durable_log.open(log_url)) as log:
        for first, body in enumerate(([1, 2], strange, plain), 1):
            packed = msgspec.msgpack.encode(body)
            log.append([frames.pack(Kind.DATA, b"x" * 16, f"t/{first}", packed, first=1, count=len(body), timestamp=1)])
    events = read_log(spark, log_url)
    assert events.count() == 4
    assert [(row["key"], msgspec.msgpack.decode(row["value"])) for row in compact(events).collect()] == [("p2", 17)]
    report = audit_report(events)
    assert report.undecodable == 3
    assert not report.is_clean


def test_one_shard_with_nearly_all_of_the_data_is_read_by_many_tasks(spark: SparkSession, log_url: str) -> None:
    with contextlib.closing(durable_log.open(log_url)) as log:
        log.append([log_frame("busy", first=start, count=500) for start in range(1, 4501, 500)])
        log.append([log_frame(f"quiet/{number}", first=1, count=10) for number in range(50)])
    events = spark.read.format("heliograph").options(log=log_url, events_per_task="500").load()
    assert events.rdd.getNumPartitions() >= 9
    assert plain_rows(count_streams(events).where("lost > 0 or duplicated > 0")) == []
    assert events.count() == 5000
