"""A snapshot: the newest version of every object, in Parquet files, and a manifest that says what it covers.

The manifest is written last, so a directory without one is not a snapshot.  It names, per shard of the log, the offset
up to which every event is in: load the objects, then go on there.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from spark_pipeline.errors import PipelineError
from spark_pipeline.jobs.compact import DELETE, compact, count_objects
from spark_pipeline.schema import EVENT_COLUMNS, EVENT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
MANIFEST = "manifest.json"
_OBJECTS = "objects"
_BYTES_PER_NAME = 200
_NAMES_BYTES_MAX = 256 * 1024 * 1024
"""While the names of all objects take less than about this, they are sent to every task."""


class Manifest(msgspec.Struct, frozen=True):
    objects: int
    tombstones: int
    version: int
    """The newest version in it, 0 when it is empty."""
    offsets: dict[str, int]
    """Shard -> the offset to go on at."""
    format: int = FORMAT


class SnapshotObject(NamedTuple):
    table: str
    key: str
    topic: str
    value: object
    version: int


def write_snapshot(events: DataFrame, directory: str, *, tombstones_from_ns: int | None = None) -> Manifest:
    """Compact events into a new directory.  Blocks.  Raises SchemaMismatch."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    are_few = count_objects(events) * _BYTES_PER_NAME <= _NAMES_BYTES_MAX
    ends = events.groupBy("shard").agg((F.max("offset") + 1).alias("end")).collect()
    newest = compact(events, tombstones_from_ns=tombstones_from_ns, keys_fit_in_memory=are_few)
    path = pathlib.Path(directory)
    newest.write.option("compression", "zstd").parquet(str(path / _OBJECTS))
    written = events.sparkSession.read.schema(EVENT_SCHEMA).parquet(str(path / _OBJECTS))
    counted = written.agg(F.count("*"), F.sum((F.col("action") == DELETE).cast("int")), F.max("version")).collect()[0]
    tombstones = int(counted[1] or 0)
    manifest = Manifest(
        objects=int(counted[0]) - tombstones,
        tombstones=tombstones,
        version=int(counted[2] or 0),
        offsets={str(row["shard"]): int(row["end"]) for row in ends},
    )
    _write_manifest(path, manifest)
    return manifest


def _write_manifest(path: pathlib.Path, manifest: Manifest) -> None:
    new = path / f"{MANIFEST}.new"
    with open(new, "wb") as file:
        file.write(msgspec.json.encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path / MANIFEST)


def read_manifest(directory: str) -> Manifest:
    """Raises PipelineError when there is none, or one of another release."""
    try:
        manifest = msgspec.json.decode(pathlib.Path(directory, MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise PipelineError(f"{directory} is not a finished snapshot: {error}") from error
    if manifest.format != FORMAT:
        raise PipelineError(f"{directory} has format {manifest.format}; this release reads {FORMAT}")
    return manifest


def read_objects(directory: str) -> Iterator[SnapshotObject]:
    """The live objects of a snapshot, without Spark, in portions of bounded size.  Raises PipelineError."""
    import pyarrow.dataset  # noqa: PLC0415

    read_manifest(directory)
    decode = msgspec.msgpack.Decoder().decode
    names = ["table", "key", "topic", "value", "version", "action"]
    files = pyarrow.dataset.dataset(str(pathlib.Path(directory, _OBJECTS)), format="parquet")
    for batch in files.to_batches(columns=names):
        columns = (batch.column(name).to_pylist() for name in names)
        for table, key, topic, value, version, action in zip(*columns, strict=True):
            if action != DELETE:
                yield SnapshotObject(table, key, topic, None if value is None else decode(value), version)


def read_rows(spark: SparkSession, directory: str) -> DataFrame:
    """The rows of a snapshot, of a table of the lake, or of a plain directory of Parquet files with an event's
    columns."""
    from spark_pipeline.lake import LakeTable  # noqa: PLC0415

    if pathlib.Path(directory, "_delta_log").is_dir():
        return LakeTable(directory).read(spark).select(*EVENT_COLUMNS)
    objects = pathlib.Path(directory, _OBJECTS)
    if objects.is_dir():
        read_manifest(directory)
        return spark.read.parquet(str(objects)).select(*EVENT_COLUMNS)
    return spark.read.parquet(directory).select(*EVENT_COLUMNS)
