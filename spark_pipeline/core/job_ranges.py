"""How the jobs of a group share its events: which job has taken which ranges of which shard.  Pure values, no I/O.

Theory of operation.  The group has one record in its log.  It says, per shard, up to where events have been taken by
any job, and per job what it has taken and not finished.  A job *takes a turn*: one write, compared and set, moves the
shards on and notes the ranges under the job's name, so no event can be taken twice and none is skipped.  Spark writes
the turn, ranges and all, into the job's checkpoint.  Whatever dies afterwards, the checkpoint says what the batch is
made of, and when it died before, the record still has the turn and offers it again.

So exactness rests on the write alone: there is no lease, no leader and no clock.  The price is that a turn waits for
its own job to return: no other job can know how much of it has taken effect.

Two queries under one name would both be offered the turn that is not finished.  So a name belongs to one checkpoint.
Every checkpoint gets a mark in its first micro-batch, which is empty; when it comes back with the mark, it exists, and
claims the name in the same write that takes its first turn.  A job with another mark is refused.  A checkpoint that
was lost gives its name back only when an operator says so (`release`).

A copy of a checkpoint has the same mark.  A source does not learn where its checkpoint is, but a copy betrays itself as
soon as both are used.  When one has gone on and the other is started later, that one stands before a turn which was
acknowledged, and its next turn would be another job's.  When both run at once, the one that started last has put its
own run in the record, which the other finds at its next step.  Either way it is refused (`CheckpointCopied`) before it
takes anything more.  A checkpoint that was moved while its job was stopped is the only one of its mark, and goes on.

In a ``shared`` group a shard is with one job at a time, from the turn until it is finished, so the events of a topic
and key are in order over all jobs; and a shard that has taken topics over from another one waits until that one is
finished up to there.  In a ``queue`` group the next job takes what follows at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from pubsub_api.core.errors import UndecodableBody
from pubsub_api.errors import UsageError
from spark_pipeline.core.ranges import LogRange, Offsets, advance
from spark_pipeline.errors import CheckpointCopied, JobNameTaken

JOBS_MAX = 1_000
"""Names of jobs that a group remembers."""


class JobTurn(msgspec.Struct, frozen=True):
    """What one micro-batch of a job is made of."""

    number: int
    """Rises with every turn of a job; 0 is before the first one."""
    ranges: tuple[LogRange, ...] = ()

    @property
    def events(self) -> int:
        return sum(one.events for one in self.ranges)


class QueryPlace(NamedTuple):
    """Where a query is, as Spark keeps it in its checkpoint."""

    turn: JobTurn
    """The last one that was planned."""
    checkpoint: str = ""
    """The mark of the checkpoint; empty before it has one."""


class Job(msgspec.Struct, frozen=True):
    last: int = 0
    """Number of its last turn."""
    turn: JobTurn | None = None
    """The one that is not finished."""
    checkpoint: str = ""
    """The mark of the checkpoint that the name belongs to; empty when the next job may have it."""
    run: str = ""
    """The run of the query that came last with that checkpoint."""
    finished: int = 0
    """Number of the last turn that was acknowledged."""


class Run(NamedTuple):
    """One run of a query, from its start to its end."""

    mark: str
    has_begun: bool
    """Whether it has been noted in the record."""


class GroupOrigin(NamedTuple):
    """Which life of a group this is: declaring it anew or moving it starts another one."""

    declared_ns: int
    generation: int


class JobRanges(msgspec.Struct, frozen=True):
    """The record of a group."""

    origin: GroupOrigin
    taken: dict[int, int]
    """Shard -> events before this offset have been taken."""
    jobs: dict[str, Job] = {}
    expired: int = 0
    """Events that retention dropped before a job took them."""


class AvailableRanges(NamedTuple):
    """What a job may take from."""

    starts: Offsets
    """The oldest events that can be read."""
    ends: Offsets
    is_ordered: bool
    """One job at a time has a shard."""
    events_max: int | None
    after: Mapping[int, Sequence[tuple[int, int]]] = {}
    """Shard -> shards from which it has taken topics over, and up to which offset each."""


def begin(origin: GroupOrigin, positions: Sequence[int], former: JobRanges | None) -> JobRanges:
    """A group that begins at these positions.  When it was moved, its jobs keep their names and go on counting; turns
    that no job finished belonged to the life before.  A group that was declared anew knows nothing of an older one."""
    jobs = {}
    if former is not None and former.origin.declared_ns == origin.declared_ns:
        jobs = {name: msgspec.structs.replace(job, turn=None) for name, job in former.jobs.items()}
    return JobRanges(origin, dict(enumerate(positions)), jobs)


def finish(shares: JobRanges, name: str, place: QueryPlace, run: Run) -> JobRanges:
    """The turns of a job up to this place have taken effect.  Returns the very same value when that was known.  Raises
    JobNameTaken, CheckpointCopied."""
    check_name(shares, name, place.checkpoint)
    job = shares.jobs.get(name)
    if job is not None and job.checkpoint:
        _check_run(job, name, place, run)
    if job is None or job.turn is None or job.turn.number > place.turn.number:
        return shares
    last = max(job.last, place.turn.number)
    return _with_job(shares, name, msgspec.structs.replace(job, last=last, turn=None, finished=job.turn.number))


def take(
    shares: JobRanges, name: str, place: QueryPlace, waiting: AvailableRanges, run: Run
) -> tuple[JobRanges, JobTurn | None]:
    """The turn that a job makes after this place: the one it has taken and not finished, else a new one.

    None when there is nothing to take.  The name is the checkpoint's from now on, and this run its only one.  Raises
    JobNameTaken when it belongs to another one, CheckpointCopied, UsageError when the group has too many jobs.
    """
    shares = _claim(finish(shares, name, place, run), name, place.checkpoint, run)
    job = shares.jobs[name]
    if job.turn is not None:
        return shares, job.turn
    shares = _expire(_with_shards(shares, waiting.starts), waiting.starts)
    free = _free_shards(shares, name, waiting)
    begins = {shard: shares.taken[shard] for shard in free}
    until = advance(begins, {shard: waiting.ends[shard] for shard in free}, events_max=waiting.events_max)
    ranges = tuple(LogRange(shard, begins[shard], end) for shard, end in sorted(until.items()) if end > begins[shard])
    if not ranges:
        return shares, None
    turn = JobTurn(max(job.last, place.turn.number) + 1, ranges)
    shares = msgspec.structs.replace(shares, taken=shares.taken | {one.shard: one.end for one in ranges})
    return _with_job(shares, name, msgspec.structs.replace(job, last=turn.number, turn=turn)), turn


def check_name(shares: JobRanges, name: str, checkpoint: str) -> None:
    """Raises JobNameTaken when the name belongs to another checkpoint."""
    job = shares.jobs.get(name)
    if job is not None and job.checkpoint not in ("", checkpoint):
        raise JobNameTaken(
            f"the name {name!r} belongs to a job with another checkpoint: give each job a name of its own; when that "
            "checkpoint is gone for good, free the name with: heliograph group release GROUP JOB"
        )


def release(shares: JobRanges, name: str) -> JobRanges:
    """The next job that comes under this name has it, whatever its checkpoint, and what is not finished.  Raises
    UsageError when there is no such job."""
    job = shares.jobs.get(name)
    if job is None:
        known = ", ".join(sorted(shares.jobs)) or "none"
        raise UsageError(f"this group has no job {name!r}; there are: {known}")
    if not job.checkpoint:
        return shares
    return _with_job(shares, name, msgspec.structs.replace(job, checkpoint="", run="", finished=0))


def _check_run(job: Job, name: str, place: QueryPlace, run: Run) -> None:
    if place.turn.number < job.finished:
        found = f"is at turn {place.turn.number}, and turn {job.finished} was acknowledged from it"
    elif run.has_begun and job.run != run.mark:
        found = "was gone on from by a query that started after this one"
    else:
        return
    raise CheckpointCopied(
        f"the checkpoint of the job {name!r} {found}: there is a copy of it, or this is one. Only the newest copy can "
        "go on; run another job with a new, empty checkpoint and a name of its own. To move a checkpoint, stop its job "
        "first"
    )


def _expire(shares: JobRanges, starts: Offsets) -> JobRanges:
    gone = sum(max(0, starts.get(shard, 0) - taken) for shard, taken in shares.taken.items())
    if not gone:
        return shares
    taken = {shard: max(offset, starts.get(shard, 0)) for shard, offset in shares.taken.items()}
    return msgspec.structs.replace(shares, taken=taken, expired=shares.expired + gone)


def _with_shards(shares: JobRanges, starts: Offsets) -> JobRanges:
    """With the shards that the log was given since, from their first event on."""
    new = dict.fromkeys(starts.keys() - shares.taken.keys(), 0)
    return msgspec.structs.replace(shares, taken=shares.taken | new) if new else shares


def _claim(shares: JobRanges, name: str, checkpoint: str, run: Run) -> JobRanges:
    job = shares.jobs.get(name)
    if job is None and len(shares.jobs) >= JOBS_MAX:
        raise UsageError(f"this group has {JOBS_MAX} jobs already: let jobs keep their names across restarts")
    if job is not None and (job.checkpoint, job.run) == (checkpoint, run.mark):
        return shares
    return _with_job(shares, name, msgspec.structs.replace(job or Job(), checkpoint=checkpoint, run=run.mark))


def _free_shards(shares: JobRanges, name: str, waiting: AvailableRanges) -> list[int]:
    """Shards that have something for this job.  In order, each job takes its part of them, the fullest ones, so that a
    busy job leaves some to the others."""
    ready = [shard for shard, taken in shares.taken.items() if waiting.ends.get(shard, 0) > taken]
    if not waiting.is_ordered:
        return ready
    held = {
        one.shard
        for other, job in shares.jobs.items()
        if other != name and job.turn is not None
        for one in job.turn.ranges
    }
    part = -(-len(held.union(ready)) // len(shares.jobs))
    working = [one for job in shares.jobs.values() if job.turn is not None for one in job.turn.ranges]

    def is_open(shard: int) -> bool:
        """Whether what its topics have in other shards is finished, and not only taken."""
        return all(
            shares.taken.get(parent, 0) >= offset
            and not any(one.shard == parent and one.start < offset for one in working)
            for parent, offset in waiting.after.get(shard, ())
        )

    free = [shard for shard in ready if shard not in held and is_open(shard)]
    free.sort(key=lambda shard: shares.taken[shard] - waiting.ends[shard])
    return free[:part]


def _with_job(shares: JobRanges, name: str, job: Job) -> JobRanges:
    return msgspec.structs.replace(shares, jobs=shares.jobs | {name: job})


# -- how they are kept

_decode = msgspec.msgpack.Decoder(JobRanges).decode
encode = msgspec.msgpack.Encoder().encode


def decode(value: bytes) -> JobRanges:
    """Raises UndecodableBody."""
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UndecodableBody(f"the record of a group's jobs cannot be decoded: {error}") from error


def place_to_json(place: QueryPlace) -> dict[str, object]:
    """As Spark keeps it in a checkpoint."""
    turn = place.turn
    return {"turn": turn.number, "ranges": [list(one) for one in turn.ranges], "checkpoint": place.checkpoint}


def place_from_json(offset: Mapping[str, object]) -> QueryPlace:
    """Raises UsageError when the checkpoint is not that of a job of a group."""
    try:
        turn = msgspec.convert({"number": offset["turn"], "ranges": offset["ranges"]}, JobTurn)
        return QueryPlace(turn, msgspec.convert(offset.get("checkpoint", ""), str))
    except (KeyError, TypeError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"this checkpoint was not written by a job of a group: start with a new one ({offset!r})"
        ) from error
