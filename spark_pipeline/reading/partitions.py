"""What one task of Spark reads from a log, and how: ranges of shards, as Arrow batches, never tuples."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

import durable_log
from durable_log.segments.arrow import arrow_batches
from durable_log.storage.segmented import SegmentedLog
from durable_log.storage.shard_map import is_open
from pubsub_api.core.topics import FilterSet, is_wildcard, overlap
from spark_pipeline.core.ranges import LogRange, Offsets, pack, split
from spark_pipeline.reading.checkpoints import check_identity
from spark_pipeline.reading.columns import ReadColumns
from spark_pipeline.reading.options import SourceOptions
from spark_pipeline.reading.segment_checker import Looks, looks_of

if TYPE_CHECKING:
    import pyarrow as pa

    from durable_log.log_api import LogApi

LOG = logging.getLogger(__name__)

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


def shards_of(filters: Sequence[str], states: Sequence[durable_log.ShardState]) -> list[int]:
    """The shards of a log that can have events of these filters: a topic without wildcards is in one of them, and in
    those that had it before the log was given more."""
    if any(map(is_wildcard, filters)):
        return [state.shard for state in states]
    homes = [states[durable_log.shard_of(topic, len(states))] for topic in filters]
    return sorted({shard for home in homes for shard in (home.shard, *(parent for parent, _ in home.after))})


def readable_ends(states: Sequence[durable_log.ShardState], begins: Offsets, ends: Offsets) -> dict[int, int]:
    """Up to where a micro-batch that begins there may read, so that topics keep their order from batch to batch: a
    shard that has taken topics over from another one waits until that was read up to there."""
    closed = [state.shard for state in states if not is_open(state, lambda shard: begins.get(shard, 0))]
    return {shard: begins.get(shard, 0) if shard in closed else end for shard, end in ends.items()}


def read_partition(options: SourceOptions, columns: ReadColumns, partition: LogPartition) -> Iterator[pa.RecordBatch]:
    """Runs in a worker, as often as Spark likes.  Raises OffsetTooOld, unless the read goes on without what is gone."""
    # Needed where rows are read, and slow to import where that is planned.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    takes_all = "#" in partition.filters
    filters = FilterSet(partition.filters)
    stored = columns.stored if takes_all or "topic" in columns.stored else [*columns.stored, "topic"]
    for batch in itertools.chain.from_iterable(_batches(options, partition, what, stored) for what in partition.ranges):
        if takes_all:
            yield columns.make(batch)
            continue
        present = batch.column("topic").unique().to_pylist()
        wanted = [topic for topic in present if filters.match(topic)]
        if wanted:
            yield columns.make(batch.filter(pc.is_in(batch.column("topic"), pa.array(wanted))))


def _batches(
    options: SourceOptions, partition: LogPartition, what: LogRange, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    try:
        while True:
            try:
                yield from arrow_batches(_OPENED.get(options.log, partition.identity, what), *what, columns=columns)
                return
            except durable_log.OffsetTooOld as error:
                what = _after_loss(what, error.start, fails=options.fail_on_data_loss)
    except Exception:
        _OPENED.close()  # Spark tries again, and whatever it was shall not outlive the attempt
        raise


def still_there(
    options: SourceOptions, states: Sequence[durable_log.ShardState], starts: Offsets, ends: Offsets
) -> list[LogRange]:
    """What the log has of a read, for the shards of ``ends``; a range begins later where retention has removed its
    beginning.  Raises OffsetTooOld when the read must not go on without that."""
    ranges = [LogRange(shard, starts.get(shard, 0), end) for shard, end in ends.items()]
    oldest = {state.shard: state.start for state in states}
    return [
        _after_loss(what, oldest[what.shard], fails=options.fail_on_data_loss)
        if what.start < min(what.end, oldest[what.shard])
        else what
        for what in ranges
    ]


def _after_loss(what: LogRange, oldest: int, *, fails: bool) -> LogRange:
    """The rest of a range of which the log has nothing before ``oldest``."""
    rest = LogRange(what.shard, max(what.start, min(oldest, what.end)), what.end)
    message = (
        f"shard {what.shard}: offsets {what.start} to {rest.start - 1} were to be read, and retention removed them; "
        f"the oldest that is left is {oldest}"
    )
    if fails:
        raise durable_log.OffsetTooOld(f"{message}. To go on without them: failOnDataLoss=false", start=oldest)
    LOG.warning("%s. The read goes on without these %d events.", message, rest.start - what.start)
    return rest


def count_dropped(
    log: LogApi, filters: Sequence[str], ranges: Iterable[LogRange], *, since_ns: int = 0, fails: bool = False
) -> int:
    """How many events of a read ``[log] retention_topics`` has dropped since then, at most.  Raises OffsetTooOld when
    it must not go on without them; else they are logged."""
    events = 0
    for what in ranges:
        found = [
            one
            for segment in log.segments(what.shard)
            for one in segment.dropped
            if one.first < what.end and one.end > what.start and one.dropped_ns >= since_ns
            and any(overlap(one.topic, wanted) for wanted in filters)
        ]  # fmt: skip
        count = sum(min(one.events, min(one.end, what.end) - max(one.first, what.start)) for one in found)
        if not count:
            continue
        message = (
            f"shard {what.shard}: up to {count} events of {', '.join(sorted({one.topic for one in found}))} at offsets "
            f"{found[0].first} to {found[-1].end - 1} were to be read, and [log] retention_topics dropped them"
        )
        if fails:
            raise durable_log.OffsetTooOld(f"{message}. To go on without them: failOnDataLoss=false", start=what.start)
        LOG.warning("%s. The read goes on without them.", message)
        events += count
    return events


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
