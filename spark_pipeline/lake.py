"""The lake: a Delta table of events, written by Spark's own Parquet writer and committed without a JVM connector.

Spark writes files; a commit of the ``deltalake`` library makes them part of the table, all at once, together with how
far each shard of the log has been taken in (Delta's application transactions).  So a job that dies before the commit
has done nothing but leave files behind, which `vacuum` removes, and one that dies after it goes on where the commit
says.  Every commit is a version that can be read later.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import shutil
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_pipeline.errors import PipelineError, SchemaMismatch, SparkMissing
from spark_pipeline.ranges import Offsets
from spark_pipeline.schema import EVENT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION = "day"
"""Partition column: the day of the event's timestamp, UTC."""
_SHARD = "heliograph-shard-"


class LakeTable:
    """A Delta table of events in a directory.  Not thread-safe; several jobs may use the same table, one commit
    wins."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path).absolute()
        self._delta = _deltalake()

    @property
    def exists(self) -> bool:
        return bool(self._delta.DeltaTable.is_deltatable(str(self.path)))

    def check_exists(self) -> None:
        """Raises PipelineError when there is no table."""
        if not self.exists:
            raise PipelineError(f"there is no table at {self.path}: run the ingest job first")

    def offsets(self, shards: int) -> dict[int, int]:
        """How far each shard of the log was taken in: the offset to go on at."""
        if not self.exists:
            return dict.fromkeys(range(shards), 0)
        table = self._table()
        return {shard: table.transaction_version(f"{_SHARD}{shard}") or 0 for shard in range(shards)}

    def append(self, events: DataFrame, offsets: Offsets) -> int:
        """Add events, and remember that the shards were taken in up to ``offsets``.  Returns the rows added.

        Raises PipelineError when another job committed in the meantime: then nothing was added, and this one should
        look at `offsets` again.
        """
        from pyspark.sql import functions as F  # noqa: PLC0415

        table = self._table() if self.exists else self._create()
        written = self.path / f"_written-{uuid.uuid4().hex}"
        day = F.date_format(F.timestamp_seconds(F.col("timestamp") / 1e9), "yyyy-MM-dd")
        writer = events.withColumn(PARTITION, day).write.partitionBy(PARTITION).option("compression", "zstd")
        writer.parquet(str(written))
        actions, rows = self._move_in(written)
        moved = [self._delta.Transaction(f"{_SHARD}{shard}", offset) for shard, offset in offsets.items()]
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=[PARTITION],
                # Never retried by itself: what another job took in meanwhile must not be taken in twice.
                commit_properties=self._delta.CommitProperties(max_commit_retries=0, app_transactions=moved),
            )
        except self._delta.exceptions.DeltaError as error:
            raise PipelineError(f"table {self.path}: another job committed at the same time: {error}") from error
        return rows

    def read(self, spark: SparkSession, *, version: int | None = None) -> DataFrame:
        """The table as it is now, or as it was at a version.

        Raises PipelineError when there is none, SchemaMismatch when somebody gave it other columns.
        """
        self.check_exists()
        table = self._table()
        if version is not None:
            table.load_as_version(version)
        _check_schema(table)
        files = [str(self.path / file) for file in table.get_add_actions(flatten=True).column("path").to_pylist()]
        if not files:
            return spark.createDataFrame([], _SPARK_SCHEMA)
        # Only the files of that version, never the directory: it also holds what was replaced or never committed.
        return spark.read.schema(_SPARK_SCHEMA).option("basePath", str(self.path)).parquet(*files)

    def version(self) -> int:
        """The newest version."""
        return int(self._table().version())

    def vacuum(self, *, retention_hours: int) -> list[str]:
        """Remove files that no version of that age needs, those of killed jobs included.  Returns their names."""
        removed = self._table().vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=True)
        return list(removed)

    def _table(self) -> Any:
        return self._delta.DeltaTable(str(self.path))

    def _create(self) -> Any:
        fields = [
            self._delta.Field(name, _DELTA_TYPES[kind], nullable=True)
            for name, kind in (*EVENT_COLUMNS.items(), (PARTITION, "string"))
        ]
        schema = self._delta.Schema(fields)
        return self._delta.DeltaTable.create(str(self.path), schema, mode="ignore", partition_by=[PARTITION])

    def _move_in(self, written: pathlib.Path) -> tuple[list[Any], int]:
        """Move files that Spark wrote to where the table's partitions are.  Returns what makes them part of the table,
        and how many rows they hold."""
        import pyarrow.parquet  # noqa: PLC0415

        actions, rows = [], 0
        for number, file in enumerate(sorted(written.glob(f"{PARTITION}=*/*.parquet"))):
            partition = self.path / file.parent.name
            partition.mkdir(exist_ok=True)
            target = partition / f"{written.name.removeprefix('_written-')}-{number}.parquet"
            count = pyarrow.parquet.read_metadata(file).num_rows
            status = file.stat()
            os.replace(file, target)
            actions.append(
                self._delta.transaction.AddAction(
                    path=str(target.relative_to(self.path)),
                    size=status.st_size,
                    partition_values={PARTITION: partition.name.partition("=")[2]},
                    modification_time=status.st_mtime_ns // 1_000_000,
                    data_change=True,
                    stats=f'{{"numRecords": {count}}}',
                )
            )
            rows += count
        shutil.rmtree(written)
        return actions, rows


_DELTA_TYPES: Mapping[str, str] = {"int": "integer", "bigint": "long", "binary": "binary", "string": "string"}
_SPARK_SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in (*EVENT_COLUMNS.items(), (PARTITION, "string")))


def _check_schema(table: Any) -> None:
    kinds = {delta: kind for kind, delta in _DELTA_TYPES.items()}
    found = {field.name: getattr(field.type, "type", str(field.type)) for field in table.schema().fields}
    for name, wanted in EVENT_COLUMNS.items():
        if name not in found:
            raise SchemaMismatch(f"the table lacks the column {name!r}; there are: {', '.join(found)}")
        kind = kinds.get(found[name], found[name])
        if kind != wanted:
            raise SchemaMismatch(f"column {name!r} is {kind}, and must be {wanted}")


def _deltalake() -> Any:
    try:
        importlib.import_module("deltalake.transaction")
        return importlib.import_module("deltalake")
    except ImportError as error:
        raise SparkMissing(
            f"the lake needs the deltalake library ({error}): pip install 'heliograph[spark]'"
        ) from error
