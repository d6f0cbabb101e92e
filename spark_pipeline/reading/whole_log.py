"""Reading a log whole: sealed segments by Spark's own Parquet reader, only the hot tail through Python."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame

import durable_log
from pubsub_api.core.topics import is_wildcard
from spark_pipeline.core.ranges import LogRange, Offsets, to_json
from spark_pipeline.objects import is_url
from spark_pipeline.reading.partitions import shards_of
from spark_pipeline.reading.segment_checker import SegmentChecker
from spark_pipeline.schema import EVENT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


_CHECKER = SegmentChecker()
_VERIFY = "parquet.page.verify-checksum.enabled"
"""Sealed segments have a checksum per page; a flipped byte must not pass for data, in whatever session."""


class ReadPlan(NamedTuple):
    """Where the events of a read come from."""

    sealed: list[durable_log.Segment]
    """Sealed segments that hold any of them."""
    trimmed: list[LogRange]
    """For shards whose segments hold more than was asked for: what of them counts."""
    hot: list[LogRange]
    """What is in no segment, or in segments that are no files."""


def read_log(
    spark: SparkSession,
    url: str,
    *,
    start: Offsets | None = None,
    end: Offsets | None = None,
    topics: Sequence[str] = ("#",),
    shards: Collection[int] | None = None,
) -> DataFrame:
    """The events of a log from ``start`` on, up to but without ``end``, as offsets per shard; by default all that are
    there now, or all of these ``shards``.  Filters apply as they do for subscribers.

    Sealed files are compared with the manifest of the log first, each once per process.  Raises LogUnavailable,
    LogCorrupt naming the file, OffsetTooOld, InvalidTopic.
    """
    with contextlib.closing(durable_log.open(url, must_exist=True)) as log:
        starts, plan = _checked_plan(log, start or {}, end or {}, topics, shards)
    parts = []
    if plan.sealed:
        sealed = (
            spark.read.schema(EVENT_SCHEMA)
            .option(_VERIFY, "true")
            .parquet(*(one.path for one in plan.sealed))
            .where(_within(plan.trimmed))
        )
        parts.append(select_topics(sealed, topics))
    if plan.hot or not parts:
        # A shard that has nothing hot is given an empty range; without any, Python is not started at all.
        begins, untils = dict(starts), dict(starts)
        for shard, begin, until in plan.hot:
            begins[shard], untils[shard] = begin, until
        source = spark.read.format("heliograph").options(log=url, topics=json.dumps(list(topics)))
        parts.append(source.options(start=_text(begins), end=_text(untils)).load())
    return functools.reduce(DataFrame.unionByName, parts)


def _checked_plan(
    log: durable_log.LogApi, start: Offsets, end: Offsets, topics: Sequence[str], shards: Collection[int] | None
) -> tuple[dict[int, int], ReadPlan]:
    """Where the read begins, and its plan, whose files are whole."""
    while True:
        states = log.state()
        starts = {state.shard: state.start for state in states} | dict(start)
        ends = {state.shard: state.end for state in states} | dict(end)
        for state in states:
            if starts[state.shard] < min(state.start, ends[state.shard]):
                raise durable_log.OffsetTooOld(
                    f"shard {state.shard}: offset {starts[state.shard]} is gone, the oldest is {state.start}",
                    start=state.start,
                )
        listed = log.segments()
        wanted = [shard for shard in shards_of(topics, states) if shards is None or shard in shards]
        plan = make_plan([states[shard] for shard in wanted], listed, starts, ends)
        try:
            _CHECKER.check(plan.sealed)
        except durable_log.LogCorrupt:
            if log.segments() == listed:
                raise
            continue  # retention or compaction has put others in their place
        return starts, plan


def make_plan(
    states: Sequence[durable_log.ShardState],
    segments: Sequence[durable_log.Segment],
    starts: Offsets,
    ends: Offsets,
) -> ReadPlan:
    """Divide what was asked for between the sealed and the hot part of each shard.

    Segments in an object store count as hot: Spark's own reader needs a connector for the JVM there, the log's own
    reader, in the tasks, does not.
    """
    plan = ReadPlan([], [], [])
    for state in states:
        start, end = starts[state.shard], ends[state.shard]
        if any(is_url(one.path) for one in segments if one.shard == state.shard):
            if end > start:
                plan.hot.append(LogRange(state.shard, start, end))
            continue
        sealed_end = min(end, state.sealed)
        wanted = [one for one in segments if one.shard == state.shard and one.first < sealed_end and one.end > start]
        plan.sealed.extend(wanted)
        if wanted and (wanted[0].first < start or wanted[-1].end > end):
            plan.trimmed.append(LogRange(state.shard, start, end))
        if end > max(start, state.sealed):
            plan.hot.append(LogRange(state.shard, max(start, state.sealed), end))
    return plan


def _within(trimmed: Sequence[LogRange]) -> Column:
    from pyspark.sql import functions as F  # noqa: PLC0415

    condition = F.lit(True)
    for shard, start, end in trimmed:
        offset = F.col("offset")
        condition &= (F.col("shard") != shard) | ((offset >= start) & (offset < end))
    return condition


def select_topics(events: DataFrame, topics: Sequence[str]) -> DataFrame:
    """The events whose topic any of the filters selects, by a condition that Spark evaluates itself: the same rule as
    `pubsub_api.core.topics.matches`."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    if "#" in topics:
        return events
    condition = F.lit(False)
    for topic_filter in topics:
        condition |= F.col("topic").rlike(rf"\A{filter_pattern(topic_filter)}\z")
    return events.where(condition)


def filter_pattern(topic_filter: str) -> str:
    """A regular expression that matches, whole, exactly the topics that a filter selects.  In the syntax that Java and
    Python share."""
    if not is_wildcard(topic_filter):
        return re.escape(topic_filter)
    *levels, last = ["[^/]*" if level == "+" else re.escape(level) for level in topic_filter.split("/")]
    if last != re.escape("#"):
        pattern = "/".join((*levels, last))
    elif levels:
        pattern = "/".join(levels) + r"(?:/[\s\S]*)?"  # a rest selects its parent too
    else:
        pattern = r"[\s\S]*"
    return r"(?!\$)" + pattern  # wildcards leave alone what Heliograph itself sends


def _text(offsets: Offsets) -> str:
    return json.dumps(to_json(offsets))
