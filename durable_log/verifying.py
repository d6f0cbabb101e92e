"""Reading a whole log and checking that it is what it says: the work behind ``heliograph log verify``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from durable_log.errors import LogCorrupt, OffsetTooOld
from durable_log.log_api import LogApi, ShardState
from durable_log.segments import check_file
from pubsub_api.errors import FrameError


@dataclasses.dataclass
class Verification:
    """What was looked at, and what was found to be wrong, a sentence each."""

    shards: int = 0
    frames: int = 0
    events: int = 0
    undecodable: int = 0
    """Events of frames that are sound and whose body no publisher of ours would have sent.  Not an error of the log."""
    segments: int = 0
    segment_bytes: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)


def verify(log: LogApi) -> Verification:
    """Check every file, every frame and every offset.  Reads everything once; others may use the log meanwhile.

    Raises LogUnavailable; whatever else is wrong becomes a problem.
    """
    found = Verification()
    for state in log.state():
        found.shards += 1
        found.problems += _check_files(log, state, found)
        found.problems += _check_frames(log, state, found)
    return found


def _check_files(log: LogApi, state: ShardState, found: Verification) -> Iterator[str]:
    place = state.start
    for segment in log.segments(state.shard):
        found.segments += 1
        found.segment_bytes += segment.bytes
        if segment.first > place:
            yield f"shard {state.shard}: no segment has offsets {place} to {segment.first}"
        place = segment.end
        try:
            check_file(segment)
        except LogCorrupt as error:
            if segment in log.segments(state.shard):
                yield str(error)


def _check_frames(log: LogApi, state: ShardState, found: Verification) -> Iterator[str]:
    """Offsets are without holes, except where compaction made some, which only it can."""
    offset = state.start
    compacted = [segment for segment in log.segments(state.shard) if segment.rows != segment.end - segment.first]
    while offset < state.end:
        try:
            frames = log.read(state.shard, offset)
        except OffsetTooOld as error:
            offset = error.start
            continue
        except LogCorrupt as error:
            yield str(error)
            offset = _next_readable(log, state, offset)
            continue
        if not frames:
            yield f"shard {state.shard}: offsets {offset} to {state.end} are missing"
            return
        for one in frames:
            if one.offset > offset and not any(part.first < one.offset and part.end > offset for part in compacted):
                yield f"shard {state.shard}: offsets {offset} to {one.offset} are missing"
            offset = one.end
            found.frames += 1
            found.events += one.count
            try:
                one.events()
            except FrameError:
                found.undecodable += one.count


def _next_readable(log: LogApi, state: ShardState, offset: int) -> int:
    """Behind the segment that cannot be read."""
    ends = [segment.end for segment in log.segments(state.shard) if segment.first <= offset < segment.end]
    return ends[0] if ends else state.end
