"""Compaction: of all changes of an object only the newest is kept, and deletes win like any other change.

The plan is chosen for speed at size.  The largest version per object is found by a hash aggregate over one number,
which neither sorts nor moves values; a semi-join keeps the rows that have it; and only among those, about one per
object, a window settles ties.  Sorting all changes by object, the obvious plan, moves every value once more.

The join compares a hash of object and version, one number, in place of names: what is sent to every task is smaller,
and looking a row up costs less.  Two that have the same hash only let rows through that the window then drops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_pipeline.schema import AGE_ORDER, OBJECT, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETE = "delete"


def compact(events: DataFrame, *, tombstones_from_ns: int | None = None, keys_fit_in_memory: bool = False) -> DataFrame:
    """The newest change of every object, the columns as they came.

    Objects whose newest change is a delete are left out, unless it happened at or after ``tombstones_from_ns`` (event
    time): then the tombstone stays.  ``keys_fit_in_memory`` sends a number per object to every task instead of moving
    the events, several times faster while these fit into a task's memory.  Ties on version are settled by timestamp,
    publisher and number, so the result does not depend on the order of the rows.  Raises SchemaMismatch.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    require_columns(events, (*OBJECT, *AGE_ORDER, "action"))
    events = events.where(F.col("table").isNotNull())  # what could not be decoded names no object
    newest = events.groupBy(*OBJECT).agg(F.max("version").alias("version"))
    hashes = newest.select(F.xxhash64(*OBJECT, "version").alias("_newest"))
    how = "broadcast" if keys_fit_in_memory else "shuffle_hash"
    is_newest = F.xxhash64(*OBJECT, "version") == hashes["_newest"]
    candidates = events.join(hashes.hint(how), is_newest, "left_semi")
    # Sorting compares the first eight bytes of the first column, and names begin alike: the hash decides at once.
    newest_first = Window.partitionBy(F.xxhash64(*OBJECT), *OBJECT).orderBy(*(F.col(at).desc() for at in AGE_ORDER))
    # The first one is the one with none before it.  Said as "rank 1", Spark would sort before the exchange as well, to
    # send less; but there is about one row per object.
    has_newer = F.lag(F.lit(True)).over(newest_first)
    winners = candidates.withColumn("_has_newer", has_newer).where("_has_newer is null").drop("_has_newer")
    is_kept = F.col("action") != DELETE
    if tombstones_from_ns is not None:
        is_kept |= F.col("timestamp") >= tombstones_from_ns
    return winners.where(is_kept).select(*events.columns)


def count_objects(events: DataFrame) -> int:
    """About how many objects there are, from one quick pass over their names."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    require_columns(events, OBJECT)
    counted = events.agg(F.approx_count_distinct(F.struct(*OBJECT)).alias("objects")).collect()
    return int(counted[0]["objects"])
