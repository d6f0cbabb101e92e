"""Reading a whole log and checking that it is what it says: the work behind ``heliograph log verify``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from durable_log.core.positions import decode_position, wrong_end
from durable_log.errors import LogCorrupt, OffsetTooOld
from durable_log.log_api import LogApi, Segment, ShardState
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.errors import FrameError, InvalidConfig

OnProgress = Callable[[int, int], None]
"""How much is done, and how much there is."""


@dataclasses.dataclass
class LogVerification:
    """What was looked at, and what was found to be wrong, a sentence each."""

    shards: int = 0
    frames: int = 0
    events: int = 0
    undecodable: int = 0
    """Events of frames that are sound and whose body no publisher of ours would have sent.  Not an error of the log."""
    segments: int = 0
    segment_bytes: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)
    given_up: list[str] = dataclasses.field(default_factory=list)
    """Offsets that were damaged and given up, a sentence each.  An operator decided so: not an error any more."""
    unlisted: list[str] = dataclasses.field(default_factory=list)
    """Files of segments that the manifest does not list.  Not an error of the log: no process reads or removes
    them.  An older store was restored, most likely."""


def verify(log: LogApi, *, on_progress: OnProgress = lambda _done, _total: None) -> LogVerification:
    """Check every file, every frame and every offset.  Reads everything once; others may use the log meanwhile.

    ``on_progress`` is told how many offsets were read, of how many.  Raises LogUnavailable; whatever else is wrong
    becomes a problem.
    """
    found = LogVerification()
    if isinstance(log, SegmentedLog):
        found.problems += log.check_store()
        found.unlisted += _unlisted(log)
    states = log.state()
    done, total = 0, sum(state.end - state.start for state in states)
    for state in states:
        before = done - state.start

        def on_offset(offset: int, before: int = before) -> None:
            on_progress(min(before + offset, total), total)

        found.shards += 1
        found.problems += _check_files(log, state, found)
        found.problems += _check_frames(log, state, found, on_offset)
        done += state.end - state.start
        if isinstance(log, SegmentedLog):
            found.problems += _check_positions(log, state.shard)
    return found


def _check_files(log: LogApi, state: ShardState, found: LogVerification) -> Iterator[str]:
    place = state.start
    try:
        segments = log.segments(state.shard)
    except LogCorrupt as error:
        yield str(error)
        return
    for segment in segments:
        found.segments += 1
        found.segment_bytes += segment.bytes
        for first, _, end in (one.partition("-") for one in segment.lost.split()):
            found.given_up.append(
                f"shard {state.shard}, offsets {first} to {end}: damaged and given up, they are nowhere else"
            )
        if segment.first > place and segment.first > log.state()[state.shard].start:  # or it was trimmed meanwhile
            yield f"shard {state.shard}: no segment has offsets {place} to {segment.first}"
        place = segment.end
        try:
            if isinstance(log, SegmentedLog):
                log.segment_store.check(segment)
        except LogCorrupt as error:
            if segment in log.segments(state.shard):
                yield str(error)


def _check_frames(
    log: LogApi, state: ShardState, found: LogVerification, on_offset: Callable[[int], None]
) -> Iterator[str]:
    """Offsets are without holes, except where compaction made some, which only it can."""
    offset = state.start
    try:
        compacted = _compacted(log, state.shard)
    except LogCorrupt:
        offset, compacted = state.sealed, []  # told already
    while offset < state.end:
        on_offset(offset)
        try:
            frames = log.read(state.shard, offset)
        except OffsetTooOld as error:
            offset = error.start
            continue
        except LogCorrupt as error:
            yield str(error)
            offset = max(offset + 1, error.end if error.end is not None else state.end)
            continue
        for place, end in [(one.offset, one.end) for one in frames] or [(state.end, state.end)]:
            if place > offset and not _covers(compacted, offset, place):
                with contextlib.suppress(LogCorrupt):
                    compacted = _compacted(log, state.shard)  # others may have compacted meanwhile
                if not _covers(compacted, offset, place):
                    yield f"shard {state.shard}: offsets {offset} to {place} are missing"
            offset = end
        for one in frames:
            found.frames += 1
            found.events += one.count
            try:
                one.events()
            except FrameError:
                found.undecodable += one.count


def _compacted(log: LogApi, shard: int) -> list[Segment]:
    return [segment for segment in log.segments(shard) if segment.rows != segment.end - segment.first]


def _covers(compacted: Sequence[Segment], start: int, end: int) -> bool:
    """Whether all of a range lies where compaction was."""
    for part in compacted:
        if part.first <= start < part.end:
            start = part.end
    return start >= end


def _check_positions(log: SegmentedLog, shard: int) -> Iterator[str]:
    """Where streams stand, and that no frame lies behind the end."""
    for key, stored in log.positions(shard):
        try:
            decode_position(shard, key, stored)
        except LogCorrupt as error:
            yield str(error)
    if log.stored_end(shard) > log.state()[shard].end:
        yield str(wrong_end(shard))


def _unlisted(log: SegmentedLog) -> list[str]:
    try:
        listed = {segment.path for segment in log.segments()}
        found = list(log.segment_store.published()) if log.has_place else []
    except (LogCorrupt, InvalidConfig):
        return []
    starts = {state.shard: state.start for state in log.state()}
    return [path for shard, name, path in found if path not in listed and name.end > starts.get(shard, 0)]
