"""Merge: two data sets that diverged become one, by the policies of the durability service.

========  =====================================================
policy    the result
========  =====================================================
IGNORE    what is here
DELETE    what is here and newer than ``t``
MERGE     the union
REPLACE   the other set, and what is here and newer than ``t``
CATCHUP   the same set as REPLACE
========  =====================================================

Of each instance (topic, table, key) the newest ``depth`` samples are kept, and none older than its newest delete.
Which sample is newer is decided by timestamp, publisher and number, as everywhere.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from spark_pipeline.jobs.compact import DELETE
from spark_pipeline.schema import require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INSTANCE = ("topic", "table", "key")
SAMPLE_ORDER = ("timestamp", "guid", "seq")
CONTENT = (*INSTANCE, *SAMPLE_ORDER, "action", "value", "version")


class SnapshotMergePolicy(enum.Enum):
    IGNORE = "IGNORE"
    DELETE = "DELETE"
    MERGE = "MERGE"
    REPLACE = "REPLACE"
    CATCHUP = "CATCHUP"


def merge(policy: SnapshotMergePolicy, local: DataFrame, remote: DataFrame, *, t: int, depth: int = 1) -> DataFrame:
    """What a set becomes when it meets another one.  ``t`` is the time of the request: what was written here after it
    is never touched.  Both sets have the columns of an event; they come out as they are in ``local``."""
    for side in (local, remote):
        require_columns(side, CONTENT)
    if policy is SnapshotMergePolicy.IGNORE:
        return local
    newer = local.where(local["timestamp"] > t)
    if policy is SnapshotMergePolicy.DELETE:
        return newer
    return keep_newest(local if policy is SnapshotMergePolicy.MERGE else newer, remote, depth=depth)


def keep_newest(local: DataFrame, remote: DataFrame, *, depth: int) -> DataFrame:
    """The union, with of each instance its newest samples.  A sample that both have is taken from ``local``."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    both = local.withColumn("_side", F.lit(0)).unionByName(remote.select(*local.columns).withColumn("_side", F.lit(1)))
    newest_first = [F.col(name).desc() for name in SAMPLE_ORDER]
    instance = Window.partitionBy(*INSTANCE).orderBy(*newest_first, "_side")
    sample = F.struct(*SAMPLE_ORDER)
    before = instance.rowsBetween(Window.unboundedPreceding, -1)
    is_delete = (F.col("action") == DELETE).cast("int")
    return (
        both.withColumn("_again", F.lag(sample).over(instance).eqNullSafe(sample))
        .withColumn("_rank", F.dense_rank().over(Window.partitionBy(*INSTANCE).orderBy(*newest_first)))
        .withColumn("_deletes", F.coalesce(F.sum(is_delete).over(before), F.lit(0)))
        .where((~F.col("_again")) & (F.col("_rank") <= depth) & (F.col("_deletes") == 0))
        .select(*local.columns)
    )


def digest(samples: DataFrame) -> tuple[int, int, int]:
    """A number of samples and two sums of hashes over their content.  Equal for equal sets, whatever the order of their
    rows; different for different ones but for a chance of one in 2**128."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    require_columns(samples, CONTENT)
    hashes = [F.sum(F.xxhash64(F.lit(salt), *CONTENT).cast("decimal(38,0)")) for salt in (1, 2)]
    found = samples.agg(F.count("*"), *hashes).collect()[0]
    return int(found[0]), int(found[1] or 0), int(found[2] or 0)


def merge_if_different(
    policy: SnapshotMergePolicy, local: DataFrame, remote: DataFrame, *, t: int, depth: int = 1
) -> tuple[DataFrame, bool]:
    """The merged set, and whether anything had to be moved.  Equal sets are found by comparing digests, one pass over
    each, and then ``local`` is the result as it is.  As in the service, this makes no difference to DELETE."""
    is_comparable = policy in (SnapshotMergePolicy.MERGE, SnapshotMergePolicy.REPLACE, SnapshotMergePolicy.CATCHUP)
    if is_comparable and digest(local) == digest(remote):
        return local, False
    return merge(policy, local, remote, t=t, depth=depth), policy is not SnapshotMergePolicy.IGNORE
