"""Audit: what of each stream is lost, doubled or out of order, and how long events took.

Counting uses bitmaps: one bit per number, built by a hash aggregate, so that a stream of any length costs a few
kilobytes per task.  Ranges are worked out only for the streams that the counts show to be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_pipeline.schema import LOG, STREAM, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUANTILES = (0.5, 0.9, 0.99, 0.999)
_QUANTILE_ACCURACY = 10_000


def count_streams(events: DataFrame, heads: DataFrame | None = None) -> DataFrame:
    """Per stream: ``events``, ``distinct``, ``first``, ``last``, ``lost``, ``not_kept``, ``duplicated``.

    A stream starts at 1, so everything before ``first`` counts as lost.  Not so with ``heads``, which says where each
    one starts; of a stream that it does not know, nothing before what is there is expected.  It has what is expected
    (`spark_pipeline.jobs.stream_heads`): ``guid``, ``topic``, ``first``, ``last``, and ``missing``, how many of those
    numbers no log ever saw, or null.  With it, events lost at the end, and streams of which nothing was recorded, are
    found too; and what is not there and not missing counts as ``not_kept``: skipped by its publisher, or
    removed since by retention or compaction.  Raises SchemaMismatch.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415

    require_columns(events, (*STREAM, "seq"))
    # The bitmap functions count from 0 within a bucket; the type of ``seq`` is what they expect.
    buckets = events.groupBy(*STREAM, F.bitmap_bucket_number("seq").alias("bucket")).agg(
        F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position("seq"))).alias("distinct"),
        F.count("*").alias("events"),
        F.min("seq").alias("first"),
        F.max("seq").alias("last"),
    )
    counted = buckets.groupBy(*STREAM).agg(
        F.sum("events").alias("events"),
        F.sum("distinct").alias("distinct"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )
    expected_first, expected_last, missing = F.lit(1).cast("bigint"), F.col("last"), F.lit(None).cast("bigint")
    if heads is not None:
        numbered = heads.select(*STREAM, *(F.col(name).alias(f"_{name}") for name in ("first", "last", "missing")))
        counted = counted.join(numbered, list(STREAM), "full_outer").fillna(0, ["events", "distinct"])
        expected_first = F.coalesce("_first", "first")
        expected_last = F.greatest("last", "_last")  # skips nulls
        missing = F.col("_missing")
    absent = F.greatest(F.lit(0), expected_last - expected_first + 1 - F.col("distinct"))
    lost = F.least(absent, missing)  # skips nulls; and a hole may have been closed since the log was asked
    return counted.select(
        *STREAM, "events", "distinct", "first", "last", lost.alias("lost"), (absent - lost).alias("not_kept"),
        (F.col("events") - F.col("distinct")).alias("duplicated"),
    )  # fmt: skip


def lost_ranges(events: DataFrame, heads: DataFrame | None = None) -> DataFrame:
    """``guid``, ``topic``, ``first``, ``last`` of every range of numbers that is missing, by stream and number.

    Streams of which ``heads`` knows what is missing are left out: their ranges are known already.  Sorts the numbers of
    each stream, so give it the streams that `count_streams` found wrong.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    require_columns(events, (*STREAM, "seq"))
    if heads is not None:
        events = events.join(heads.where("missing is not null"), list(STREAM), "left_anti")
        heads = heads.where("missing is null")
    numbers = events.select(*STREAM, "seq").distinct()
    if heads is not None:
        # Sentinels around what was numbered turn a loss at either end into a hole like any other.
        before = heads.select(*STREAM, (F.col("first") - 1).alias("seq"))
        after = heads.select(*STREAM, (F.col("last") + 1).alias("seq"))
        numbers = numbers.union(before).union(after).distinct()
    previous = F.lag("seq").over(Window.partitionBy(*STREAM).orderBy("seq"))
    start = F.lit(0) if heads is None else F.col("seq") - 1
    return (
        numbers.withColumn("previous", F.coalesce(previous, start))
        .where("seq > previous + 1")
        .select(*STREAM, (F.col("previous") + 1).alias("first"), (F.col("seq") - 1).alias("last"))
        .orderBy(*STREAM, "first")
    )


def duplicated_ranges(events: DataFrame) -> DataFrame:
    """``guid``, ``topic``, ``first``, ``last``, ``times`` of every run of numbers recorded equally often, more than
    once."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    require_columns(events, (*STREAM, "seq"))
    repeated = events.groupBy(*STREAM, "seq").agg(F.count("*").alias("times")).where("times > 1")
    # Numbers of one run differ from their rank by the same amount.
    rank = F.row_number().over(Window.partitionBy(*STREAM, "times").orderBy("seq"))
    return (
        repeated.withColumn("run", F.col("seq") - rank)
        .groupBy(*STREAM, "times", "run")
        .agg(F.min("seq").alias("first"), F.max("seq").alias("last"))
        .select(*STREAM, "first", "last", "times")
        .orderBy(*STREAM, "first")
    )


def late_events(events: DataFrame) -> DataFrame:
    """The events that were recorded after one of a higher number of their stream.  Recording order is that of ``shard``
    and ``offset``."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    require_columns(events, (*STREAM, "seq", "shard", "offset"))
    place = ("shard", "offset")  # in a log: those of two logs cannot be compared
    of_log = [LOG] if LOG in events.columns else []
    so_far = Window.partitionBy(*of_log, *STREAM).orderBy(*place).rowsBetween(Window.unboundedPreceding, -1)
    return events.withColumn("highest", F.max("seq").over(so_far)).where("seq < highest").drop("highest")


def reordered(events: DataFrame) -> DataFrame:
    """Per stream, ``reordered``: how many `late_events` it has.  Streams in order are left out."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    return late_events(events).groupBy(*STREAM).agg(F.count("*").alias("reordered")).orderBy(*STREAM)


def delays(events: DataFrame, by: Sequence[str] = (), quantiles: Sequence[float] = QUANTILES) -> DataFrame:
    """``events`` and the quantiles of the milliseconds from publishing to recording, ``p50_ms`` and so on, over all or
    by columns.  The two times come from the clocks of two hosts, so a negative delay means that these differ."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    require_columns(events, ("timestamp", "appended_ns"))
    delay_ms = (F.col("appended_ns") - F.col("timestamp")) / 1e6
    sketch = events.groupBy(*by).agg(
        F.count("*").alias("events"),
        F.percentile_approx(delay_ms, list(quantiles), _QUANTILE_ACCURACY).alias("at"),
    )
    named = [F.col("at")[position].alias(f"p{quantile * 100:g}_ms") for position, quantile in enumerate(quantiles)]
    return sketch.select(*by, "events", *named)
