"""What a read may ask for: columns, times, decoded values, where to begin, and to go on without what is gone."""

from __future__ import annotations

import contextlib
import datetime
import json
import pathlib
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

import durable_log
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.frame import Kind
from spark_pipeline.reading.lag import QueryLag, lag_of
from tests.spark.conftest import log_frame
from tests.spark.supervising import run

VALUES = [{"up": True, "mtu": 1500, "tags": ["a", None]}, {"mtu": 2**40}, "no object", None, {"up": None, "more": 1}]
"""Of events 1, 2, ...: one that fits, two that do not, none, and one with other fields."""
SCHEMA = "up boolean, mtu int, tags array<string>"
NOON_NS = 1_780_000_000_123_456_789


def fill_with_values(url: str, *, seals: bool) -> None:
    encoded = [
        encode_event(Event(table="port", key=f"p{number}", action="set", value=value), NOON_NS)
        for number, value in enumerate(VALUES, 1)
    ]
    unreadable = frames.pack(Kind.DATA, b"x" * 16, "t", b"\x01", first=1, count=1, timestamp=1)
    frame = frames.pack(Kind.DATA, b"g" * 16, "t", pack_body(encoded), first=1, count=len(encoded), timestamp=1)
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.append([frame, unreadable])
        if seals:
            Sealer(log).seal(0)


def wanted_fields() -> list[tuple[Any, Any]]:
    return [
        ((True, 1500, ["a", None]), None),
        (None, msgspec.msgpack.encode(VALUES[1])),
        (None, msgspec.msgpack.encode(VALUES[2])),
        (None, None),
        ((None, None, None), None),
        (None, None),
    ]


@pytest.mark.parametrize("seals", [False, True], ids=["hot", "sealed"])
def test_columns_times_and_fields_are_made_as_asked_for(
    spark: SparkSession, tmp_path: pathlib.Path, seals: bool
) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=1"
    fill_with_values(url, seals=seals)
    columns = "offset, event_time, append_time, appended_ns, fields, bad_value"
    source = spark.read.format("heliograph").option("log", url)
    rows = source.options(columns=columns, value_schema=SCHEMA, topics="t").load().orderBy("offset").collect()
    assert [(row["fields"], row["bad_value"]) for row in rows] == wanted_fields()
    assert rows[0].__fields__ == columns.split(", ")
    assert {row["event_time"] for row in rows[:5]} == {local_time(NOON_NS)}
    assert rows[5]["event_time"] is None, "it could not be decoded"
    assert [row["append_time"] for row in rows] == [local_time(row["appended_ns"]) for row in rows]
    if seals:
        return
    asked = spark.read.format("heliograph").option("log", url).schema(f"fields struct<{SCHEMA}>, seq bigint").load()
    assert [row["fields"] for row in asked.collect()] == [fields for fields, _ in wanted_fields()]


def local_time(nanoseconds: int) -> datetime.datetime:
    """As Python gets a timestamp from Spark, in the zone of this process."""
    return datetime.datetime.fromtimestamp(nanoseconds // 10**9).replace(microsecond=nanoseconds // 1000 % 10**6)


class Followed:
    """A stream of a log that is run, batch by batch, as far as the log goes."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: pathlib.Path) -> None:
        self._spark, self._url, self._checkpoint = spark, url, checkpoint
        self.numbers: list[int] = []
        self.progress: list[StreamingQueryProgress] = []

    def run(self, **options: str) -> None:
        stream = self._spark.readStream.format("heliograph").options(
            log=self._url, columns="seq, event_time", **options
        )
        in_time = stream.load().withWatermark("event_time", "1 minute")

        def take(batch: DataFrame, _: int) -> None:
            self.numbers += [row["seq"] for row in batch.collect()]

        def follow() -> None:
            writer = in_time.writeStream.foreachBatch(take).option("checkpointLocation", str(self._checkpoint))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            self.progress = [one for one in query.recentProgress if one.numInputRows]

        run(follow)


def test_a_stream_tells_its_lag_and_fails_on_loss_unless_told_otherwise(
    spark: SparkSession, tmp_path: pathlib.Path
) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=1"
    followed = Followed(spark, url, tmp_path / "checkpoint")
    with contextlib.closing(durable_log.open(url)) as log:
        log.append([log_frame("t", first=1, count=5)])
        log.append([log_frame("t", first=6, count=10), log_frame("t", first=16, count=10)])
        followed.run(maxEventsPerTrigger="10", startingTimestamp="0")
        assert followed.numbers == list(range(1, 26))
        assert [(one.numInputRows, lag_of(one)) for one in followed.progress] == [
            (10, QueryLag(15, 0)),
            (10, QueryLag(5, 0)),
            (5, QueryLag(0, 0)),
        ]
        assert followed.progress[-1].eventTime["max"].startswith("1970-01-01"), "nanoseconds 21 to 25"
        log.append([log_frame("t", first=26, count=10), log_frame("t", first=36, count=4)])
        assert log.trim(0, 35) == 35
    with pytest.raises(PySparkException, match=r"OffsetTooOld: shard 0: offsets 25 to 34 .* failOnDataLoss=false"):
        followed.run()
    assert followed.numbers == list(range(1, 26))
    followed.run(failOnDataLoss="false", maxEventsPerTrigger="3")
    assert followed.numbers[25:] == [36, 37, 38, 39]
    assert [lag_of(one) for one in followed.progress] == [QueryLag(1, 10), QueryLag(0, 10)]
    source = spark.read.format("heliograph").options(log=url, start=json.dumps({"0": 30}))
    with pytest.raises(PySparkException, match="OffsetTooOld: shard 0: offsets 30 to 34"):
        run(lambda: source.load().count())
    assert source.option("failOnDataLoss", "false").load().count() == 4
