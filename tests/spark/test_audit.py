"""Audit: every kind of damage is found, with its ranges, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_pipeline.jobs import audit
from tests.spark.conftest import event_row, frame_of, plain_rows

A, B = b"a" * 16, b"b" * 16


def stream(guid: bytes, topic: str, numbers: Iterable[int]) -> list[tuple[Any, ...]]:
    return [event_row(guid=guid, topic=topic, seq=seq, offset=offset) for offset, seq in enumerate(numbers)]


def heads(spark: SparkSession, *rows: tuple[bytes, str, int, int, int | None]) -> DataFrame:
    return spark.createDataFrame(rows, "guid binary, topic string, first bigint, last bigint, missing bigint")


def plain(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(plain_rows(frame))


def test_counts_per_stream(spark: SparkSession) -> None:
    many = [seq for seq in range(1, 70_001) if seq not in (5, 6, 40_000)]  # more than one bitmap
    events = frame_of(spark, stream(A, "t", [*many, 9, 9]) + stream(B, "t", [3, 4]) + stream(A, "u", [1, 2]))
    assert plain(audit.count_streams(events)) == [
        (A, "t", 69_999, 69_997, 1, 70_000, 3, 0, 2),
        (A, "u", 2, 2, 1, 2, 0, 0, 0),
        (B, "t", 2, 2, 3, 4, 2, 0, 0),
    ]


def test_what_publishers_numbered_shows_losses_at_the_ends_and_whole_streams(spark: SparkSession) -> None:
    events = frame_of(spark, stream(A, "t", [3, 4, 6]) + stream(A, "v", [3, 4, 9]) + stream(B, "v", [7]))
    numbered = heads(spark, (A, "t", 3, 9, None), (B, "t", 1, 2, None), (A, "v", 1, 12, 2))
    assert plain(audit.count_streams(events, numbered)) == [
        (A, "t", 3, 3, 3, 6, 4, 0, 0),
        (A, "v", 3, 3, 3, 9, 2, 7, 0),
        (B, "t", 0, 0, None, None, 2, 0, 0),
        (B, "v", 1, 1, 7, 7, 0, 0, 0),
    ]
    assert plain(audit.lost_ranges(events, numbered)) == [(A, "t", 5, 5), (A, "t", 7, 9), (B, "t", 1, 2)]


def test_ranges_that_are_lost_or_doubled(spark: SparkSession) -> None:
    events = frame_of(spark, stream(A, "t", [2, 3, 7, 8, 8, 9, 9, 9, 12, 7]))
    assert plain(audit.lost_ranges(events)) == [(A, "t", 1, 1), (A, "t", 4, 6), (A, "t", 10, 11)]
    assert plain(audit.duplicated_ranges(events)) == [(A, "t", 7, 8, 2), (A, "t", 9, 9, 3)]


def test_events_recorded_after_a_later_one_are_counted(spark: SparkSession) -> None:
    events = frame_of(spark, stream(A, "t", [1, 3, 2, 5, 4, 4]) + stream(B, "t", [1, 2, 3]))
    assert plain(audit.reordered(events)) == [(A, "t", 3)]


def test_delays_over_all_and_by_topic(spark: SparkSession) -> None:
    rows = [
        event_row(topic=topic, timestamp=1_000, appended_ns=1_000 + milliseconds * 1_000_000)
        for topic, milliseconds in (*(("fast", 1),) * 98, ("fast", 50), ("slow", 2000))
    ]
    overall = audit.delays(frame_of(spark, rows)).collect()[0].asDict()
    assert overall == {"events": 100, "p50_ms": 1.0, "p90_ms": 1.0, "p99_ms": 50.0, "p99.9_ms": 2000.0}
    by_topic = {row["topic"]: row["p50_ms"] for row in audit.delays(frame_of(spark, rows), by=["topic"]).collect()}
    assert by_topic == {"fast": 1.0, "slow": 2000.0}


def test_nothing_recorded_and_nothing_numbered_is_an_empty_report(spark: SparkSession) -> None:
    events = frame_of(spark, [])
    assert plain(audit.count_streams(events)) == []
    assert plain(audit.lost_ranges(events)) == []
    assert plain(audit.duplicated_ranges(events)) == []
    assert plain(audit.reordered(events)) == []
