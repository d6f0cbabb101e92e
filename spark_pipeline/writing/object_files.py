"""Parquet files in an object store, written and read by tasks of Spark in Python: no connector for the JVM is needed.

A task writes its rows into files of the local disk, and uploads them under names that no other attempt has.  So a task
that runs twice, or dies, leaves objects that nothing names; what counts is only what the caller then makes part of a
table or a manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_pipeline.objects import ObjectDirectory

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FILES_SCHEMA = "name string, size bigint, part string, statistics string"
_READ_ROWS = 65_536
_COMPARED = frozenset(("shard", "offset", "topic", "seq", "table", "version", "timestamp", "appended_ns"))
"""Columns by which engines leave out files that cannot have what is asked for."""


class WrittenFile(NamedTuple):
    name: str
    """Below the directory."""
    size: int
    part: str
    """Value of the column by which rows are divided; empty without one."""
    statistics: str
    """As a Delta table has them: how many rows there are, and between which values the columns of `_COMPARED` are."""

    @property
    def rows(self) -> int:
        return int(json.loads(self.statistics)["numRecords"])


def statistics_of(file: os.PathLike[str]) -> str:
    """The `WrittenFile.statistics` of a Parquet file, from what its footer says."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    metadata = pq.read_metadata(file)
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    for number, name in enumerate(metadata.schema.names):
        if name not in _COMPARED:
            continue
        found = [metadata.row_group(group).column(number).statistics for group in range(metadata.num_row_groups)]
        some = [one for one in found if one is not None and one.has_min_max]
        # A part that says nothing may hold anything, unless it is known to hold nothing.
        if some and all(one is not None and (one.has_min_max or one.num_values == 0) for one in found):
            lowest[name], highest[name] = min(one.min for one in some), max(one.max for one in some)
    return json.dumps({"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest})


def write_files(
    rows: DataFrame, directory: ObjectDirectory, *, below: str = "", divided_by: str = ""
) -> list[WrittenFile]:
    """Write all rows, in a job of Spark.  Rows are divided into directories ``COLUMN=VALUE`` by a column of strings,
    which the files themselves lack.  Raises what Spark raises when a task failed too often."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415

        with _TaskFiles(directory, below, divided_by) as files:
            for batch in batches:
                files.add(batch)
            written = files.upload()
        if written:
            yield pa.RecordBatch.from_pylist([one._asdict() for one in written])

    found = rows.mapInArrow(write, _FILES_SCHEMA).collect()
    return [WrittenFile(row["name"], row["size"], row["part"], row["statistics"]) for row in found]


def read_files(
    spark: SparkSession, directory: ObjectDirectory, names: Sequence[str], columns: Mapping[str, str]
) -> DataFrame:
    """The rows of files with these columns, name -> type of Spark; a column that files lack is taken from
    ``COLUMN=VALUE`` in their names."""
    wanted = list(columns)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        for name in (name for batch in batches for name in batch.column("name").to_pylist()):
            content = directory.read(name)
            if content is None:
                raise FileNotFoundError(f"{directory}/{name}")
            divided = dict(part.split("=", 1) for part in name.split("/") if "=" in part)
            file = pq.ParquetFile(pa.BufferReader(content))
            stored = [column for column in wanted if column not in divided]
            for batch in file.iter_batches(_READ_ROWS, columns=stored):
                values = [
                    pa.repeat(pa.scalar(divided[column], pa.string()), len(batch))
                    if column in divided
                    else batch.column(column)
                    for column in wanted
                ]
                yield pa.RecordBatch.from_arrays(values, names=wanted)

    listed = spark.createDataFrame([(name,) for name in names], "name string").repartition(max(1, len(names)))
    return listed.mapInArrow(read, ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))


class _TaskFiles(contextlib.ExitStack):
    """The files of one attempt of a task, on the local disk until they are uploaded."""

    def __init__(self, directory: ObjectDirectory, below: str, divided_by: str) -> None:
        super().__init__()
        self._directory = directory
        self._below = below
        self._divided_by = divided_by
        self._local = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix="heliograph-rows-")))
        self._writers: dict[str, tuple[pathlib.Path, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc  # noqa: PLC0415

        if not batch.num_rows:
            return
        if not self._divided_by:
            self._write("", batch)
            return
        parts = batch.column(self._divided_by)
        rows = batch.drop_columns([self._divided_by])
        for part in parts.unique().to_pylist():
            self._write(part, rows.filter(pc.equal(parts, part)))

    def upload(self) -> list[WrittenFile]:
        written = []
        for part, (local, writer) in self._writers.items():
            writer.close()
            folders = [folder for folder in (self._below, f"{self._divided_by}={part}" if part else "") if folder]
            name = "/".join([*folders, f"{uuid.uuid4().hex}.parquet"])
            self._directory.put(name, local)
            written.append(WrittenFile(name, local.stat().st_size, part, statistics_of(local)))
        return written

    def _write(self, part: str, rows: pa.RecordBatch) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415

        if part not in self._writers:
            local = self._local / str(len(self._writers))
            writer = self.enter_context(pq.ParquetWriter(local, rows.schema, compression="zstd"))
            self._writers[part] = local, writer
        self._writers[part][1].write_batch(rows)
