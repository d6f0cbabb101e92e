"""SIGKILL to the driver, to Python workers and to executors, at random moments: no row is lost, none is doubled.

The seed is in the name of the test.  The long runs are chaos tests; each has a short sample that always runs.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import time
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

import durable_log
from shared_subscriptions import groups
from spark_pipeline.reading import read_log
from tests.spark.cluster import SparkCluster
from tests.spark.conftest import log_frame
from tests.spark.streaming_job import StreamingJob, kill_python_worker, writer_of
from tests.spark.test_group_source import rows_of, take_turns
from tests.waiting import wait_until

TOPICS = [f"tenant-{number}/port" for number in range(5)]
ROUNDS = 4
EVENTS_PER_ROUND = 600
LONGEST_S = 1.5


def fill(url: str, *, first: int, count: int) -> None:
    with contextlib.closing(durable_log.open(url)) as log:
        log.append(
            [log_frame(topic, first=start, count=20) for start in range(first, first + count, 20) for topic in TOPICS]
        )


def finish(spark: SparkSession, url: str, job: StreamingJob) -> list[tuple[str, int]]:
    """Let the job come to an end in the session of the tests; returns what it has written."""
    stream = spark.readStream.format("heliograph").options(log=url, events_per_batch="20000").load()
    writer_of(stream, str(job.checkpoint), job.target).trigger(availableNow=True).start().awaitTermination()
    is_log = "://" in job.target
    rows = read_log(spark, job.target) if is_log else spark.read.parquet(job.target)
    return sorted((row[0], row[1]) for row in rows.select("topic", "version").collect())


def expected(last: int) -> list[tuple[str, int]]:
    return sorted((topic, seq) for topic in TOPICS for seq in range(1, last + 1))


def disturb(url: str, job: StreamingJob, chance: random.Random, kill: Callable[[], object]) -> int:
    """Kill again and again, each time at a random moment after the job has moved on.  Returns the last number that was
    appended to each topic."""
    last = 0
    for _ in range(ROUNDS):
        fill(url, first=last + 1, count=EVENTS_PER_ROUND)
        last += EVENTS_PER_ROUND
        job.wait_batches(job.batches + 1)
        moment = time.monotonic() + chance.uniform(0, LONGEST_S)
        wait_until(lambda at=moment: time.monotonic() >= at, 30, "the moment")  # type: ignore[misc]
        kill()
    job.kill()
    return last


def test_a_query_goes_on_exactly_after_its_python_worker_was_killed(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path
) -> None:
    job = StreamingJob(tmp_path, log_url)
    fill(log_url, first=1, count=600)
    stream = spark.readStream.format("heliograph").options(log=log_url, events_per_batch="150").load()
    query = stream.writeStream.format("parquet").option("checkpointLocation", str(job.checkpoint)).start(str(job.table))
    wait_until(lambda: job.batches >= 2, 120, "two batches")
    wait_until(lambda: kill_python_worker(os.getpid(), random.randrange(8)), 60, "a worker to kill")
    wait_until(lambda: job.batches >= 4 or query.exception() is not None, 120, "two more batches, or its end")
    query.stop()
    assert finish(spark, log_url, job) == expected(600)


def test_jobs_of_a_group_go_on_exactly_after_an_executor_and_then_the_driver_was_killed(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path
) -> None:
    fill(log_url, first=1, count=600)
    with contextlib.closing(durable_log.open(log_url)) as log:
        groups.declare(log, "work", "#", mode="queue", start="earliest")
    other = StreamingJob(tmp_path, log_url, name="b", group="work")
    # Two executors, each a process of its own, but their master and workers are in the driver: three JVMs, not six.
    with StreamingJob(tmp_path, log_url, name="a", group="work", master="local-cluster[2,1,1024]") as job:
        job.wait_batches(2)
        wait_until(lambda: job.kill_executor(random.randrange(2)), 60, "an executor to kill")
        job.wait_batches(job.batches + 2)
        job.kill()
        assert job.batches < 20, "it was not done yet"
        take_turns(spark, log_url, "work", other, "b", per_batch=20_000)
        take_turns(spark, log_url, "work", job, "a", per_batch=20_000)
    mine, others = rows_of(spark, job.table), rows_of(spark, other.table)
    assert mine
    assert others
    assert sorted(mine + others) == expected(600)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_a_driver_killed_at_random_moments(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path, seed: int
) -> None:
    with StreamingJob(tmp_path, log_url) as job:
        last = disturb(log_url, job, random.Random(seed), job.kill)
        assert finish(spark, log_url, job) == expected(last)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_a_driver_that_writes_to_a_log_killed_at_random_moments(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path, seed: int
) -> None:
    with StreamingJob(tmp_path, log_url, target=f"sqlite://{tmp_path}/target.db?shards=2") as job:
        last = disturb(log_url, job, random.Random(seed), job.kill)
        assert finish(spark, log_url, job) == expected(last)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_python_workers_killed_at_random_moments(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path, seed: int
) -> None:
    chance = random.Random(seed)
    with StreamingJob(tmp_path, log_url) as job:
        last = disturb(log_url, job, chance, lambda: job.kill_python_worker(chance.randrange(8)))
        assert finish(spark, log_url, job) == expected(last)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_executors_killed_at_random_moments(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path, seed: int
) -> None:
    chance = random.Random(seed)
    with (
        SparkCluster(tmp_path, workers=2) as cluster,
        StreamingJob(tmp_path, log_url, master=cluster.url) as job,
    ):
        last = disturb(log_url, job, chance, lambda: cluster.kill_executor(chance.randrange(4)))
        assert finish(spark, log_url, job) == expected(last)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", ["shared", "queue"])
def test_two_jobs_of_a_group_killed_at_random_moments(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path, mode: str, seed: int
) -> None:
    chance = random.Random(seed)
    with contextlib.closing(durable_log.open(log_url)) as log:
        groups.declare(log, "work", "#", mode=mode, start="earliest")  # type: ignore[arg-type]
    with contextlib.ExitStack() as stack:
        jobs = {
            name: stack.enter_context(StreamingJob(tmp_path, log_url, name=name, group="work")) for name in ("a", "b")
        }
        last = 0
        for _ in range(ROUNDS):
            fill(log_url, first=last + 1, count=EVENTS_PER_ROUND)
            last += EVENTS_PER_ROUND
            victim = chance.choice("ab")
            for job in jobs.values():
                if not job.is_running():
                    job.start()
            before = sum(job.batches for job in jobs.values())
            wait_until(lambda at=before: sum(job.batches for job in jobs.values()) >= at + 3, 300, "three batches")  # type: ignore[misc]
            jobs[victim].kill()
        for job in jobs.values():
            job.kill()
        for name in "abab":
            take_turns(spark, log_url, "work", jobs[name], name, per_batch=20_000)
    rows = [row for job in jobs.values() for row in rows_of(spark, job.table)]
    assert sorted(rows) == expected(last)
