"""Jobs that share the events of a group: each row in one of them, all rows in all of them, whatever is killed."""

from __future__ import annotations

import contextlib
import pathlib
import shutil

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import durable_log
from pubsub_api.errors import UsageError
from shared_subscriptions import groups
from spark_pipeline.errors import OtherLog
from spark_pipeline.reading.columns import ReadColumns
from spark_pipeline.reading.group_jobs import release, show
from spark_pipeline.reading.group_source import GroupStreamReader
from spark_pipeline.reading.options import SourceOptions
from tests.helpers.waiting import wait_until
from tests.spark.conftest import log_frame
from tests.spark.streaming_job import StreamingJob
from tests.spark.supervising import RunningQuery, run_to_end

TOPICS = [f"tenant-{number}/port" for number in range(6)]
Row = tuple[str, int]


def fill(url: str, *, first: int, count: int, topics: list[str] = TOPICS) -> None:
    with contextlib.closing(durable_log.open(url)) as log:
        frames = [
            log_frame(topic, first=start, count=min(7, first + count - start))
            for start in range(first, first + count, 7)
            for topic in topics
        ]
        log.append(frames)


def expected(first: int, last: int) -> list[Row]:
    return sorted((topic, seq) for topic in TOPICS for seq in range(first, last + 1))


def rows_of(spark: SparkSession, table: pathlib.Path) -> list[Row]:
    if not list(table.glob("_spark_metadata/[0-9]*")):
        return []  # no batch has taken effect
    return [(row["topic"], row["seq"]) for row in spark.read.parquet(str(table)).select("topic", "seq").collect()]


def writer_of_job(
    spark: SparkSession, url: str, group: str, job: StreamingJob, name: str, *, per_batch: int
) -> DataStreamWriter:
    stream = spark.readStream.format("heliograph").options(
        log=url, group=group, query=name, events_per_batch=str(per_batch)
    )
    writer = stream.load().writeStream.format("parquet")
    return writer.options(checkpointLocation=str(job.checkpoint), path=str(job.table))


def take_turns(
    spark: SparkSession, url: str, group: str, job: StreamingJob, name: str, *, per_batch: int = 100
) -> None:
    """Let a job take what is there now, and end."""
    run_to_end(writer_of_job(spark, url, group, job, name, per_batch=per_batch))


@pytest.fixture
def group(log_url: str) -> str:
    with contextlib.closing(durable_log.open(log_url)) as log:
        groups.declare(log, "billing", "+/port", start="earliest")
    return "billing"


def test_two_jobs_of_a_group_have_each_row_in_one_of_them(
    spark: SparkSession, log_url: str, group: str, tmp_path: pathlib.Path
) -> None:
    jobs = {name: StreamingJob(tmp_path, log_url, name=name, group=group) for name in ("a", "b")}
    fill(log_url, first=1, count=40)
    fill(log_url, first=1, count=5, topics=["of-nobody/else"])
    take_turns(spark, log_url, group, jobs["a"], "a")
    fill(log_url, first=41, count=30)
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(RunningQuery(writer_of_job(spark, log_url, group, job, name, per_batch=50)))
            for name, job in jobs.items()
        ]

        def is_done() -> bool:
            with contextlib.closing(durable_log.open(log_url)) as log:
                view = show(log, group)
            assert not any(query.has_failed() for query in running)
            return view.lag == 0 and view.in_work == {}

        wait_until(is_done, 300, "everything taken and acknowledged")
    found = [rows_of(spark, job.table) for job in jobs.values()]
    assert sorted(found[0] + found[1]) == expected(1, 70)


def test_a_pause_a_drain_and_a_seek_hold_for_the_jobs(
    spark: SparkSession, log_url: str, group: str, tmp_path: pathlib.Path
) -> None:
    job = StreamingJob(tmp_path, log_url, name="a", group=group)
    fill(log_url, first=1, count=10)
    with contextlib.closing(durable_log.open(log_url)) as log:
        groups.pause(log, group)
        take_turns(spark, log_url, group, job, "a")
        assert rows_of(spark, job.table) == []
        groups.drain(log, group)
        fill(log_url, first=11, count=10)
        take_turns(spark, log_url, group, job, "a")
        assert sorted(rows_of(spark, job.table)) == expected(1, 10)
        groups.resume(log, group)
        groups.seek(log, group, "earliest")
        take_turns(spark, log_url, group, job, "a")
        assert sorted(rows_of(spark, job.table)) == sorted(expected(1, 10) + expected(1, 20))
        groups.destroy(log, group)
    with pytest.raises(PySparkException, match="no group 'billing' is declared"):
        take_turns(spark, log_url, group, job, "a")


def test_two_jobs_cannot_run_under_one_name(
    spark: SparkSession, log_url: str, group: str, tmp_path: pathlib.Path
) -> None:
    first, second = (StreamingJob(tmp_path, log_url, name=name, group=group) for name in ("first", "second"))
    fill(log_url, first=1, count=10)
    take_turns(spark, log_url, group, first, "a")
    fill(log_url, first=11, count=10)
    with pytest.raises(PySparkException, match="JobNameTaken: the name 'a' belongs to a job with another checkpoint"):
        take_turns(spark, log_url, group, second, "a")
    assert rows_of(spark, second.table) == []
    with contextlib.closing(durable_log.open(log_url)) as log:
        assert release(log, group, "a") == 0
    take_turns(spark, log_url, group, second, "a")
    assert sorted(rows_of(spark, second.table)) == expected(11, 20)
    with pytest.raises(PySparkException, match="JobNameTaken"):
        take_turns(spark, log_url, group, first, "a")
    assert sorted(rows_of(spark, first.table)) == expected(1, 10)


def test_a_checkpoint_can_be_moved_and_of_two_copies_the_older_one_is_refused(
    spark: SparkSession, log_url: str, group: str, tmp_path: pathlib.Path
) -> None:
    first, moved = (StreamingJob(tmp_path, log_url, name=name, group=group) for name in ("first", "moved"))
    fill(log_url, first=1, count=10)
    take_turns(spark, log_url, group, first, "a")
    shutil.copytree(first.checkpoint, moved.checkpoint)
    shutil.copytree(first.table, moved.table)
    fill(log_url, first=11, count=10)
    take_turns(spark, log_url, group, moved, "a")
    assert sorted(rows_of(spark, moved.table)) == expected(11, 20), "its files name those of before by where they lay"
    fill(log_url, first=21, count=10)
    with pytest.raises(PySparkException, match="CheckpointCopied: the checkpoint of the job 'a' is at turn 1"):
        take_turns(spark, log_url, group, first, "a")
    assert sorted(rows_of(spark, first.table)) == expected(1, 10)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"group": "g"}, '"query" is missing'),
        ({"group": "g", "query": "q", "topics": "a"}, "'topics' does not go with a group"),
        ({"group": "g", "query": "q", "start": "latest"}, "'start' does not go with a group"),
    ],
)
def test_options_that_make_no_sense_for_a_group_are_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        SourceOptions({"log": "sqlite:///log.db", **options})


def test_a_batch_is_not_read_again_from_a_log_that_was_restored_and_has_grown(
    log_url: str, group: str, tmp_path: pathlib.Path
) -> None:
    """Without Spark: it would have died between noting the batch and reading it."""
    shutil.copy(tmp_path / "log.db", tmp_path / "older.db")
    fill(log_url, first=1, count=10)
    options = {"log": log_url, "group": group, "query": "a"}
    columns = ReadColumns(StructType().add("offset", "long"))
    reader = GroupStreamReader(SourceOptions(options), columns)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    end = reader.latestOffset(start, ReadAllAvailable())
    assert reader.partitions(start, end) != []
    reader.stop()
    shutil.copy(tmp_path / "older.db", tmp_path / "log.db")
    fill(log_url, first=11, count=50)
    reader = GroupStreamReader(SourceOptions(options), columns)
    with pytest.raises(OtherLog, match="a batch of this checkpoint is at offset .* has grown since"):
        reader.partitions(start, end)
    reader.stop()
