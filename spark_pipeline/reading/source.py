"""``spark.read.format("heliograph")`` and ``spark.readStream.format("heliograph")``: the durable log as a table.

Options are those of `spark_pipeline.reading.options`; ``group`` and ``query`` make a stream one of the jobs of a shared
subscription (`spark_pipeline.reading.group_source`).  Columns are those of `spark_pipeline.reading.columns`.

Offsets are the log's own: dense, per shard.  A streaming query keeps them in its checkpoint, with the identity of the
log, and goes on exactly there (`spark_pipeline.reading.checkpoints`).  Every range can be read again as long as the log
keeps it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

import durable_log
from pubsub_api.errors import UsageError
from spark_pipeline.core.ranges import LogRange, advance, split
from spark_pipeline.reading.checkpoints import began_at, check_kept, check_reached, from_checkpoint, to_checkpoint
from spark_pipeline.reading.columns import ReadColumns, schema_of
from spark_pipeline.reading.open_log import OpenLogReader
from spark_pipeline.reading.options import OF_SPARK, WRITE_OPTIONS, SourceOptions, check_names
from spark_pipeline.reading.partitions import (
    LogPartition,
    count_dropped,
    read_partition,
    readable_ends,
    shards_of,
    still_there,
    stream_partitions,
)
from spark_pipeline.writing.sink import LogStreamWriter, LogWriter

if TYPE_CHECKING:
    import pyarrow as pa

RANGES_SCHEMA = "shard int, start bigint, end bigint"


class BatchLogReader(DataSourceReader):
    """A batch read.  What it reads is settled by its options, and by nothing else: Spark keeps one reader for all
    queries on a DataFrame, so a reader that took over a filter of one query would apply it to the next one.  Spark
    applies every filter itself."""

    def __init__(self, options: SourceOptions, columns: ReadColumns) -> None:
        if options.group:
            raise UsageError('a group is followed by a stream: use readStream, or leave out the option "group"')
        self._options = options
        self._columns = columns

    def partitions(self) -> list[LogPartition]:
        with contextlib.closing(durable_log.open(self._options.log, must_exist=True)) as log:
            states, identity = log.state(), log.identity
            starts, ends = self._options.starts(states, log.find), self._options.ends(states, log.find)
        wanted = shards_of(self._options.topics, states)
        ranges = still_there(self._options, states, starts, {shard: ends[shard] for shard in wanted})
        # Spark wants at least one partition, also when there is nothing to read.
        parts = list(split(ranges, events_max=self._options.events_per_task)) or [LogRange(0, 0, 0)]
        return [LogPartition([part], self._options.topics, identity) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return read_partition(self._options, self._columns, partition)


class LogStreamReader(OpenLogReader):
    """A streaming read: micro-batches of bounded size, or everything that is there now (``availableNow``)."""

    def initialOffset(self) -> dict[str, Any]:
        log = self._opened()
        return to_checkpoint(log, self._options.starts(log.state(), log.find))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        log = self._opened()
        begins, states = from_checkpoint(log, start), log.state()
        check_reached(states, begins, "this checkpoint")
        ends = self._options.ends(states, log.find) if self._target is None else self._target
        events_max = None if isinstance(limit, ReadAllAvailable) else self._options.events_per_batch
        if isinstance(limit, ReadMaxRows):
            events_max = limit.max_rows
        if advance(begins, ends, events_max=None) == begins:
            return start  # Spark asks often, and there is nothing to read that could be the wrong events
        check_kept(log, start, begins, "this checkpoint")
        ends = readable_ends(states, begins, ends)
        wanted = {shard: ends[shard] for shard in shards_of(self._options.topics, states) if shard in ends}
        there = {what.shard: what.start for what in still_there(self._options, states, begins, wanted)}
        lost = sum(first - begins.get(shard, 0) for shard, first in there.items())
        until = advance(begins | there, ends, events_max=events_max)
        planned = [LogRange(shard, first, until[shard]) for shard, first in there.items()]
        lost += self._dropped(log, planned, start)
        return to_checkpoint(log, until, start, lost=lost)

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_checkpoint(self._opened(), self._ends())

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogPartition]:
        log = self._opened()
        begins, ends = from_checkpoint(log, start), from_checkpoint(log, end)
        states = log.state()
        check_reached(states, ends, "a batch of this checkpoint")
        check_kept(log, end, ends, "a batch of this checkpoint")
        # The log may have been given more shards since the batch was planned.
        wanted = {shard: ends[shard] for shard in shards_of(self._options.topics, states) if shard in ends}
        ranges = still_there(self._options, states, begins, wanted)
        self._dropped(log, ranges, start)  # since the batch was planned
        events_per_task = self._options.events_per_task
        return stream_partitions(ranges, self._options.topics, log.identity, events_per_task=events_per_task)

    def _dropped(self, log: durable_log.LogApi, ranges: Iterable[LogRange], start: dict[str, Any]) -> int:
        """What retention by topic has dropped of these since the query began."""
        fails = self._options.fail_on_data_loss
        return count_dropped(log, self._options.topics, ranges, since_ns=began_at(log, start), fails=fails)

    def _ends(self) -> dict[int, int]:
        log = self._opened()
        return self._options.ends(log.state(), log.find)


class RangeStreamReader(LogStreamReader):
    """A stream of what a micro-batch consists of: a row for each range, and none of its events is read."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415

        assert isinstance(partition, LogPartition)
        shards, starts, ends = zip(*partition.ranges, strict=True)
        arrays = [pa.array(shards, pa.int32()), pa.array(starts, pa.int64()), pa.array(ends, pa.int64())]
        yield pa.RecordBatch.from_arrays(arrays, names=list(LogRange._fields))


class HeliographDataSource(DataSource):
    """The format ``heliograph``, for reading and writing.  `spark_pipeline.sessions.session.open_session` registers it;
    in a session of your own: ``spark.dataSource.register(HeliographDataSource)``."""

    @classmethod
    def name(cls) -> str:
        return "heliograph"

    def schema(self) -> str:
        options = SourceOptions(self.options)
        if options.gives_ranges:
            return RANGES_SCHEMA
        return schema_of(options.columns, options.value_schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions(self.options)
        if options.gives_ranges:
            raise UsageError("ranges are followed by a stream: see spark_pipeline.reading.follow")
        return BatchLogReader(options, ReadColumns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = SourceOptions(self.options)
        if options.gives_ranges:
            return RangeStreamReader(options, ReadColumns(StructType()))
        columns = ReadColumns(schema)
        if not options.group:
            return LogStreamReader(options, columns)
        # Only when asked for: Spark starts a process for every step of planning, and each imports the format anew.
        from spark_pipeline.reading.group_source import GroupStreamReader  # noqa: PLC0415

        return GroupStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        check_names(self.options, WRITE_OPTIONS)
        return LogWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:
        check_names(self.options, (*WRITE_OPTIONS, *OF_SPARK))
        return LogStreamWriter(self.options, schema, overwrite=overwrite)
