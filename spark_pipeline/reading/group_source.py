"""A streaming read that is one of the jobs of a shared subscription: the jobs of a group share its events.

``spark.readStream.format("heliograph").options(log=URL, group=NAME, query=JOB)``.  The group is declared as any other
(`shared_subscriptions.groups`): its filter, its start, its kind, pauses, drains and seeks hold for the jobs.  Its
events get into the log as for any group: ``heliograph group serve``, or a recorder.

How events are divided, and why each is in exactly one batch of one job, is told in `spark_pipeline.core.job_ranges`.
Jobs and subscribers of one group do not divide events with each other: to its subscribers, all jobs together are a
second group of the same name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

import durable_log
from shared_subscriptions import groups
from shared_subscriptions.core.declaration import Declaration, Wish
from spark_pipeline.core import job_ranges as sharing
from spark_pipeline.core.job_ranges import AvailableRanges, JobTurn, QueryPlace, Run
from spark_pipeline.core.ranges import LogRange
from spark_pipeline.reading import group_jobs
from spark_pipeline.reading.checkpoints import check_identity, check_kept, check_reached, mark_with_log
from spark_pipeline.reading.columns import ReadColumns
from spark_pipeline.reading.open_log import OpenLogReader
from spark_pipeline.reading.options import SourceOptions
from spark_pipeline.reading.partitions import LogPartition, count_dropped, stream_partitions


class GroupStreamReader(OpenLogReader):
    """Micro-batches are turns: what one is made of stands in the group's record before Spark hears of it."""

    def __init__(self, options: SourceOptions, columns: ReadColumns) -> None:
        super().__init__(options, columns)
        self._run = Run(uuid.uuid4().hex, has_begun=False)

    def initialOffset(self) -> dict[str, object]:
        groups.get(self._opened(), self._options.group)  # a group that is not declared is refused at the start
        return self._kept(QueryPlace(JobTurn(0)))

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Take the next turn.  Spark asks only after the batch that ended at ``start`` has taken effect."""
        place = self._place(start)
        if not place.checkpoint:
            return self._kept(self._marked(place))
        waiting = self._waiting(limit)
        turn = group_jobs.change(
            self._opened(), self._options.group,
            lambda found: sharing.take(found, self._options.query, place, waiting, self._run),
        )  # fmt: skip
        self._run = self._run._replace(has_begun=True)
        return start if turn is None else self._kept(QueryPlace(turn, place.checkpoint))

    def _marked(self, place: QueryPlace) -> QueryPlace:
        """Where an empty batch ends that does nothing but write a mark into the checkpoint."""
        found, _ = group_jobs.load(self._opened(), self._options.group)
        sharing.check_name(found, self._options.query, "")
        return QueryPlace(JobTurn(place.turn.number), uuid.uuid4().hex)

    def _waiting(self, limit: ReadLimit) -> AvailableRanges:
        log = self._opened()
        declaration, states = groups.get(log, self._options.group), log.state()
        events_max = None if isinstance(limit, ReadAllAvailable) else self._options.events_per_batch
        return AvailableRanges(
            {state.shard: state.start for state in states},
            self._ends(declaration, states),
            is_ordered=declaration.mode == "shared",
            events_max=limit.max_rows if isinstance(limit, ReadMaxRows) else events_max,
            after={state.shard: state.after for state in states if state.after},
        )

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {state.shard: state.end for state in self._opened().state()}

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[LogPartition]:  # noqa: ARG002
        """The ranges of the turn, whatever others have taken since the one before."""
        declaration = groups.get(self._opened(), self._options.group)
        log, ranges = self._opened(), self._place(end).turn.ranges
        check_reached(log.state(), _ends_of(ranges), "a batch of this checkpoint")
        check_kept(log, end, _ends_of(ranges), "a batch of this checkpoint")
        filters, events_per_task = [declaration.topic_filter], self._options.events_per_task
        count_dropped(log, filters, ranges, since_ns=declaration.placed_ns)
        return stream_partitions(ranges, filters, log.identity, events_per_task=events_per_task)

    def commit(self, end: dict[str, object]) -> None:
        """Acknowledge: the batch has taken effect."""
        place = self._place(end)
        group_jobs.change(
            self._opened(), self._options.group,
            lambda found: (sharing.finish(found, self._options.query, place, self._run), None),
        )  # fmt: skip

    def _kept(self, place: QueryPlace) -> dict[str, object]:
        return mark_with_log(self._opened(), sharing.place_to_json(place), _ends_of(place.turn.ranges))

    def _place(self, kept: dict[str, object]) -> QueryPlace:
        """Raises OtherLog, UsageError."""
        place = sharing.place_from_json(kept)
        check_identity(self._opened(), kept.get("log"), "this checkpoint")
        return place

    def _ends(self, declaration: Declaration, states: list[durable_log.ShardState]) -> dict[int, int]:
        if declaration.wish is Wish.PAUSED:
            return {}
        ends = {state.shard: state.end for state in states}
        if declaration.wish is Wish.DRAINING:
            ends = {shard: min(end, declaration.until_of(shard * declaration.lanes)) for shard, end in ends.items()}
        if self._target is not None:
            ends = {shard: min(end, self._target.get(shard, 0)) for shard, end in ends.items()}
        return ends


def _ends_of(ranges: Iterable[LogRange]) -> dict[int, int]:
    ends: dict[int, int] = {}
    for one in ranges:
        ends[one.shard] = max(one.end, ends.get(one.shard, 0))
    return ends
