"""Going on without what is damaged: the work behind ``heliograph log repair --give-up-damaged``.

What a damaged frame or segment held is lost, and its offsets are a hole: readers pass over it, and the manifest says
which offsets they are for as long as the segment is kept (`Segment.lost`).  The file of a damaged segment is kept under
another name, in case something can be got out of it.
"""

from __future__ import annotations

from durable_log.errors import LogCorrupt
from durable_log.log_api import Segment
from durable_log.segments.files import SegmentEnding, encode_lost, write_segment
from durable_log.segments.ownership import stored_mark, write_mark
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.upkeep.repairing import RepairReport


def give_up_damaged(log: SegmentedLog, report: RepairReport) -> None:
    """Replace the segments whose files are damaged or missing by empty ones, then seal the shards that have damaged
    frames in the store without those.  Call it after `repair`, which finds every file that can be used.

    Raises LogUnavailable, SegmentsRefused, DriverDependencyMissing.
    """
    sealer, store = Sealer(log), log.segment_store
    with store.lock(log):
        mark, version = stored_mark(store)
        if mark is None:  # all is lost: what was refused because of that is the log's own from now on
            write_mark(store, log.lineage, log.shards, version, log.directory_token())
    for shard in range(log.shards):
        with sealer.lock():
            _give_up_sealed(log, sealer, shard, report)
    for state in log.state():
        offset = state.sealed
        try:
            while frames := log.hot_read(state.shard, offset, events_max=10_000, bytes_max=16 << 20).frames:
                offset = frames[-1].end
        except LogCorrupt as error:
            report.notes.append(f"given up: {error}")
            sealer.seal(state.shard, gives_up=True)
    report.given_up += sealer.given_up


def _give_up_sealed(log: SegmentedLog, sealer: Sealer, shard: int, report: RepairReport) -> None:
    state, segments = log.state()[shard], log.segments(shard)
    place, appended_ns = state.start, 0
    for segment in segments:
        if segment.first > place:
            _leave_out(log, sealer, (shard, place, segment.first), None, appended_ns, report)
        try:
            log.segment_store.check(segment)
        except LogCorrupt as error:
            report.notes.append(f"given up: {error}")
            _leave_out(log, sealer, (shard, segment.first, segment.end), segment, segment.appended_ns_max, report)
        place, appended_ns = segment.end, segment.appended_ns_max
    if place < state.sealed:
        _leave_out(log, sealer, (shard, place, state.sealed), None, appended_ns, report)


def _leave_out(
    log: SegmentedLog, sealer: Sealer, span: tuple[int, int, int], old: Segment | None, appended_ns: int,
    report: RepairReport,
) -> None:  # fmt: skip
    """Put an empty segment in the place of a damaged one, or where the manifest has none."""
    shard, first, end = span
    ending = SegmentEnding(end, encode_lost([(first, end)]), () if old is None else old.dropped)
    empty = write_segment(log.segment_store, log.maker, shard, first, [], lambda: ending)._replace(
        appended_ns_max=appended_ns
    )  # so that retention takes it in its turn
    entries = [] if old is None else [log.encode_entry(old)]
    if not sealer.commit(empty, log.replace_segments, shard, (first, end), entries):
        raise LogCorrupt(f"shard {shard}: the manifest changed while offsets {first} to {end} were given up")
    log.segment_store.publish(empty)
    report.given_up += end - first
    if old is None:
        report.notes.append(f"given up: shard {shard}, offsets {first} to {end}: no segment has them")
        return
    log.segment_reader.forget(old)
    kept = log.segment_store.set_aside(old)
    if kept:
        report.notes.append(f"{old.path} is kept as {kept.rpartition('/')[2]}")
