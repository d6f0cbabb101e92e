"""What one task of Spark reads from a log, and how: ranges of shards, as Arrow batches, never tuples."""

from __future__ import annotations

import atexit
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

import durable_log
from durable_log.segments.arrow import arrow_batches
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.core.topics import FilterSet, is_wildcard
from spark_pipeline.core.ranges import LogRange, pack, split
from spark_pipeline.reading.checkpoints import check_identity
from spark_pipeline.reading.segment_checker import Looks, looks_of

if TYPE_CHECKING:
    import pyarrow as pa

    from durable_log.log_api import LogApi

_TASK_EVENTS = 10_000
"""A task costs about as much as reading so many events."""
_LOOKS_MAX = 256
"""As many files as a reader of segments remembers."""


class LogPartition(InputPartition):
    """Events of these filters in some ranges of a log, which is known by its identity."""

    def __init__(self, ranges: Sequence[LogRange], filters: Sequence[str], identity: str) -> None:
        super().__init__(ranges)
        self.identity = identity
        self.ranges = tuple(ranges)
        self.filters = tuple(filters)


def stream_partitions(
    ranges: Iterable[LogRange], filters: Sequence[str], identity: str, *, events_per_task: int
) -> list[LogPartition]:
    """The tasks of a micro-batch: long ranges divided, short ones together, because small batches come often."""
    parts = split(ranges, events_max=events_per_task)
    bundles = pack(parts, events_max=min(_TASK_EVENTS, events_per_task))
    return [LogPartition(bundle, filters, identity) for bundle in bundles]


def shards_of(filters: Sequence[str], shards: int) -> list[int]:
    """The shards of a log that can have events of these filters: a topic without wildcards is in one of them."""
    if any(map(is_wildcard, filters)):
        return list(range(shards))
    return sorted({durable_log.shard_of(topic, shards) for topic in filters})


def read_partition(url: str, partition: LogPartition) -> Iterator[pa.RecordBatch]:
    """Runs in a worker, as often as Spark likes."""
    # Needed where rows are read, and slow to import where that is planned.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    takes_all = "#" in partition.filters
    filters = FilterSet(partition.filters)
    for batch in itertools.chain.from_iterable(_batches(url, partition, what) for what in partition.ranges):
        if takes_all:
            yield batch
            continue
        present = batch.column("topic").unique().to_pylist()
        wanted = [topic for topic in present if filters.match(topic)]
        if wanted:
            yield batch.filter(pc.is_in(batch.column("topic"), pa.array(wanted)))


def _batches(url: str, partition: LogPartition, what: LogRange) -> Iterator[pa.RecordBatch]:
    try:
        yield from arrow_batches(_OPENED.get(url, partition.identity, what), *what)
    except Exception:
        _OPENED.close()  # Spark tries again, and whatever it was shall not outlive the attempt
        raise


class _OpenedLog:
    """The log that this process read last.  Spark keeps its workers, and gives them one task after the other of the
    same log: opening it costs as much as reading some thousand events."""

    def __init__(self) -> None:
        self._owner = 0
        self._url = ""
        self._log: LogApi | None = None
        self._looks: dict[str, Looks | None] = {}

    def get(self, url: str, identity: str, what: LogRange) -> LogApi:
        """The log of that identity, ready to read this range.  Raises OtherLog when another one is in its place."""
        is_mine = self._owner == os.getpid()
        if self._log is None or self._url != url or not is_mine or self._log.identity != identity:
            if is_mine:
                self.close()
            self._log, self._url, self._owner, self._looks = (
                durable_log.open(url, must_exist=True),
                url,
                os.getpid(),
                {},
            )
            check_identity(self._log, identity, "this read")
        self._forget_changed(self._log, what)
        return self._log

    def _forget_changed(self, log: LogApi, what: LogRange) -> None:
        """A file that was checked for an earlier task, and looks different now, is checked again."""
        if not isinstance(log, SegmentedLog):
            return
        for segment in log.segments(what.shard):
            if segment.end <= what.start or segment.first >= what.end:
                continue
            looks = looks_of(segment)
            if self._looks.get(segment.path, looks) != looks:
                log.segment_reader.forget(segment)
            if len(self._looks) >= _LOOKS_MAX:
                self._looks.pop(next(iter(self._looks)))
            self._looks[segment.path] = looks

    def close(self) -> None:
        if self._log is not None and self._owner == os.getpid():
            self._log.close()
        self._log = None


_OPENED = _OpenedLog()
atexit.register(_OPENED.close)
