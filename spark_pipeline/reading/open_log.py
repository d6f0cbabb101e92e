"""What streaming reads of a log share: the log, kept open on the driver, and how a task reads its part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

import durable_log
from spark_pipeline.core.ranges import Offsets
from spark_pipeline.reading.columns import ReadColumns
from spark_pipeline.reading.options import SourceOptions
from spark_pipeline.reading.partitions import LogPartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa


class OpenLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Travels to the workers without its log; they open their own."""

    def __init__(self, options: SourceOptions, columns: ReadColumns) -> None:
        self._options = options
        self._columns = columns
        self._target: Offsets | None = None
        """Where a query ends that reads what is there now."""
        self._log: durable_log.LogApi | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.events_per_batch)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return read_partition(self._options, self._columns, partition)

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _opened(self) -> durable_log.LogApi:
        """The log: Spark asks several times per micro-batch."""
        if self._log is None:
            self._log = durable_log.open(self._options.log, must_exist=True)
        return self._log
