"""The lake: a Delta table of events, written by Spark's own Parquet writer and committed without a JVM connector.

Spark writes files; a commit of the ``deltalake`` library makes them part of the table, all at once, together with how
far each shard of the log has been taken in (Delta's application transactions).  So a job that dies before the commit
has done nothing but leave files behind, which the next one or `vacuum` removes, and one that dies after it goes on
where the commit says.  Every commit is a version that can be read later.

A table may be in an object store: then tasks in Python write and read its files, and ``deltalake`` commits them through
its own client of that store.

Several logs may go into one table: an offset belongs to a log, so the log's identity is part of what is remembered, and
of every row.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
import pathlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pubsub_api.errors import UsageError
from spark_pipeline.core.ranges import Offsets
from spark_pipeline.errors import LakeConflict, PipelineError, SchemaMismatch, SparkMissing
from spark_pipeline.objects import RETRIES, RETRY_S, ObjectDirectory, is_url
from spark_pipeline.schema import EVENT_COLUMNS, LOG
from spark_pipeline.writing.job_directories import attempt, remove_dead
from spark_pipeline.writing.object_files import WrittenFile, read_files, statistics_of, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION = "day"
"""Partition column: the day of the event's timestamp, UTC; of its recording where the event could not be decoded."""
_COLUMNS = {**EVENT_COLUMNS, LOG: "string", PARTITION: "string"}
_WRITTEN = "_written-"
_DAY_NS = 86_400 * 10**9


Place = pathlib.Path | ObjectDirectory
"""Where a table is."""


class LakeVersion:
    """A table as it was at one moment.  What is appended to it is added only when no other job has committed since: so
    what was read from it, such as the offsets, still holds."""

    def __init__(self, place: Place, table: Any, delta: Any) -> None:
        self._place = place
        self._table = table
        self._delta = delta

    def offsets(self, log: str, shards: int) -> dict[int, int]:
        """How far each shard of a log, which is known by its identity, was taken in: the offset to go on at."""
        return {shard: self._table.transaction_version(_transaction(log, shard)) or 0 for shard in range(shards)}

    def times(self, log: str, shards: int) -> dict[int, int]:
        """When the last event that was taken in of each shard had been appended to the log."""
        found = {shard: self._table.transaction_version(_time_of(log, shard)) for shard in range(shards)}
        return {shard: when for shard, when in found.items() if when}

    def append(self, events: DataFrame, log: str, offsets: Offsets, times: Offsets) -> int:
        """Add events, and remember that the shards of a log were taken in up to ``offsets``, and when the event before
        each had been appended.  Returns the rows added.

        Raises LakeConflict when another job committed in the meantime: then nothing was added.
        """
        from pyspark.sql import functions as F  # noqa: PLC0415

        # Not from a timestamp of Spark, which would be told in the time zone of the session.
        days = F.expr(f"cast(coalesce(timestamp, appended_ns) div {_DAY_NS} as int)")
        day = F.date_from_unix_date(days).cast("string")
        rows = events.withColumn(LOG, F.lit(log)).withColumn(PARTITION, day).select(*_COLUMNS)
        files = (
            write_files(rows, self._place, divided_by=PARTITION)
            if isinstance(self._place, ObjectDirectory)
            else (_write_here(rows, self._place))
        )
        moved = [self._delta.Transaction(_transaction(log, shard), offset) for shard, offset in offsets.items()]
        moved += [self._delta.Transaction(_time_of(log, shard), times.get(shard, 0)) for shard in offsets]
        try:
            self._table.create_write_transaction(
                [self._add(file) for file in files],
                "append",
                self._table.schema(),
                partition_by=[PARTITION],
                # Never retried by itself: what another job took in meanwhile must not be taken in twice.
                commit_properties=self._delta.CommitProperties(max_commit_retries=0, app_transactions=moved),
            )
        except (self._delta.exceptions.DeltaError, OSError) as error:
            self._check_made(files, error)
        return sum(file.rows for file in files)

    def _check_made(self, files: Sequence[WrittenFile], error: Exception) -> None:
        """Return when a commit that failed was made all the same, and only its answer was lost.  Raises LakeConflict
        when another one was made, PipelineError when it is not known."""
        with _store_errors(self._place):
            now = _open_table(self._delta, self._table.table_uri).get_add_actions(flatten=True).column("path")
        if files and {file.name for file in files} <= set(now.to_pylist()):
            return
        if isinstance(error, OSError):
            # It may still be on its way to a slow store: files stay, and when nothing names them `vacuum` removes them.
            raise PipelineError(f"table {self._place}: the commit was not answered: {_one_line(error)}") from error
        if isinstance(error, self._delta.exceptions.CommitFailedError):
            _remove(self._place, [file.name for file in files])
        raise LakeConflict(f"table {self._place}: another job committed at the same time: {error}") from error

    def _add(self, file: WrittenFile) -> Any:
        """What makes a file part of the table."""
        return self._delta.transaction.AddAction(
            path=file.name,
            size=file.size,
            partition_values={PARTITION: file.part},
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=file.statistics,
        )


def _write_here(rows: DataFrame, table: pathlib.Path) -> list[WrittenFile]:
    """Let Spark write files, and move them to where the table's partitions are."""
    remove_dead(table, f"{_WRITTEN}*")
    name = uuid.uuid4().hex
    files = []
    with attempt(table / f"{_WRITTEN}{name}") as written:
        writer = rows.write.partitionBy(PARTITION).option("compression", "zstd")
        writer.parquet(str(written / "rows"))
        for number, file in enumerate(sorted((written / "rows").glob(f"{PARTITION}=*/*.parquet"))):
            partition = table / file.parent.name
            partition.mkdir(exist_ok=True)
            target = partition / f"{name}-{number}.parquet"
            statistics, size = statistics_of(file), file.stat().st_size
            os.replace(file, target)
            day = partition.name.partition("=")[2]
            files.append(WrittenFile(str(target.relative_to(table)), size, day, statistics))
    return files


def _remove(place: Place, names: Sequence[str]) -> None:
    if isinstance(place, ObjectDirectory):
        place.remove(names)
        return
    for name in names:
        (place / name).unlink(missing_ok=True)


class LakeTable:
    """A Delta table of events in a directory or an object store.  Not thread-safe; several jobs may use the same table,
    one commit wins."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """Raises UsageError for a place that is none, SparkMissing."""
        self.place: Place = ObjectDirectory(place, "the lake") if is_url(place) else pathlib.Path(place).absolute()
        if isinstance(self.place, pathlib.Path) and self.place.exists() and not self.place.is_dir():
            raise UsageError(f"the lake must be a directory, and {self.place} is a file")
        self._uri = self.place.url if isinstance(self.place, ObjectDirectory) else str(self.place)
        self._delta = _deltalake()

    @property
    def exists(self) -> bool:
        with _store_errors(self.place):
            return bool(self._delta.DeltaTable.is_deltatable(self._uri, _storage_options(self._uri)))

    def check_exists(self) -> None:
        """Raises PipelineError when there is no table."""
        if not self.exists:
            raise PipelineError(f"there is no table at {self.place}: run the ingest job first")

    def current(self) -> LakeVersion:
        """The table as it is now; made when there is none.

        Raises SchemaMismatch for a table that is not one of events, UsageError for a directory of other files.
        """
        others = self._others()  # looked for first: another job may make the table now, and put files there
        if not self.exists:
            if others:
                raise UsageError(
                    f"{self.place} is no table, and holds {others[0]}: name a directory that is empty, or none"
                )
            return LakeVersion(self.place, self._create(), self._delta)
        table = self._table()
        _check_schema(table)
        partitions = table.metadata().partition_columns
        if partitions != [PARTITION]:
            raise SchemaMismatch(f"the table is partitioned by {partitions}, and must be by {PARTITION!r} alone")
        return LakeVersion(self.place, table, self._delta)

    def read(self, spark: SparkSession, *, version: int | None = None) -> DataFrame:
        """The table as it is now, or as it was at a version.

        Raises PipelineError when there is none, SchemaMismatch when it was given other columns.
        """
        self.check_exists()
        table = self._table()
        if version is not None:
            table.load_as_version(version)
        _check_schema(table)
        files = table.get_add_actions(flatten=True).column("path").to_pylist()
        if not files:
            return spark.createDataFrame([], _SPARK_SCHEMA)
        # Only the files of that version, never the directory: it also holds what was replaced or never committed.
        if isinstance(self.place, ObjectDirectory):
            return read_files(spark, self.place, files, _COLUMNS)
        here = [str(self.place / file) for file in files]
        return spark.read.schema(_SPARK_SCHEMA).option("basePath", str(self.place)).parquet(*here)

    def version(self) -> int:
        """The newest version."""
        return int(self._table().version())

    def vacuum(self, *, retention_hours: int, is_dry: bool = False) -> list[str]:
        """Remove files that no version of that age needs, those of killed jobs included.  Returns their names; with
        ``is_dry`` only that.  What a running job has written and not committed yet is younger than the job."""
        removed = self._table().vacuum(retention_hours, dry_run=is_dry, enforce_retention_duration=False, full=True)
        return list(removed)

    def small_files(self, target_bytes: int) -> int:
        """How many files `optimize` would write anew: those of days that have several smaller ones than this."""
        actions = self._table().get_add_actions(flatten=True)
        sizes = zip(
            actions.column(f"partition.{PARTITION}").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True
        )
        small = collections.Counter(day for day, size in sizes if size < target_bytes)
        return sum(count for count in small.values() if count > 1)

    def optimize(self, target_bytes: int) -> tuple[int, int]:
        """Put small files of a day together, in one commit: the same rows, and the former files stay until `vacuum`.
        Returns how many files were replaced, and by how many.  Raises LakeConflict."""
        try:
            done = self._table().optimize.compact(target_size=target_bytes)
        except self._delta.exceptions.CommitFailedError as error:
            raise LakeConflict(f"table {self.place}: another job committed at the same time: {error}") from error
        return int(done["numFilesRemoved"]), int(done["numFilesAdded"])

    def _others(self) -> list[str]:
        """What is in the directory and not left there by a job: Delta passes over names that begin so."""
        if isinstance(self.place, ObjectDirectory):
            names = self.place.children()
        else:
            names = [one.name for one in self.place.glob("*")]
        return sorted(name for name in names if not name.startswith("_"))

    def _table(self) -> Any:
        with _store_errors(self.place):
            return _open_table(self._delta, self._uri)

    def _create(self) -> Any:
        fields = [self._delta.Field(name, _DELTA_TYPES[kind], nullable=True) for name, kind in _COLUMNS.items()]
        schema = self._delta.Schema(fields)
        options = _storage_options(self._uri)
        with _store_errors(self.place):
            return self._delta.DeltaTable.create(
                self._uri, schema, mode="ignore", partition_by=[PARTITION], storage_options=options
            )


_DELTA_TYPES: Mapping[str, str] = {"int": "integer", "bigint": "long", "binary": "binary", "string": "string"}
_SPARK_SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in _COLUMNS.items())


def _storage_options(uri: str) -> dict[str, str] | None:
    """Bounds for an object store that is away; everything else is said by the environment."""
    return {"max_retries": str(RETRIES), "retry_timeout": f"{RETRY_S}s"} if "://" in uri else None


def _open_table(delta: Any, uri: str) -> Any:
    return delta.DeltaTable(uri, storage_options=_storage_options(uri))


@contextlib.contextmanager
def _store_errors(place: Place) -> Iterator[None]:
    """What the store of a table refuses, or does not answer, is a PipelineError."""
    try:
        yield
    except OSError as error:
        raise PipelineError(f"table {place}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    """Without the colours and the indents that deltalake puts into its errors."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())


def _transaction(log: str, shard: int) -> str:
    return f"heliograph-log-{log}-shard-{shard}"


def _time_of(log: str, shard: int) -> str:
    return f"{_transaction(log, shard)}-appended"


def _check_schema(table: Any) -> None:
    kinds = {delta: kind for kind, delta in _DELTA_TYPES.items()}
    found = {field.name: getattr(field.type, "type", str(field.type)) for field in table.schema().fields}
    for name, wanted in _COLUMNS.items():
        if name not in found:
            raise SchemaMismatch(
                f"the table lacks the column {name!r}; there are: {', '.join(found)}. Is it a table of events?"
            )
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
