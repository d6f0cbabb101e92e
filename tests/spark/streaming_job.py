"""A streaming query in a process of its own, to be killed: a log, or a share of a group, into a table of files or
another log.

``python -m tests.spark.streaming_job MASTER LOG CHECKPOINT TABLE [GROUP JOB]`` runs until it is killed, or ended by the
end of its input.  `StreamingJob` is the other end: it starts one, kills any of its processes, and knows how far it is.
"""

from __future__ import annotations

import pathlib
import sys
import threading
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from tests.spark.processes import KillableJob, wheel_java

EVENTS_PER_BATCH = 150


def main(arguments: Sequence[str]) -> None:
    from tests.spark.conftest import new_session

    master, log, checkpoint, table, *share = arguments
    spark = new_session(pathlib.Path(checkpoint).parent, master=master)
    stream = spark.readStream.format("heliograph").options(log=log, events_per_batch=str(EVENTS_PER_BATCH))
    if share:
        stream = stream.options(group=share[0], query=share[1])
    query = writer_of(stream.load(), checkpoint, table).start()
    threading.Thread(target=lambda: (sys.stdin.read(), query.stop()), daemon=True).start()
    query.awaitTermination()  # raises what ended the query, and the process with it
    spark.stop()


def writer_of(rows: DataFrame, checkpoint: str, table: str) -> DataStreamWriter:
    """What writes to a table: a directory of files, or the URL of a log."""
    writer = rows.writeStream.option("checkpointLocation", checkpoint)
    if "://" in table:
        return writer.format("heliograph").options(log=table, query="copy", staging=f"{checkpoint}-staged")
    return writer.format("parquet").option("path", table)


class StreamingJob(KillableJob):
    """Use it in a ``with``: leaving it kills every process of the job."""

    def __init__(
        self,
        directory: pathlib.Path,
        log: str,
        *,
        name: str = "job",
        group: str | None = None,
        master: str = "local[2,4]",
        target: str | None = None,
    ) -> None:
        """``target``: the URL of a log that it writes to, instead of the files in ``table``."""
        self.checkpoint = directory / f"{name}-checkpoint"
        self.table = directory / f"{name}-table"
        self.target = target or str(self.table)
        share = [] if group is None else [group, name]
        command = ["tests.spark.streaming_job", master, log, str(self.checkpoint), self.target, *share]
        super().__init__(command, directory / f"{name}.log", wheel_java() if master.startswith("local[") else {})

    def __enter__(self) -> StreamingJob:
        return self

    @property
    def batches(self) -> int:
        """Micro-batches that have taken effect."""
        return len(list(self.checkpoint.glob("commits/[0-9]*")))

    def wait_batches(self, count: int) -> None:
        """Return when so many micro-batches have taken effect.  A job that has ended is started again, as a supervisor
        does."""

        def is_there() -> bool:
            if not self.is_running():
                self.start()
            return self.batches >= count

        self.wait_for(is_there, f"{count} batches")


if __name__ == "__main__":
    main(sys.argv[1:])
