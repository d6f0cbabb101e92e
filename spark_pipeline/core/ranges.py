"""Which offsets of which shard a task reads.  Pure arithmetic over the log's state, shared by batch and streaming
reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pubsub_api.errors import UsageError

Offsets = Mapping[int, int]
"""Shard -> offset."""


class LogRange(NamedTuple):
    """Events of a shard from ``start`` on, up to but without ``end``."""

    shard: int
    start: int
    end: int

    @property
    def events(self) -> int:
        return self.end - self.start


def split(ranges: Iterable[LogRange], *, events_max: int) -> Iterator[LogRange]:
    """The same events in ranges of at most that many, as equal as possible, so that a shard with most of the data keeps
    every task busy.  Empty ranges vanish."""
    for shard, start, end in ranges:
        parts = -(-(end - start) // events_max)
        for part in range(parts):
            yield LogRange(shard, start + (end - start) * part // parts, start + (end - start) * (part + 1) // parts)


def pack(ranges: Iterable[LogRange], *, events_max: int) -> list[tuple[LogRange, ...]]:
    """The same ranges in bundles: short ones together, of at most that many events; a longer one is alone."""
    bundles: list[tuple[LogRange, ...]] = []
    for one in ranges:
        last = bundles[-1] if bundles else ()
        if bundles and sum(part.events for part in last) + one.events <= events_max:
            bundles[-1] = (*last, one)
        else:
            bundles.append((one,))
    return bundles


def advance(start: Offsets, ends: Offsets, *, events_max: int | None) -> dict[int, int]:
    """Where a micro-batch ends that takes at most so many events, spread over the shards in proportion to what
    waits.  Never before its start: a shard whose end was reached stays where it is."""
    waiting = {shard: max(0, end - start.get(shard, 0)) for shard, end in ends.items()}
    total = sum(waiting.values())
    if events_max is None or total <= events_max:
        return {shard: start.get(shard, 0) + count for shard, count in waiting.items()}
    # Rounded up, so that every shard that has something moves on.
    return {
        shard: start.get(shard, 0) + min(count, -(-count * events_max // total)) for shard, count in waiting.items()
    }


def to_json(offsets: Offsets) -> dict[str, int]:
    """As Spark keeps offsets: a dictionary with strings for keys."""
    return {str(shard): offset for shard, offset in sorted(offsets.items())}


def from_json(offsets: Mapping[str, int] | str) -> dict[int, int]:
    """Read it back, from a dictionary or its text.  Raises UsageError."""
    try:
        given = json.loads(offsets) if isinstance(offsets, str) else offsets
        if any(type(offset) is not int for offset in given.values()):
            raise TypeError("not a whole number")
        return {int(shard): offset for shard, offset in given.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f'offsets are written as {{"0": 17, "1": 0}}, shard and offset, not {offsets!r}') from error
