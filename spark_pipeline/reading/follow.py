"""Following a log with sealed segments read by Spark's own Parquet reader.

A source written in Python can hand Spark nothing but rows.  So here the stream consists of ranges of offsets, which
its checkpoint keeps as that of any stream, and each micro-batch reads its ranges as `read_log` does: a backlog that is
sealed goes at the speed of plain Parquet files, and only what is hot goes through Python.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_pipeline.reading.whole_log import read_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Handle = Callable[["DataFrame", int], None]
"""Given the events of a micro-batch and its number.  Called again with the same after a kill."""


def follow(
    spark: SparkSession,
    url: str,
    handle: Handle,
    *,
    topics: Sequence[str] = ("#",),
    options: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """A writer that calls ``handle`` for each micro-batch: give it a checkpoint and a trigger, and start it.

    ``options`` are those of a stream of events, without columns.  A batch is as large as ``maxEventsPerTrigger`` says.
    What removes events between planning and reading a batch ends the query with OffsetTooOld, as for `read_log`.
    """

    def read(ranges: DataFrame, number: int) -> None:
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for shard, start, end in ranges.collect():
            starts[shard] = min(start, starts.get(shard, start))
            ends[shard] = max(end, ends.get(shard, end))
        events = read_log(ranges.sparkSession, url, start=starts, end=ends, topics=topics, shards=starts.keys())
        handle(events, number)

    reader = spark.readStream.format("heliograph").options(**(options or {}), log=url, ranges="true")
    return reader.option("topics", json.dumps(list(topics))).load().writeStream.foreachBatch(read)
