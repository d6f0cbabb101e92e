"""``df.write.format("heliograph")`` and ``df.writeStream.format("heliograph")``: rows become events or objects.

Options: ``log`` (URL: events are appended to a durable log), ``db`` (URL or configuration file: objects are written,
and their changes are published) or ``bus`` (URL: events are published); ``staging`` (a directory every worker
reaches); and for a stream ``query``, its name across restarts.

A micro-batch takes effect exactly once.  Tasks stage their rows in files; one commit, on the driver, delivers the files
and remembers query and batch (`spark_pipeline.writing.targets`).  A batch that Spark runs
again after a crash is recognised, whatever order its rows come in.  ``abort`` only removes files that no commit has
named.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pubsub_api.errors import UsageError
from spark_pipeline.errors import PipelineError, SchemaMismatch
from spark_pipeline.paths import local_path
from spark_pipeline.reading.checkpoints import batch_mark
from spark_pipeline.writing import staged_files
from spark_pipeline.writing.targets import MicroBatch, Target, open_target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY_ID = "sql.streaming.queryId"
"""Under this name Spark tells the tasks of a streaming query its id, which stands in the checkpoint's ``metadata``."""


@dataclasses.dataclass
class Staged(WriterCommitMessage):
    """What one task wrote."""

    name: str
    rows: int
    checkpoint: str
    """The mark of the checkpoint of the query; empty for a batch write."""


class _Writer:
    """What batch and streaming writes share.  Travels to the workers."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise UsageError('events cannot be overwritten: use mode("append")')
        missing = [name for name in staged_files.REQUIRED_COLUMNS if name not in schema.names]
        if missing:
            raise SchemaMismatch(f"rows need the columns {', '.join(missing)} to become events")
        base = options.get("staging") or os.path.join(tempfile.gettempdir(), f"heliograph-staging-{os.getuid()}")
        self.target: Target = open_target(options, os.fspath(local_path(base, 'option "staging"')))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        mark = context.getLocalProperty(_QUERY_ID) if context is not None else None
        check = self.target.check_row
        name, rows = staged_files.stage(self.target.directory, iterator, stamp=time.time_ns(), check=check)
        return Staged(name, rows, mark or "")

    def names(self, messages: Sequence[WriterCommitMessage | None]) -> list[str]:
        return [message.name for message in messages if isinstance(message, Staged)]

    def forget(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what a failed write staged, unless a commit has named it: then the retry needs it."""
        staged_files.discard(self.target.directory, set(self.names(messages)) - self.target.named())


class LogWriter(_Writer, DataSourceArrowWriter):
    """A batch write: one batch of a query that never comes again."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.target.deliver(MicroBatch(f"write-{uuid.uuid4().hex}", "", 0), self.names(messages), is_only=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.forget(messages)


class LogStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self.query = options.get("query", "")
        self._checkpoint = options.get("checkpointLocation", "")
        if not self.query:
            raise UsageError('option "query" is missing: the name of this query, the same after every restart')

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        marks = {message.checkpoint for message in messages if isinstance(message, Staged)}
        if not marks:
            return  # no task, no row
        if len(marks) != 1 or "" in marks:
            raise PipelineError(f"query {self.query!r}: Spark does not say which checkpoint batch {batchId} belongs to")
        batch = MicroBatch(self.query, marks.pop(), batchId, batch_mark(self._checkpoint, batchId))
        self.target.deliver(batch, self.names(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        self.forget(messages)
