"""How the jobs of a group share its events: who has taken which ranges of which shard.  Pure values, no I/O.

Theory of operation.  The group has one record in its log.  It says, per shard, up to where events have been taken by
anybody, and per job what it has taken and not finished.  A job *takes a turn*: one write, compared and set, moves the
shards on and notes the ranges under the job's name, so no event can be taken twice and none is skipped.  Spark writes
the turn, ranges and all, into the job's checkpoint.  Whatever dies afterwards, the checkpoint says what the batch is
made of, and when it died before, the record still has the turn and offers it again.

So exactness rests on the write alone: there is no lease, no leader and no clock.  The price is that a turn waits for
its own job to return: nobody else can know how much of it has taken effect.

In a ``shared`` group a shard is with one job at a time, from the turn until it is finished, so the events of a topic
and key are in order over all jobs.  In a ``queue`` group the next job takes what follows at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from pubsub_api.core.errors import UndecodableBody
from pubsub_api.errors import UsageError
from spark_pipeline.ranges import LogRange, Offsets, advance

JOBS_MAX = 1_000
"""Names of jobs that a group remembers."""


class Turn(msgspec.Struct, frozen=True):
    """What one micro-batch of a job is made of."""

    number: int
    """Rises with every turn of a job; 0 is before the first one."""
    ranges: tuple[LogRange, ...] = ()


class Job(msgspec.Struct, frozen=True):
    last: int = 0
    """Number of its last turn."""
    turn: Turn | None = None
    """The one that is not finished."""


class Origin(NamedTuple):
    """Which life of a group this is: declaring it anew or moving it starts another one."""

    declared_ns: int
    generation: int


class Shares(msgspec.Struct, frozen=True):
    """The record of a group."""

    origin: Origin
    taken: dict[int, int]
    """Shard -> events before this offset have been taken."""
    jobs: dict[str, Job] = {}
    expired: int = 0
    """Events that retention dropped before anybody took them."""


class Waiting(NamedTuple):
    """What a job may take from."""

    starts: Offsets
    """The oldest events that can be read."""
    ends: Offsets
    is_ordered: bool
    """One job at a time has a shard."""
    events_max: int | None


def begin(origin: Origin, positions: Sequence[int], former: Shares | None) -> Shares:
    """A group that begins at these positions.  Its jobs go on counting their turns; turns that nobody finished belonged
    to the life before."""
    jobs = {} if former is None else {name: Job(job.last) for name, job in former.jobs.items()}
    return Shares(origin, dict(enumerate(positions)), jobs)


def finish(shares: Shares, name: str, number: int) -> Shares:
    """The turns of a job up to this number have taken effect.  Returns the very same value when that was known."""
    job = shares.jobs.get(name)
    if job is None or job.turn is None or job.turn.number > number:
        return shares
    return _with_job(shares, name, Job(max(job.last, number)))


def take(shares: Shares, name: str, after: int, waiting: Waiting) -> tuple[Shares, Turn | None]:
    """The turn that a job makes after the one of this number: the one it has taken and not finished, else a new one.

    None when there is nothing to take.  Raises UsageError when the group has too many jobs.
    """
    shares = finish(shares, name, after)
    job = shares.jobs.get(name, Job())
    if job.turn is not None:
        return shares, job.turn
    shares = _register(_expire(shares, waiting.starts), name)
    free = _free_shards(shares, name, waiting)
    begins = {shard: shares.taken[shard] for shard in free}
    until = advance(begins, {shard: waiting.ends[shard] for shard in free}, events_max=waiting.events_max)
    ranges = tuple(LogRange(shard, begins[shard], end) for shard, end in sorted(until.items()) if end > begins[shard])
    if not ranges:
        return shares, None
    turn = Turn(max(job.last, after) + 1, ranges)
    shares = msgspec.structs.replace(shares, taken=shares.taken | {one.shard: one.end for one in ranges})
    return _with_job(shares, name, Job(turn.number, turn)), turn


def _expire(shares: Shares, starts: Offsets) -> Shares:
    gone = sum(max(0, starts.get(shard, 0) - taken) for shard, taken in shares.taken.items())
    if not gone:
        return shares
    taken = {shard: max(offset, starts.get(shard, 0)) for shard, offset in shares.taken.items()}
    return msgspec.structs.replace(shares, taken=taken, expired=shares.expired + gone)


def _register(shares: Shares, name: str) -> Shares:
    if name in shares.jobs:
        return shares
    if len(shares.jobs) >= JOBS_MAX:
        raise UsageError(f"this group has {JOBS_MAX} jobs already: let jobs keep their names across restarts")
    return _with_job(shares, name, Job())


def _free_shards(shares: Shares, name: str, waiting: Waiting) -> list[int]:
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
    free = [shard for shard in ready if shard not in held]
    free.sort(key=lambda shard: shares.taken[shard] - waiting.ends[shard])
    return free[:part]


def _with_job(shares: Shares, name: str, job: Job) -> Shares:
    return msgspec.structs.replace(shares, jobs=shares.jobs | {name: job})


# -- how they are kept

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Shares).decode


def encode(shares: Shares) -> bytes:
    return _encode(shares)


def decode(value: bytes) -> Shares:
    """Raises UndecodableBody."""
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UndecodableBody(f"the record of a group's jobs cannot be decoded: {error}") from error


def turn_to_json(turn: Turn) -> dict[str, object]:
    """As Spark keeps it in a checkpoint."""
    return {"turn": turn.number, "ranges": [list(one) for one in turn.ranges]}


def turn_from_json(offset: Mapping[str, object]) -> Turn:
    """Raises UsageError when the checkpoint is not that of a job of a group."""
    try:
        return msgspec.convert({"number": offset["turn"], "ranges": offset["ranges"]}, Turn)
    except (KeyError, TypeError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"this checkpoint was not written by a job of a group: start with a new one ({offset!r})"
        ) from error
