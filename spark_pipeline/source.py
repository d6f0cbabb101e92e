"""``spark.read.format("heliograph")`` and ``spark.readStream.format("heliograph")``: the durable log as a table.

Options: ``log`` (its URL), ``topics`` (filters, separated by commas), ``start`` and ``end`` (``earliest``, ``latest``,
or offsets as JSON), ``events_per_batch``, ``events_per_task``; or ``group`` and ``query`` for a stream that is one of
the jobs of a shared subscription (`spark_pipeline.group_source`).  Columns are those of `spark_pipeline.schema`.

Offsets are the log's own: dense, per shard.  A streaming query keeps them in its checkpoint as ``{"0": 17, ...}`` and
goes on exactly there; a shard it has not met begins at 0.  Every range can be read again as long as the log keeps it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

import durable_log
from pubsub_api.errors import UsageError
from spark_pipeline.options import SourceOptions
from spark_pipeline.partitions import LogPartition, read_partition, stream_partitions
from spark_pipeline.ranges import LogRange, Offsets, advance, from_json, split, to_json
from spark_pipeline.schema import EVENT_SCHEMA
from spark_pipeline.sink import LogStreamWriter, LogWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class LogReader(DataSourceReader):
    """A batch read.  Equality on ``topic`` and ``shard`` is used to leave out shards, and frames without decoding
    them."""

    def __init__(self, options: SourceOptions) -> None:
        if options.group:
            raise UsageError('a group is followed by a stream: use readStream, or leave out the option "group"')
        self._options = options
        self._topics: frozenset[str] | None = None
        self._shards: frozenset[int] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # Spark's name
        for given in filters:
            values = _equal_values(given)
            if values is None:
                yield given
            elif given.attribute == ("topic",):  # type: ignore[attr-defined]  # EqualTo and In have it
                self._topics = values if self._topics is None else self._topics & values
            elif given.attribute == ("shard",):  # type: ignore[attr-defined]
                self._shards = values if self._shards is None else self._shards & values
            else:
                yield given

    def partitions(self) -> list[LogPartition]:
        with contextlib.closing(durable_log.open(self._options.log)) as log:
            states, shards = log.state(), log.shards
        starts, ends = self._options.starts(states), self._options.ends(states)
        wanted = set(starts)
        if self._topics is not None:
            wanted &= {durable_log.shard_of(topic, shards) for topic in self._topics}
        if self._shards is not None:
            wanted &= self._shards
        ranges = [LogRange(shard, starts[shard], ends[shard]) for shard in sorted(wanted)]
        # Spark wants at least one partition, also when there is nothing to read.
        parts = list(split(ranges, events_max=self._options.events_per_task)) or [LogRange(0, starts[0], starts[0])]
        return [LogPartition([part], self._options.topics) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return read_partition(self._options.log, partition, self._topics)


def _equal_values(given: Filter) -> frozenset[Any] | None:
    if isinstance(given, EqualTo):
        return frozenset((given.value,))
    return frozenset(given.value) if isinstance(given, In) else None


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read: micro-batches of bounded size, or everything that is there now (``availableNow``)."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: Offsets | None = None
        self._log: durable_log.LogApi | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}  # workers open their own

    def initialOffset(self) -> dict[str, int]:
        return to_json(self._options.starts(self._opened().state()))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.events_per_batch)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        ends = self._ends() if self._target is None else self._target
        events_max = None if isinstance(limit, ReadAllAvailable) else self._options.events_per_batch
        if isinstance(limit, ReadMaxRows):
            events_max = limit.max_rows
        return to_json(advance(from_json(start), ends, events_max=events_max))

    def reportLatestOffset(self) -> dict[str, int]:
        return to_json(self._ends())

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[LogPartition]:
        begins = from_json(start)
        ranges = [LogRange(shard, begins.get(shard, 0), until) for shard, until in from_json(end).items()]
        return stream_partitions(ranges, self._options.topics, events_per_task=self._options.events_per_task)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return read_partition(self._options.log, partition)

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _ends(self) -> dict[int, int]:
        return self._options.ends(self._opened().state())

    def _opened(self) -> durable_log.LogApi:
        """The log, kept open on the driver: Spark asks several times per micro-batch."""
        if self._log is None:
            self._log = durable_log.open(self._options.log)
        return self._log


class HeliographDataSource(DataSource):
    """The format ``heliograph``, for reading and writing.  Registered by `spark_pipeline.session.open_session`."""

    @classmethod
    def name(cls) -> str:
        return "heliograph"

    def schema(self) -> str:
        return EVENT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # the columns are fixed
        return LogReader(SourceOptions(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        options = SourceOptions(self.options)
        if not options.group:
            return LogStreamReader(options)
        # Only when asked for: Spark starts a process for every step of planning, and each imports the format anew.
        from spark_pipeline.group_source import GroupStreamReader  # noqa: PLC0415

        return GroupStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        return LogWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:
        return LogStreamWriter(self.options, schema, overwrite=overwrite)
