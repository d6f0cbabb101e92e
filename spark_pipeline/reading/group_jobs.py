"""The record of the Spark jobs of a group: changed by compare and set, looked at, and freed by operators.

What the record means is told in `spark_pipeline.core.job_ranges`.  It is one of the group's own records, so it goes
when the group is destroyed.  Nothing here needs Spark.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from durable_log.errors import RecordConflict
from durable_log.log_api import LogApi
from shared_subscriptions import groups
from shared_subscriptions.names import Names
from spark_pipeline.core import job_ranges as sharing
from spark_pipeline.core.job_ranges import GroupOrigin, JobRanges, JobTurn
from spark_pipeline.errors import PipelineError

LOG = logging.getLogger(__name__)

_ATTEMPTS_MAX = 100

Change = Callable[[JobRanges], tuple[JobRanges, JobTurn | None]]


def load(log: LogApi, group: str) -> tuple[JobRanges, int]:
    """What the jobs of a group know, and the version of the record, 0 when there is none.  Raises GroupNotFound."""
    declaration = groups.get(log, group)
    record = log.get_record(Names(group).jobs)
    found = None if record is None else sharing.decode(record.value)
    origin = GroupOrigin(declaration.declared_ns, declaration.generation)
    if found is None or found.origin != origin:
        found = sharing.begin(origin, declaration.positions, found)
    return found, 0 if record is None else record.version


def change(log: LogApi, group: str, how: Change) -> JobTurn | None:
    """Apply a change to the record, on what others have made of it meanwhile.

    Returns the turn that the change took.  Raises GroupNotFound, what the change raises, and PipelineError when others
    are always faster.
    """
    for _ in range(_ATTEMPTS_MAX):
        found, version = load(log, group)
        wanted, turn = how(found)
        if wanted is found:
            return turn
        try:
            log.put_records([(Names(group).jobs, sharing.encode(wanted), version)])
        except RecordConflict:
            continue
        if wanted.expired > found.expired:
            LOG.warning(
                "Group %s: retention dropped %d events before a job took them.",
                group, wanted.expired - found.expired,
            )  # fmt: skip
        return turn
    raise PipelineError(f"group {group}: the record of its jobs changed {_ATTEMPTS_MAX} times while it was written")


def release(log: LogApi, group: str, job: str) -> int:
    """Free the name of a job whose checkpoint is gone.  The next one that comes under it is given what this one had in
    work: so many events, which is returned.  Raises GroupNotFound, UsageError when there is no such job."""
    change(log, group, lambda found: (sharing.release(found, job), None))
    return next((one.in_work for one in show(log, group).jobs if one.name == job), 0)


@dataclasses.dataclass(frozen=True)
class JobView:
    """One job of a group."""

    name: str
    turns: int
    """Micro-batches that it has taken."""
    in_work: int
    """Events that it has taken and not acknowledged."""
    is_claimed: bool
    """Whether the name belongs to a checkpoint; if not, the next job that comes under it has it."""


@dataclasses.dataclass(frozen=True)
class JobsView:
    """How far the Spark jobs of a group are."""

    lag: int
    """Events that no job has taken."""
    expired: int
    """Events that retention dropped before a job took them."""
    jobs: list[JobView]
    """By name."""

    @property
    def in_work(self) -> dict[str, int]:
        """Job -> events that it has in work, of jobs that have some."""
        return {job.name: job.in_work for job in self.jobs if job.in_work}


def show(log: LogApi, group: str) -> JobsView:
    """Look at the jobs of a group without changing anything.  Raises GroupNotFound."""
    found, _ = load(log, group)
    lag = sum(max(0, state.end - found.taken.get(state.shard, 0)) for state in log.state())
    jobs = [
        JobView(name, job.last, 0 if job.turn is None else job.turn.events, bool(job.checkpoint))
        for name, job in sorted(found.jobs.items())
    ]
    return JobsView(lag, found.expired, jobs)
