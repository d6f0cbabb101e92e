"""Ingest: what a log has gained goes into the lake, exactly once, in commits of bounded size."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import durable_log
from spark_pipeline.core.ranges import LogRange, Offsets, advance
from spark_pipeline.errors import LakeConflict
from spark_pipeline.jobs import stream_heads as heads
from spark_pipeline.lake import LakeTable, LakeVersion
from spark_pipeline.reading.checkpoints import check_reached, check_times, times_before
from spark_pipeline.reading.partitions import count_dropped
from spark_pipeline.reading.whole_log import read_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)

_CONFLICTS_MAX = 20
"""So often in a row another job may be faster."""


@dataclasses.dataclass(frozen=True)
class IngestedRange:
    """One commit."""

    events: int
    """Events taken in by it."""
    left: int
    """Events of the log that were there when it began and are not in yet."""
    lost: int
    """Events that the log dropped before they were taken in."""


def ingest(spark: SparkSession, url: str, table: LakeTable, *, events_max: int) -> Iterator[IngestedRange]:
    """Take in everything that the log holds now, one commit after the other; each is yielded when it is in effect.

    Where it goes on is read from the version of the table that the commit is made on, so it may be stopped at any
    moment and started again anywhere, and several may run at once: one that another commit overtakes looks again.
    Raises OtherLog when the log is an older copy of what was taken in, PipelineError, LogError.
    """
    with contextlib.closing(durable_log.open(url, must_exist=True)) as log:
        ends = {state.shard: state.end for state in log.state()}
        table.current()  # makes it
        heads.note_beside(table.place, log)  # before the rows, so that it is never behind them
        conflicts = 0
        while True:
            version = table.current()
            step = _next_step(log, version, ends, events_max)
            if step is None:
                return
            try:
                events = read_log(spark, url, start=step.starts, end=step.until)
                rows = version.append(events, log.identity, step.until, times_before(log, step.until))
            except LakeConflict:
                conflicts += 1
                if conflicts == _CONFLICTS_MAX:
                    raise
                LOG.info("Table %s: another job committed first; looking again.", table.place)
                continue
            conflicts = 0
            yield IngestedRange(events=rows, left=step.left, lost=step.lost)


def count_waiting(url: str, table: LakeTable) -> int:
    """How many events `ingest` would take in now."""
    with contextlib.closing(durable_log.open(url, must_exist=True)) as log:
        states = log.state()
        begins = table.current().offsets(log.identity, len(states))
        return sum(max(0, state.end - max(state.start, begins[state.shard])) for state in states)


class _Step(NamedTuple):
    """What the next commit takes in."""

    starts: dict[int, int]
    until: dict[int, int]
    left: int
    lost: int


def _next_step(log: durable_log.LogApi, version: LakeVersion, ends: Offsets, events_max: int) -> _Step | None:
    states = log.state()
    begins = version.offsets(log.identity, len(states))
    check_reached(states, begins, "the table")
    starts = {state.shard: max(begins[state.shard], state.start) for state in states}
    # Shards that the log was given since it began are for the next time.
    waiting = {shard: max(start, ends.get(shard, 0)) for shard, start in starts.items()}
    if waiting == starts:
        return None
    check_times(log, begins, version.times(log.identity, len(states)), "the table")
    until = advance(starts, waiting, events_max=events_max)
    left = sum(waiting[shard] - until[shard] for shard in until)
    planned = [LogRange(shard, first, until[shard]) for shard, first in starts.items()]
    lost = sum(starts[shard] - begin for shard, begin in begins.items()) + count_dropped(log, ["#"], planned)
    return _Step(starts, until, left, lost)
