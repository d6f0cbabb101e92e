"""``spark.read.format("heliograph")`` and ``spark.readStream.format("heliograph")``: the durable log as a table.

Options: ``log`` (its URL), ``topics`` (filters, separated by commas), ``start`` and ``end`` (``earliest``, ``latest``,
or offsets as JSON), ``events_per_batch``, ``events_per_task``.  Columns are those of
`spark_pipeline.schema`.

Offsets are the log's own: dense, per shard.  A streaming query keeps them in its checkpoint as ``{"0": 17, ...}`` and
goes on exactly there; a shard it has not met begins at 0.  Every range can be read again as long as the log keeps it.
Batches of Arrow go to Spark, never tuples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
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
from durable_log.arrow import arrow_batches
from pubsub_api.core.topics import FilterSet, check_filter
from pubsub_api.errors import UsageError
from spark_pipeline.config import OPTIONS
from spark_pipeline.ranges import LogRange, Offsets, advance, from_json, split, to_json
from spark_pipeline.schema import EVENT_SCHEMA
from spark_pipeline.sink import LogStreamWriter, LogWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_DEFAULTS = {option.dest: option.default for option in OPTIONS}


class SourceOptions:
    """The options of a read, checked.  Raises UsageError naming the one that is wrong.  Travels to the workers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        if not given.get("log"):
            raise UsageError('option "log" is missing: the URL of the log, as in sqlite:///dir/log.db')
        self.log = given["log"]
        self.topics = [name.strip() for name in given.get("topics", "#").split(",")]
        for topic_filter in self.topics:
            check_filter(topic_filter)
        self.start = given.get("start", "earliest")
        self.end = given.get("end", "latest")
        self.events_per_batch = _positive(given, "events_per_batch", _DEFAULTS["batch_events_max"])
        self.events_per_task = _positive(given, "events_per_task", _DEFAULTS["partition_events_max"])

    def starts(self, states: Iterable[durable_log.ShardState]) -> dict[int, int]:
        """Where to begin in each shard."""
        if self.start == "earliest":
            return {state.shard: state.start for state in states}
        if self.start == "latest":
            return {state.shard: state.end for state in states}
        asked = from_json(self.start)
        return {state.shard: asked.get(state.shard, state.start) for state in states}

    def ends(self, states: Iterable[durable_log.ShardState]) -> dict[int, int]:
        """Where to stop in each shard, never beyond its end."""
        if self.end == "latest":
            return {state.shard: state.end for state in states}
        asked = from_json(self.end)
        return {state.shard: min(state.end, asked.get(state.shard, state.end)) for state in states}


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    try:
        value = int(given.get(name, default))
    except ValueError as error:
        raise UsageError(f"option {name!r} is a number of events, not {given[name]!r}") from error
    if value < 1:
        raise UsageError(f"option {name!r} must be at least 1, not {value}")
    return value


class LogPartition(InputPartition):
    """What one task reads."""

    def __init__(self, what: LogRange) -> None:
        super().__init__(what)
        self.what = what


def _read(options: SourceOptions, partition: LogPartition, topics: frozenset[str] | None) -> Iterator[pa.RecordBatch]:
    """Runs in a worker, as often as Spark likes."""
    takes_all = "#" in options.topics and topics is None
    filters = FilterSet(options.topics)
    with contextlib.closing(durable_log.open(options.log)) as log:
        for batch in arrow_batches(log, *partition.what):
            if takes_all:
                yield batch
                continue
            present = batch.column("topic").unique().to_pylist()
            wanted = [topic for topic in present if filters.match(topic) and (topics is None or topic in topics)]
            if wanted:
                yield batch.filter(pc.is_in(batch.column("topic"), pa.array(wanted)))


class LogReader(DataSourceReader):
    """A batch read.  Equality on ``topic`` and ``shard`` is used to leave out shards, and frames without decoding
    them."""

    def __init__(self, options: SourceOptions) -> None:
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
        parts = [LogPartition(part) for part in split(ranges, events_max=self._options.events_per_task)]
        # Spark wants at least one partition, also when there is nothing to read.
        return parts or [LogPartition(LogRange(0, starts[0], starts[0]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return _read(self._options, partition, self._topics)


def _equal_values(given: Filter) -> frozenset[Any] | None:
    if isinstance(given, EqualTo):
        return frozenset((given.value,))
    return frozenset(given.value) if isinstance(given, In) else None


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read: micro-batches of bounded size, or everything that is there now (``availableNow``)."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, int]:
        with contextlib.closing(durable_log.open(self._options.log)) as log:
            return to_json(self._options.starts(log.state()))

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
        return [LogPartition(part) for part in split(ranges, events_max=self._options.events_per_task)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return _read(self._options, partition, None)

    def _ends(self) -> dict[int, int]:
        with contextlib.closing(durable_log.open(self._options.log)) as log:
            return self._options.ends(log.state())


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
        return LogStreamReader(SourceOptions(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        return LogWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:
        return LogStreamWriter(self.options, schema, overwrite=overwrite)
