"""Ingest: what a log has gained goes into the lake, exactly once, in commits of bounded size."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import durable_log
from spark_pipeline.lake import LakeTable
from spark_pipeline.ranges import advance
from spark_pipeline.reading import read_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclasses.dataclass(frozen=True)
class Taken:
    """One commit."""

    events: int
    """Events taken in by it."""
    left: int
    """Events of the log that were there when it began and are not in yet."""
    lost: int
    """Events that the log dropped before they were taken in."""


def ingest(spark: SparkSession, url: str, table: LakeTable, *, events_max: int) -> Iterator[Taken]:
    """Take in everything that the log holds now, one commit after the other; each is yielded when it is in effect.

    Where it goes on is read from the table before every commit, so it may be stopped at any moment and started again
    anywhere.  Raises PipelineError, LogError.
    """
    with contextlib.closing(durable_log.open(url)) as log:
        ends = {state.shard: state.end for state in log.state()}
        while True:
            begins = table.offsets(log.shards)
            oldest = {state.shard: state.start for state in log.state()}
            starts = {shard: max(begin, oldest[shard]) for shard, begin in begins.items()}
            waiting = {shard: max(starts[shard], end) for shard, end in ends.items()}
            if waiting == starts:
                return
            until = advance(starts, waiting, events_max=events_max)
            rows = table.append(read_log(spark, url, start=starts, end=until), until)
            yield Taken(
                events=rows,
                left=sum(waiting[shard] - until[shard] for shard in until),
                lost=sum(starts[shard] - begin for shard, begin in begins.items()),
            )
