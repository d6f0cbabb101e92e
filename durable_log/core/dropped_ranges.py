"""What retention by topic has removed from a segment, kept small.

A segment says of each run of offsets that went of which topic it was.  Where that would be too much, runs of a topic
are joined over what lies between them, the nearest first; and where there are too many topics, a filter that matches
all of them stands for them.  So what is said may be too much, and is never too little.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pubsub_api.core.topics import CONTROL_TOPIC

DROPPED_RANGES_MAX = 32
"""Of a segment: a few kilobytes of its entry in the manifest."""


class DroppedRange(NamedTuple):
    """Offsets of a segment of which retention by topic has removed some, or all."""

    topic: str
    """Of what was removed, or a filter that matches all topics of which something was."""
    first: int
    end: int
    """Without this one."""
    events: int
    """Removed in this range."""
    dropped_ns: int
    """When, by the store's clock; the last time, when it was several times."""


def bounded(ranges: Iterable[DroppedRange], limit: int = DROPPED_RANGES_MAX) -> tuple[DroppedRange, ...]:
    """The same in at most so many ranges, in order of their offsets."""
    found = sorted(ranges, key=operator.attrgetter("first"))
    if len(found) <= limit:
        return tuple(found)
    topics = {one.topic for one in found}
    if len(topics) > limit:
        name = _common_filter(topics)
        found, topics = [one._replace(topic=name) for one in found], {name}
    found.sort(key=lambda one: (one.topic, one.first))
    gaps = sorted(
        (after.first - one.end, place)
        for place, (one, after) in enumerate(itertools.pairwise(found))
        if one.topic == after.topic
    )
    joined = {place for _, place in gaps[: len(found) - limit]}
    left: list[DroppedRange] = []
    for place, one in enumerate(found):
        if place - 1 in joined:
            left[-1] = _join(left[-1], one)
        else:
            left.append(one)
    return tuple(sorted(left, key=operator.attrgetter("first")))


def common_parts(holes: Sequence[tuple[int, int]], ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of holes that lie in any of the ranges, in order.  All of them are from the first offset up to but
    without the second; holes are in order and do not overlap."""
    found: list[tuple[int, int]] = []
    place = done = 0
    for begin, end in sorted(ranges):
        while place < len(holes) and holes[place][1] <= begin:
            place += 1
        for low, high in itertools.islice(holes, place, None):
            if low >= end:
                break
            first, beyond = max(begin, low, done), min(end, high)
            if first < beyond:
                found.append((first, beyond))
                done = beyond
    return found


def _join(one: DroppedRange, after: DroppedRange) -> DroppedRange:
    return one._replace(
        end=max(one.end, after.end), events=one.events + after.events, dropped_ns=max(one.dropped_ns, after.dropped_ns)
    )


def _common_filter(topics: Iterable[str]) -> str:
    """One that matches all of them.  No filter matches names that begin with ``$``, and no subscriber follows them."""
    paths = [
        topic.removesuffix("#").rstrip("/").split("/") for topic in topics if not topic.startswith(CONTROL_TOPIC[0])
    ]
    levels = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return "/".join([*(level[0] for level in levels if level[0]), "#"])
