"""The log as a table: everything once, in batches and as a stream, and rows back into a log exactly once."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import sqlite3

import msgspec
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import durable_log
from nb_api import NbApi
from pubsub_api.config import new_conf
from spark_pipeline.config import GROUP, OPTIONS
from spark_pipeline.errors import PipelineError
from spark_pipeline.reading.whole_log import read_log
from spark_pipeline.schema import EVENT_COLUMNS
from spark_pipeline.sessions.session import open_session
from spark_pipeline.writing import staged_files
from tests.spark.conftest import event_row, frame_of, log_frame, stage
from tests.spark.supervising import run, run_to_end

TOPICS = [f"tenant-{number}/port" for number in range(6)]


def fill(url: str, *, first: int = 1, count: int = 40) -> None:
    """Append events ``first`` .. to every topic, a few per frame."""
    with contextlib.closing(durable_log.open(url)) as log:
        log.append(
            [
                log_frame(topic, first=start, count=min(7, first + count - start))
                for topic in TOPICS
                for start in range(first, first + count, 7)
            ]
        )


def numbers(events: DataFrame) -> list[tuple[str, int]]:
    return sorted((row["topic"], row["seq"]) for row in events.select("topic", "seq").collect())


def expected(first: int, last: int, topics: list[str] = TOPICS) -> list[tuple[str, int]]:
    return sorted((topic, seq) for topic in topics for seq in range(first, last + 1))


def test_a_batch_read_has_every_event_once_with_every_column(spark: SparkSession, log_url: str) -> None:
    fill(log_url)
    events = spark.read.format("heliograph").options(log=log_url, events_per_task="11").load()
    assert events.columns == list(EVENT_COLUMNS)
    assert numbers(events) == expected(1, 40)
    assert events.rdd.getNumPartitions() > 4, "a shard is split"
    row = events.where("topic = 'tenant-3/port' and seq = 17").collect()
    assert len(row) == 1
    assert msgspec.msgpack.decode(row[0]["value"]) is not None
    assert events.where("topic in ('tenant-1/port', 'tenant-2/port')").count() == 80
    assert events.where("topic = 'tenant-1/port' and shard = 0 and seq > 0").count() in (0, 40)


def test_the_session_that_is_there_is_used_and_a_read_may_name_its_limits(spark: SparkSession, log_url: str) -> None:
    fill(log_url)
    conf = new_conf()
    conf.register_opts(OPTIONS, group=GROUP)
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert open_session(conf, app_name="another", master="local[7]") is spark
    source = spark.read.format("heliograph").option("log", log_url)
    assert source.load().rdd.getNumPartitions() in range(1, 5)
    assert source.option("events_per_task", 20).load().rdd.getNumPartitions() in range(12, 17)
    assert (spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.app.name")) == (
        zone,
        "heliograph-tests",
    )


def test_filters_and_offsets_select(spark: SparkSession, log_url: str) -> None:
    fill(log_url)
    some = spark.read.format("heliograph").options(log=log_url, topics="tenant-1/#,tenant-2/+").load()
    assert numbers(some) == expected(1, 40, TOPICS[1:3])
    with contextlib.closing(durable_log.open(log_url)) as log:
        ends = {state.shard: state.end for state in log.state()}
    fill(log_url, first=41, count=5)
    assert numbers(read_log(spark, log_url, start=ends)) == expected(41, 45)
    assert numbers(read_log(spark, log_url, end=ends)) == expected(1, 40)
    assert numbers(read_log(spark, log_url, topics=["tenant-5/#"])) == expected(1, 45, TOPICS[5:])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"log": "sqlite:///nowhere/at/all/log.db"}, "there is no log at sqlite:///nowhere/at/all/log.db"),
        ({"topic": "a"}, "unknown option 'topic': did you mean 'topics'"),
    ],
)
def test_a_wrong_option_is_refused_with_the_reason(
    spark: SparkSession, log_url: str, options: dict[str, str], reason: str
) -> None:
    fill(log_url)
    source = spark.read.format("heliograph").options(**{"log": log_url, **options})
    with pytest.raises((PySparkException, Py4JJavaError), match=reason):
        run(lambda: source.load().count())


def take_in(spark: SparkSession, log_url: str, checkpoint: pathlib.Path, table: str) -> None:
    """Run a streaming query over what is there now, into files."""
    stream = spark.readStream.format("heliograph").options(log=log_url, events_per_batch="50").load()
    run_to_end(stream.writeStream.format("parquet").options(checkpointLocation=str(checkpoint), path=table))


def remove_log(directory: pathlib.Path) -> None:
    """A log without segments, gone with its journal."""
    for file in directory.glob("log.db*"):
        file.unlink()


def test_a_stream_goes_on_exactly_where_its_checkpoint_says_and_in_no_other_log(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path
) -> None:
    fill(log_url)
    table = str(tmp_path / "table")
    take_in(spark, log_url, tmp_path / "checkpoint", table)
    assert numbers(spark.read.parquet(table)) == expected(1, 40)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as store,
        contextlib.closing(sqlite3.connect(tmp_path / "older.db")) as copy,
    ):
        store.backup(copy)
    fill(log_url, first=41, count=9)
    take_in(spark, log_url, tmp_path / "checkpoint", table)
    assert numbers(spark.read.parquet(table)) == expected(1, 49)
    remove_log(tmp_path)
    (tmp_path / "older.db").rename(tmp_path / "log.db")
    with pytest.raises(PySparkException, match="OtherLog: this checkpoint is at offset"):
        take_in(spark, log_url, tmp_path / "checkpoint", table)
    fill(log_url, first=50, count=60)
    with pytest.raises(PySparkException, match="OtherLog: this checkpoint is at offset .* has grown since"):
        take_in(spark, log_url, tmp_path / "checkpoint", table)
    remove_log(tmp_path)
    fill(log_url, first=50, count=60)
    with pytest.raises(PySparkException, match="OtherLog: this checkpoint was made from the log"):
        take_in(spark, log_url, tmp_path / "checkpoint", table)
    assert numbers(spark.read.parquet(table)) == expected(1, 49)
    assert numbers(spark.read.format("heliograph").option("log", log_url).load()) == expected(50, 109)


def test_rows_become_events_of_a_log(spark: SparkSession, log_url: str, tmp_path: pathlib.Path) -> None:
    rows = [
        event_row(
            topic=f"t/{number % 3}", key=f"k{number}", version=number, value=msgspec.msgpack.encode({"n": number})
        )
        for number in range(500)
    ]
    frame_of(spark, rows).write.format("heliograph").options(log=log_url, staging=str(tmp_path / "staged")).mode(
        "append"
    ).save()
    written = spark.read.format("heliograph").option("log", log_url).load()
    found = {row["key"]: msgspec.msgpack.decode(row["value"])["n"] for row in written.collect()}
    assert found == {f"k{number}": number for number in range(500)}
    assert list((tmp_path / "staged").rglob("*.staged")) == [], "nothing is left behind"
    with contextlib.closing(durable_log.open(log_url)) as log:
        assert log.list_records("") == [], "a write that never comes again leaves no note"


@pytest.mark.parametrize("target", ["log", pytest.param("db", marks=pytest.mark.chaos)])
def test_a_batch_that_spark_runs_again_after_a_crash_is_written_once(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path, target: str
) -> None:
    """The driver died when the rows were in, and before Spark noted that."""
    fill(log_url, count=20)
    checkpoint, url = tmp_path / "checkpoint", f"sqlite://{tmp_path}/target.db"
    options = {target: url, "staging": str(tmp_path / "staged"), "query": "copy"}

    def copy(at: pathlib.Path = checkpoint) -> None:
        stream = spark.readStream.format("heliograph").option("log", log_url).load()
        writer = stream.writeStream.format("heliograph").options(checkpointLocation=str(at), **options)
        run_to_end(writer)

    def written() -> list[tuple[str, int]]:
        if target == "log":
            return sorted(
                (row["topic"], row["version"])
                for row in spark.read.format("heliograph").option("log", url).load().collect()
            )
        with contextlib.closing(NbApi.open(url=url)) as nb:
            return sorted((change.topic, change.value["n"]) for change in nb.db.changes(0) if change.table == "port")

    copy()
    assert written() == expected(1, 20)
    last = max(checkpoint.glob("commits/[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    copy()
    assert last.exists(), "Spark ran the batch again"
    assert written() == expected(1, 20)
    with pytest.raises(PySparkException, match="JobNameTaken: the name of query 'copy' belongs to another checkpoint"):
        copy(tmp_path / "another checkpoint")
    assert written() == expected(1, 20)
    shutil.copytree(checkpoint, tmp_path / "copied")
    fill(log_url, first=21, count=7)
    copy()
    fill(log_url, first=28, count=7)
    with pytest.raises(PySparkException, match="CheckpointCopied: query 'copy' comes with another batch"):
        copy(tmp_path / "copied")
    copy()
    assert written() == expected(1, 34)


def test_rows_that_are_no_events_are_refused(spark: SparkSession, log_url: str, tmp_path: pathlib.Path) -> None:
    target = {"log": log_url, "staging": str(tmp_path)}
    rows = frame_of(spark, [event_row(value=b"\xc1")])
    for bad, reason in (
        (rows.drop("topic"), "need the columns topic"),
        (rows, "must hold msgpack"),
        (rows.withColumn("action", rows["key"]), "action"),
    ):
        with pytest.raises(PySparkException, match=reason):
            bad.write.format("heliograph").options(**target).mode("append").save()
    with pytest.raises(PySparkException, match='option "staging" must be a directory'):
        rows.write.format("heliograph").options(log=log_url, staging="s3://bucket/staged").mode("append").save()
    with contextlib.closing(durable_log.open(log_url)) as log:
        assert sum(state.end for state in log.state()) == 0


def test_a_staged_file_that_is_gone_or_torn_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PipelineError, match="cannot be read"):
        list(staged_files.read_staged(str(tmp_path), "nothing.staged"))
    name = stage(tmp_path, "a", "b")
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-3])
    with pytest.raises(PipelineError, match="ends too early"):
        list(staged_files.read_staged(str(tmp_path), name))
