"""A streaming read that is one of the jobs of a shared subscription: the jobs of a group share its events.

``spark.readStream.format("heliograph").options(log=URL, group=NAME, query=JOB)``.  The group is declared as any other
(`shared_subscriptions.groups`): its filter, its start, its kind, pauses, drains and seeks hold for the jobs.  Its
events get into the log as for any group: ``heliograph group serve``, or a recorder.

How events are divided, and why each is in exactly one batch of one job, is told in `spark_pipeline.shares`.  Jobs and
subscribers of one group do not divide events with each other: to its subscribers, all jobs together are a second group
of the same name.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

import durable_log
from durable_log.errors import RecordConflict
from durable_log.log_api import LogApi
from shared_subscriptions import groups
from shared_subscriptions.core.declaration import Declaration, Wish
from spark_pipeline import shares as sharing
from spark_pipeline.errors import PipelineError
from spark_pipeline.options import SourceOptions
from spark_pipeline.partitions import LogPartition, read_partition, stream_partitions
from spark_pipeline.ranges import Offsets
from spark_pipeline.shares import Origin, Shares, Turn, Waiting

LOG = logging.getLogger(__name__)

PREFIX = "spark/group/"
_ATTEMPTS_MAX = 100

_Change = Callable[[Shares], tuple[Shares, Turn | None]]


class GroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches are turns: what one is made of stands in the group's record before Spark hears of it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: Offsets | None = None
        self._log: LogApi | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}  # workers open their own

    def initialOffset(self) -> dict[str, object]:
        groups.get(self._opened(), self._options.group)  # a group that nobody declared is refused at the start
        return sharing.turn_to_json(Turn(0))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.events_per_batch)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Take the next turn.  Spark asks only after the batch that ended at ``start`` has taken effect."""
        log = self._opened()
        declaration = groups.get(log, self._options.group)
        states = log.state()
        events_max = None if isinstance(limit, ReadAllAvailable) else self._options.events_per_batch
        waiting = Waiting(
            {state.shard: state.start for state in states},
            self._ends(declaration, states),
            is_ordered=declaration.mode == "shared",
            events_max=limit.max_rows if isinstance(limit, ReadMaxRows) else events_max,
        )
        after = sharing.turn_from_json(start).number
        turn = _change(log, declaration, lambda found: sharing.take(found, self._options.query, after, waiting))
        return start if turn is None else sharing.turn_to_json(turn)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {state.shard: state.end for state in self._opened().state()}

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[LogPartition]:  # noqa: ARG002
        """The ranges of the turn, whatever others have taken since the one before."""
        declaration = groups.get(self._opened(), self._options.group)
        ranges = sharing.turn_from_json(end).ranges
        filters = [declaration.topic_filter]
        return stream_partitions(ranges, filters, events_per_task=self._options.events_per_task)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return read_partition(self._options.log, partition)

    def commit(self, end: dict[str, object]) -> None:
        """Acknowledge: the batch has taken effect."""
        log = self._opened()
        number = sharing.turn_from_json(end).number
        _change(
            log,
            groups.get(log, self._options.group),
            lambda found: (sharing.finish(found, self._options.query, number), None),
        )

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _ends(self, declaration: Declaration, states: list[durable_log.ShardState]) -> dict[int, int]:
        if declaration.wish is Wish.PAUSED:
            return {}
        ends = {state.shard: state.end for state in states}
        if declaration.wish is Wish.DRAINING:
            ends = {shard: min(end, declaration.until[shard]) for shard, end in ends.items()}
        if self._target is not None:
            ends = {shard: min(end, self._target.get(shard, 0)) for shard, end in ends.items()}
        return ends

    def _opened(self) -> LogApi:
        if self._log is None:
            self._log = durable_log.open(self._options.log)
        return self._log


def _change(log: LogApi, declaration: Declaration, change: _Change) -> Turn | None:
    """Apply a change to the group's record, on what others have made of it meanwhile.  Raises PipelineError when others
    are always faster."""
    for _ in range(_ATTEMPTS_MAX):
        found, version = _load(log, declaration)
        wanted, turn = change(found)
        if wanted is found:
            return turn
        try:
            log.put_records([(f"{PREFIX}{declaration.name}", sharing.encode(wanted), version)])
        except RecordConflict:
            continue
        if wanted.expired > found.expired:
            LOG.warning(
                "Group %s: retention dropped %d events before a job took them.",
                declaration.name, wanted.expired - found.expired,
            )  # fmt: skip
        return turn
    raise PipelineError(f"group {declaration.name}: its record changed {_ATTEMPTS_MAX} times while it was written")


def _load(log: LogApi, declaration: Declaration) -> tuple[Shares, int]:
    record = log.get_record(f"{PREFIX}{declaration.name}")
    found = None if record is None else sharing.decode(record.value)
    origin = Origin(declaration.declared_ns, declaration.generation)
    if found is None or found.origin != origin:
        found = sharing.begin(origin, declaration.positions, found)
    return found, 0 if record is None else record.version


@dataclasses.dataclass(frozen=True)
class JobsView:
    """How far the jobs of a group are."""

    lag: int
    """Events that nobody has taken."""
    expired: int
    """Events that retention dropped before anybody took them."""
    in_work: dict[str, int]
    """Job -> events that it has taken and not finished, of jobs that have some."""


def show(log: LogApi, group: str) -> JobsView:
    """Look at a group without changing it.  Raises GroupNotFound."""
    found, _ = _load(log, groups.get(log, group))
    lag = sum(max(0, state.end - found.taken.get(state.shard, 0)) for state in log.state())
    in_work = {
        name: sum(one.events for one in job.turn.ranges) for name, job in found.jobs.items() if job.turn is not None
    }
    return JobsView(lag, found.expired, in_work)
