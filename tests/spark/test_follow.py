"""Following a log: a sealed backlog is read by Spark's own reader, and every event comes once."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import durable_log
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.errors import UsageError
from spark_pipeline.reading.follow import follow
from tests.spark.conftest import log_frame

TOPICS = ("a/port", "b/port", "c/port")


def append(url: str, *, first: int, count: int, seal: bool) -> None:
    with contextlib.closing(durable_log.open(url)) as log:
        log.append([log_frame(topic, first=first, count=count) for topic in TOPICS])
        assert isinstance(log, SegmentedLog)
        for shard in range(log.shards if seal else 0):
            Sealer(log).seal(shard)


def test_each_event_of_a_sealed_backlog_and_of_what_comes_later_is_in_one_batch(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path
) -> None:
    append(log_url, first=1, count=100, seal=True)
    batches: list[tuple[list[tuple[str, int]], bool]] = []

    def handle(events: DataFrame, _number: int) -> None:
        rows = [(row["topic"], row["seq"]) for row in events.collect()]
        batches.append((rows, bool(events.inputFiles())))

    def run() -> None:
        writer = follow(spark, log_url, handle, topics=["a/#", "b/port"], options={"maxEventsPerTrigger": "120"})
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    assert len(batches) > 1, "batches are bounded"
    assert all(is_native for _, is_native in batches), "files are read by Spark itself"
    append(log_url, first=101, count=5, seal=False)
    before = len(batches)
    run()
    assert not any(is_native for _, is_native in batches[before:])
    found = [row for rows, _ in batches for row in rows]
    assert sorted(found) == [(topic, number) for topic in TOPICS[:2] for number in range(1, 106)]


@pytest.mark.parametrize("wrong", [{"columns": "topic"}, {"group": "billing", "query": "one"}])
def test_ranges_have_no_columns_and_belong_to_no_group(
    spark: SparkSession, log_url: str, wrong: dict[str, Any]
) -> None:
    append(log_url, first=1, count=1, seal=False)
    with pytest.raises(Exception, match="option 'ranges' goes neither with a group nor with columns") as raised:
        follow(spark, log_url, lambda *_: None, options=wrong)
    assert UsageError.__name__ in str(raised.value)
