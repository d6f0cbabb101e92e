"""A snapshot: the newest version of every object, in Parquet files, and a manifest that says what it covers.

The manifest is written last, so a directory without one is not a snapshot.  It names, per shard of the log, the offset
up to which every event is in: load the objects, then go on there.  What the log has missed is not in it; `nb_api.
snapshot_files.complete` compares it with the database and makes it a resync source of controllers.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from nb_api.cache import snapshot_files
from nb_api.cache.snapshot_files import Manifest
from nb_api.errors import SourceUnavailable
from pubsub_api.errors import UsageError
from spark_pipeline.errors import PipelineError
from spark_pipeline.jobs.compact import DELETE, compact, count_objects
from spark_pipeline.objects import ObjectDirectory, is_url
from spark_pipeline.schema import EVENT_COLUMNS, EVENT_SCHEMA, LOG
from spark_pipeline.writing.job_directories import attempt, put_in_place, unfinished
from spark_pipeline.writing.object_files import read_files, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OBJECTS = snapshot_files.OBJECTS
SET = "_files.json"
"""Object that makes files in an object store the result of a merge."""
_LISTED = "listed"
"""What `SET` and a manifest in an object store have beside the rest: the names of the files."""
_BYTES_PER_OBJECT = 100
"""What the hash of an object takes in Spark's table of them, with room to grow."""
_OBJECTS_BYTES_MAX = 256 * 1024 * 1024
"""While the hashes of all objects take less than about this, they are sent to every task."""


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
    In an object store it is a snapshot as soon as its manifest is there, which names the files.  Raises SchemaMismatch,
    UsageError when the directory exists or another job is writing it.
    """
    if is_url(directory):
        return _write_objects(events, ObjectDirectory(directory, "a snapshot"), tombstones_from_ns, log)
    target = pathlib.Path(directory).absolute()
    with attempt(unfinished(target)) as place:
        manifest = _write(events, place / "snapshot", tombstones_from_ns, log)
        put_in_place(place / "snapshot", target)
    return manifest


def _write(events: DataFrame, path: pathlib.Path, tombstones_from_ns: int | None, log: str) -> Manifest:
    source, offsets = _offsets(events, log)
    newest = _newest(events, tombstones_from_ns)
    newest.write.option("compression", "zstd").parquet(str(path / _OBJECTS))
    written = events.sparkSession.read.schema(EVENT_SCHEMA).parquet(str(path / _OBJECTS))
    manifest = _manifest(written, source, offsets)
    snapshot_files.write_manifest(path, manifest)
    return manifest


def _write_objects(events: DataFrame, place: ObjectDirectory, tombstones_from_ns: int | None, log: str) -> Manifest:
    source, offsets = _offsets(events, log)
    rows = _newest(events, tombstones_from_ns).select(*EVENT_COLUMNS)
    names = write_set(rows, place, below=_OBJECTS)
    manifest = _manifest(read_files(events.sparkSession, place, names, EVENT_COLUMNS), source, offsets)
    commit_set(place, snapshot_files.MANIFEST, names, manifest)
    return manifest


def write_set(rows: DataFrame, place: ObjectDirectory, *, below: str = "") -> list[str]:
    """Write rows into files of an object store, which nothing names until `commit_set`.  Raises UsageError when there
    is something already."""
    if place.names():
        raise UsageError(f"{place} exists already: name a place where nothing is")
    return [file.name for file in write_files(rows, place, below=below)]


def commit_set(place: ObjectDirectory, name: str, files: Sequence[str], content: object = None) -> None:
    """Make files a set of events, at once.  Of two jobs for one place, the first wins; the files of the other are
    removed, and it raises UsageError."""
    said = msgspec.to_builtins(content) if content is not None else {}
    try:
        place.create(name, msgspec.json.encode({**said, _LISTED: files}))
    except UsageError:
        place.remove(files)
        raise


def _newest(events: DataFrame, tombstones_from_ns: int | None) -> DataFrame:
    are_few = count_objects(events) * _BYTES_PER_OBJECT <= _OBJECTS_BYTES_MAX
    return compact(events, tombstones_from_ns=tombstones_from_ns, keys_fit_in_memory=are_few)


def _manifest(written: DataFrame, source: str, offsets: dict[str, int]) -> Manifest:
    from pyspark.sql import functions as F  # noqa: PLC0415

    counted = written.agg(F.count("*"), F.sum((F.col("action") == DELETE).cast("int")), F.max("version")).collect()[0]
    tombstones = int(counted[1] or 0)
    return Manifest(
        objects=int(counted[0]) - tombstones,
        tombstones=tombstones,
        version=int(counted[2] or 0),
        offsets=offsets,
        log=source,
    )


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


def write_rows(rows: DataFrame, directory: str) -> None:
    """Write a set of events into a new directory, which appears when it is whole.  Raises UsageError as
    `write_snapshot`."""
    if is_url(directory):
        place = ObjectDirectory(directory, "the result")
        commit_set(place, SET, write_set(rows, place))
        return
    target = pathlib.Path(directory).absolute()
    with attempt(unfinished(target)) as made:
        rows.write.option("compression", "zstd").parquet(str(made / "rows"))
        put_in_place(made / "rows", target)


def _listed(place: ObjectDirectory) -> list[str]:
    """The files of a snapshot, or of a merged set.  Raises PipelineError when there is none that is finished."""
    for name in (snapshot_files.MANIFEST, SET):
        found = place.read(name)
        if found is not None:
            try:
                return list(msgspec.json.decode(found, type=dict[str, Any])[_LISTED])
            except (msgspec.MsgspecError, KeyError, TypeError) as error:
                raise PipelineError(f"{place}/{name} names no files: {error}") from error
    raise PipelineError(f"{place} has neither a table nor a finished set of events: there is no {SET}")


def read_rows(spark: SparkSession, directory: str) -> DataFrame:
    """The rows of a snapshot, of a table of the lake, or of a plain directory of Parquet files with an event's
    columns."""
    from spark_pipeline.lake import LakeTable  # noqa: PLC0415

    if is_url(directory):
        place = ObjectDirectory(directory, "a set of events")
        if "_delta_log" in place.children():
            return LakeTable(directory).read(spark).select(*EVENT_COLUMNS)
        return read_files(spark, place, _listed(place), EVENT_COLUMNS)
    if pathlib.Path(directory, "_delta_log").is_dir():
        return LakeTable(directory).read(spark).select(*EVENT_COLUMNS)
    objects = pathlib.Path(directory, _OBJECTS)
    if objects.is_dir():
        read_manifest(directory)
        return spark.read.parquet(str(objects)).select(*EVENT_COLUMNS)
    return spark.read.parquet(directory).select(*EVENT_COLUMNS)
