"""Which shard has a topic, also after a log was given more shards, and what is to be read before it.

A log can be given a multiple of the shards that it has.  The hash of a topic modulo the number of shards then selects
either the shard that had the topic, or one that is new; never another old one.  So each new shard takes a part of the
topics of exactly one shard, its *parent*, and only from a recorded offset of the parent on: where that ended when the
shards were added.  A reader that reads the parent up to there, and then the new shard, has each topic in order.

Pure: the store keeps `GrowthStep`s in a record, written in the transaction that adds the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from durable_log.errors import LogCorrupt
from durable_log.log_api import ShardState, shard_of
from pubsub_api.errors import UsageError

RECORD = "log/growth"


class GrowthStep(NamedTuple):
    """A log got more shards."""

    shards: int
    """How many it has since then."""
    ends: tuple[int, ...]
    """Where each of the shards ended that it had before."""


class ShardMap(NamedTuple):
    """How many shards there are, and how they came about."""

    shards: int
    steps: tuple[GrowthStep, ...] = ()

    @property
    def former(self) -> tuple[int, ...]:
        """How many shards the log had before it got more, oldest first."""
        return tuple(len(step.ends) for step in self.steps)

    def shards_of(self, topic: str) -> tuple[int, ...]:
        """Every shard that may have events of a topic, in the order in which they are to be read; new ones go to the
        last."""
        return tuple(dict.fromkeys(shard_of(topic, shards) for shards in (*self.former, self.shards)))

    def after(self, shard: int) -> tuple[tuple[int, int], ...]:
        """Shards, and up to which offset each has to be read before this one; empty for one that was there from the
        beginning."""
        found: list[tuple[int, int]] = []
        for step in reversed(self.steps):
            before = len(step.ends)
            if shard >= before:
                shard %= before
                found.append((shard, step.ends[shard]))
        return tuple(reversed(found))

    def grown(self, shards: int, ends: Sequence[int]) -> ShardMap:
        """With more shards.  Raises UsageError when that is no multiple of what there is."""
        if shards % self.shards or shards <= self.shards:
            raise UsageError(
                f"the log has {self.shards} shards and can be given a multiple of that, so that each topic keeps its "
                f"order; not {shards}"
            )
        return ShardMap(shards, (*self.steps, GrowthStep(shards, tuple(ends))))


def is_open(state: ShardState, done: Callable[[int], int]) -> bool:
    """Whether a shard may be read when all of each shard before the offset that ``done`` gives is finished."""
    return all(done(shard) >= offset for shard, offset in state.after)


def encode(found: ShardMap) -> bytes:
    """As the record keeps it: a line for each step, with the number of shards and the ends, so that a script in a store
    can add one."""
    return b"".join(b"%d %b\n" % (shards, b" ".join(b"%d" % end for end in ends)) for shards, ends in found.steps)


def decode(shards: int, value: bytes | None) -> ShardMap:
    """From the record; a log that has none was made with its shards.  Raises LogCorrupt."""
    if value is None:
        return ShardMap(shards)
    try:
        numbers = [[int(number) for number in line.split()] for line in value.splitlines()]
        steps = tuple(GrowthStep(count, tuple(ends)) for count, *ends in numbers)
        return ShardMap(steps[-1].shards, steps)
    except (ValueError, IndexError) as error:
        raise LogCorrupt(
            f"the record {RECORD!r}, which says how the log got its shards, is damaged: {error}"
        ) from error
