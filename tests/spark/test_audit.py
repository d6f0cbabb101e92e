"""Audit: every kind of damage is found, with its ranges, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_pipeline.jobs import audit
from spark_pipeline.jobs.periods import PERIODS_MAX, MissingNumbers, PeriodReport, over_time, step_s
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


def test_what_is_wrong_stands_in_the_period_in_which_it_was_recorded(spark: SparkSession) -> None:
    def at(second: int, seq: int, delay_ms: int = 1, **fields: Any) -> tuple[Any, ...]:
        now_ns = second * 10**9
        return event_row(
            guid=A, seq=seq, offset=second, timestamp=now_ns - delay_ms * 10**6, appended_ns=now_ns, **fields
        )

    undecodable: dict[str, Any] = dict.fromkeys(("table", "key", "action", "value", "version"))
    rows = [at(100, 1), at(101, 2, 9), at(103, 6), at(104, 5), at(105, 5), at(105, 6), at(105, 7, **undecodable)]
    lost = [MissingNumbers(A, "t", 3, 4), MissingNumbers(A, "t", 8, 9)]
    assert over_time(frame_of(spark, rows), lost) == (
        1,
        [
            PeriodReport("1970-01-01 00:01:40+00:00", 1, 0, 0, 0, 0, 1.0, 1.0),
            PeriodReport("1970-01-01 00:01:41+00:00", 1, 0, 0, 0, 0, 9.0, 9.0),
            PeriodReport("1970-01-01 00:01:42+00:00", 0, 0, 0, 0, 0, None, None),
            PeriodReport("1970-01-01 00:01:43+00:00", 1, 0, 0, 0, 0, 1.0, 1.0),
            PeriodReport("1970-01-01 00:01:44+00:00", 1, 2, 0, 1, 0, 1.0, 1.0),
            PeriodReport("1970-01-01 00:01:45+00:00", 3, 0, 2, 1, 1, 1.0, 1.0),
        ],
    )
    assert over_time(frame_of(spark, [])) == (1, [])


def test_periods_are_as_short_as_their_number_allows() -> None:
    second = 10**9
    for length_s, step in ((0, 1), (PERIODS_MAX - 1, 1), (PERIODS_MAX, 10), (86_400, 900), (3 * 10**8, 30 * 86_400)):
        assert step_s(0, length_s * second) == step
    assert step_s(0, 10**11 * second) > 365 * 86_400
