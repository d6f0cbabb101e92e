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
from spark_pipeline.reading.whole_log import read_log
from tests.helpers.waiting import wait_until
from tests.spark.cluster import SparkCluster
from tests.spark.conftest import log_frame
from tests.spark.processes import kill_python_worker
from tests.spark.streaming_job import StreamingJob, writer_of
from tests.spark.supervising import RunningQuery, run_to_end
from tests.spark.test_group_source import rows_of, take_turns

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
    run_to_end(writer_of(stream, str(job.checkpoint), job.target))
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
        done = job.batches
        fill(url, first=last + 1, count=EVENTS_PER_ROUND)
        last += EVENTS_PER_ROUND
        job.wait_batches(done + 1)
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
    with RunningQuery(writer_of(stream, str(job.checkpoint), job.target)) as query:
        wait_until(lambda: not query.has_failed() and job.batches >= 2, 300, "two batches")
        wait_until(lambda: kill_python_worker(os.getpid(), random.randrange(8)), 300, "a worker to kill")
        wait_until(lambda: job.batches >= 4 or query.has_failed(), 300, "two more batches, or its end")
    assert finish(spark, log_url, job) == expected(600)


@pytest.mark.chaos
def test_jobs_of_a_group_go_on_exactly_after_an_executor_and_then_the_driver_was_killed(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path
) -> None:
    fill(log_url, first=1, count=600)
    with contextlib.closing(durable_log.open(log_url)) as log:
        groups.declare(log, "work", "#", mode="queue", start="earliest")
    other = StreamingJob(tmp_path, log_url, name="b", group="work")
    # The executor is a process of its own, but its master and worker are in the driver: two JVMs, not four.
    with StreamingJob(tmp_path, log_url, name="a", group="work", master="local-cluster[1,1,1024]") as job:
        job.wait_batches(2)
        wait_until(lambda: job.kill_executor(0), 300, "an executor to kill")
        done = job.batches
        fill(log_url, first=601, count=100)
        job.wait_batches(done + 2)
    fill(log_url, first=701, count=100)  # for the other one, whatever is left
    take_turns(spark, log_url, "work", other, "b", per_batch=20_000)
    take_turns(spark, log_url, "work", job, "a", per_batch=20_000)
    mine, others = rows_of(spark, job.table), rows_of(spark, other.table)
    assert mine
    assert others
    assert sorted(mine + others) == expected(800)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("target", ["files", "log"])
def test_a_driver_killed_at_random_moments(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path, target: str, seed: int
) -> None:
    written = f"sqlite://{tmp_path}/target.db?shards=2" if target == "log" else None
    with StreamingJob(tmp_path, log_url, target=written) as job:
        last = disturb(log_url, job, random.Random(seed), job.kill)
        assert finish(spark, log_url, job) == expected(last)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("victim", ["Python workers", "executors"])
def test_those_who_work_for_a_driver_killed_at_random_moments(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path, victim: str, seed: int
) -> None:
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        if victim == "executors":
            cluster = stack.enter_context(SparkCluster(tmp_path, workers=2))
            job, kill = StreamingJob(tmp_path, log_url, master=cluster.url), cluster.kill_executor
        else:
            job = StreamingJob(tmp_path, log_url)
            kill = job.kill_python_worker
        stack.enter_context(job)
        last = disturb(log_url, job, chance, lambda: kill(chance.randrange(8)))
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
            before = sum(job.batches for job in jobs.values())
            fill(log_url, first=last + 1, count=EVENTS_PER_ROUND)
            last += EVENTS_PER_ROUND
            victim = chance.choice("ab")
            for job in jobs.values():
                if not job.is_running():
                    job.start()
            wait_until(lambda at=before: sum(job.batches for job in jobs.values()) >= at + 3, 300, "three batches")  # type: ignore[misc]
            jobs[victim].kill()
        for job in jobs.values():
            job.kill()
        for name in "abab":
            take_turns(spark, log_url, "work", jobs[name], name, per_batch=20_000)
    rows = [row for job in jobs.values() for row in rows_of(spark, job.table)]
    assert sorted(rows) == expected(last)
