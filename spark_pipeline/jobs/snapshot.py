"""A snapshot: the newest version of every object, in Parquet files, and a manifest that says what it covers.

The manifest is written last, so a directory without one is not a snapshot.  It names, per shard of the log, the offset
up to which every event is in: load the objects, then go on there.  What the log has missed is not in it; `nb_api.
snapshot_files.complete` compares it with the database and makes it a resync source of controllers.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from nb_api.cache import snapshot_files
from nb_api.cache.snapshot_files import Manifest
from nb_api.errors import SourceUnavailable
from spark_pipeline.errors import PipelineError
from spark_pipeline.jobs.compact import DELETE, compact, count_objects
from spark_pipeline.paths import local_path
from spark_pipeline.schema import EVENT_COLUMNS, EVENT_SCHEMA, LOG
from spark_pipeline.writing.job_directories import attempt, put_in_place, unfinished

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OBJECTS = snapshot_files.OBJECTS
_BYTES_PER_NAME = 200
_NAMES_BYTES_MAX = 256 * 1024 * 1024
"""While the names of all objects take less than about this, they are sent to every task."""


class SnapshotObject(NamedTuple):
    table: str
    key: str
    topic: str
    value: object
    version: int


def write_snapshot(
    events: DataFrame, directory: str, *, tombstones_from_ns: int | None = None, log: str = ""
) -> Manifest:
    """Compact events into a new directory, which appears when it is whole.  Blocks.

    ``log`` is the identity of the log that the events are from, where they do not say so themselves, as those of the
    lake do.  It is made beside its place, in ``<directory>.unfinished``; what a killed job left there is replaced.
    Raises SchemaMismatch, UsageError when the directory exists or another job is writing it.
    """
    target = local_path(directory, "a snapshot").absolute()
    with attempt(unfinished(target)) as place:
        manifest = _write(events, place / "snapshot", tombstones_from_ns, log)
        put_in_place(place / "snapshot", target)
    return manifest


def _write(events: DataFrame, path: pathlib.Path, tombstones_from_ns: int | None, log: str) -> Manifest:
    from pyspark.sql import functions as F  # noqa: PLC0415

    are_few = count_objects(events) * _BYTES_PER_NAME <= _NAMES_BYTES_MAX
    source, offsets = _offsets(events, log)
    newest = compact(events, tombstones_from_ns=tombstones_from_ns, keys_fit_in_memory=are_few)
    newest.write.option("compression", "zstd").parquet(str(path / _OBJECTS))
    written = events.sparkSession.read.schema(EVENT_SCHEMA).parquet(str(path / _OBJECTS))
    counted = written.agg(F.count("*"), F.sum((F.col("action") == DELETE).cast("int")), F.max("version")).collect()[0]
    tombstones = int(counted[1] or 0)
    manifest = Manifest(
        objects=int(counted[0]) - tombstones,
        tombstones=tombstones,
        version=int(counted[2] or 0),
        offsets=offsets,
        log=source,
    )
    snapshot_files.write_manifest(path, manifest)
    return manifest


def _offsets(events: DataFrame, log: str) -> tuple[str, dict[str, int]]:
    """A log, and shard -> where to go on in it.  Of events from several logs there is no such place: both are empty."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    column = F.col(LOG) if LOG in events.columns else F.lit(log)
    found = events.groupBy(column.alias(LOG), "shard").agg((F.max("offset") + 1).alias("end")).collect()
    logs = {row[LOG] for row in found}
    if len(logs) > 1:
        return "", {}
    return logs.pop() if logs else log, {str(row["shard"]): int(row["end"]) for row in found}


def read_manifest(directory: str) -> Manifest:
    """Raises PipelineError when there is none, or one of another release."""
    try:
        return snapshot_files.read_manifest(directory)
    except SourceUnavailable as error:
        raise PipelineError(str(error)) from error


def read_objects(directory: str) -> Iterator[SnapshotObject]:
    """The live objects of a snapshot, without Spark, in portions of bounded size.  Raises PipelineError."""
    try:
        for event in snapshot_files.read_events(directory):
            if event.action != DELETE:
                yield SnapshotObject(event.table, event.key, event.topic, event.value, event.version)
    except SourceUnavailable as error:
        raise PipelineError(str(error)) from error


def read_rows(spark: SparkSession, directory: str) -> DataFrame:
    """The rows of a snapshot, of a table of the lake, or of a plain directory of Parquet files with an event's
    columns."""
    from spark_pipeline.lake import LakeTable  # noqa: PLC0415

    local_path(directory, "a set of events")
    if pathlib.Path(directory, "_delta_log").is_dir():
        return LakeTable(directory).read(spark).select(*EVENT_COLUMNS)
    objects = pathlib.Path(directory, _OBJECTS)
    if objects.is_dir():
        read_manifest(directory)
        return spark.read.parquet(str(objects)).select(*EVENT_COLUMNS)
    return spark.read.parquet(directory).select(*EVENT_COLUMNS)
