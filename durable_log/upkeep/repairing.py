"""Making the manifest anew from the files: the work behind ``heliograph log repair``.

It is for a store that was lost, or restored from an older copy, while the sealed segments are there.  Each file says
which log made it and which offsets it has, and is read as a whole before it is believed.  What the manifest lists is
left as it is; files whose offsets the store lacks are listed.  No file is changed or removed.

Files that reach beyond the end of a shard take the place of all that the store has unsealed in it.  As a rule they have
the same events.  Where a store was used after an older copy had been restored they do not: what no file has is appended
again, behind the files.  Until that is done it is in a file too, so that a repair that dies is started again.

What was never sealed and is not in the store is lost.  Its offsets will be used again, so a log that was repaired gets
a new identity: a program that remembers an offset learns that it may mean something else now.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping

from durable_log.core.placing import NOWHERE, Range, StreamPosition, lacking, place
from durable_log.core.positions import decode_position, split_key
from durable_log.errors import LogCorrupt, SegmentsRefused
from durable_log.log_api import Segment, ShardState, StoredFrame
from durable_log.segments.files import Description, describe
from durable_log.segments.ownership import MOVED, check_not_empty, is_last, keep_frames, kept_frames, read_mark
from durable_log.storage import shard_map
from durable_log.storage.identity import Lineage, new_identity
from durable_log.storage.segmented import RestoredShard, SegmentedLog, used_meanwhile
from durable_log.storage.shard_map import GrowthStep, ShardMap
from pubsub_api.errors import InvalidConfig

OnFile = Callable[[int, int], None]
"""Called with how many files are read, and how many there are."""

Key = tuple[bytes, str]
"""GUID and topic of a stream."""

Files = Mapping[int, list[Description]]
"""Those of a log, by shard."""


@dataclasses.dataclass
class RepairReport:
    """What was done, or would be."""

    identity: str
    """Of the log now."""
    former_identity: str
    """Of the log in the store before."""
    files: int = 0
    """Files that were read."""
    listed: int = 0
    """Segments that the manifest has now."""
    added: int = 0
    """Segments of them that it did not have."""
    events: int = 0
    """Events in these."""
    given_up: int = 0
    """Offsets of damaged frames and segments that were left out, see `durable_log.upkeep.damaged_segments`."""
    moved: int = 0
    """Events that were unsealed in the store and in no file, at offsets that files have: they are appended again."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What could not be used, and why, a sentence each."""


@dataclasses.dataclass
class _Plan:
    state: ShardState
    kept: list[Segment]
    added: list[Segment] = dataclasses.field(default_factory=list)
    streams: dict[Key, StreamPosition] = dataclasses.field(default_factory=dict)
    """Where streams stand with the segments added, of those that they change."""
    forgotten: set[bytes] = dataclasses.field(default_factory=set)
    """Keys of streams that stood at a damaged place, and of which no frame is left."""
    former_end: int = 0
    """What the store says is the end; ``state`` has the true one."""
    is_wrong: bool = False
    """Whether what the store says of streams and the end is damaged."""
    moved: list[StoredFrame] = dataclasses.field(default_factory=list)
    """Unsealed frames whose offsets the added segments take, and of which no file has everything."""

    @property
    def segments(self) -> list[Segment]:
        return sorted([*self.kept, *self.added], key=lambda one: one.first)


def repair(
    log: SegmentedLog,
    *,
    is_dry: bool = False,
    gives_up: bool = False,
    on_file: OnFile = lambda _done, _total: None,
) -> RepairReport:
    """Make the manifest of a log that is connected (`SegmentedLog.connect`) anew.  No other process may use it
    meanwhile.

    ``is_dry`` only says what would be done; ``gives_up`` also takes a place that has lost everything.  Raises
    SegmentsRefused when it has and may not, and when the files and the store belong to two logs that both have events,
    InvalidConfig when the log of the files never had as many shards as the store, LogUnavailable when another process
    seals now or appends meanwhile, LogCorrupt, DriverDependencyMissing.
    """
    report = RepairReport(log.identity, log.identity)
    store = log.segment_store
    with store.lock(log):
        if not gives_up:
            check_not_empty(store, log.lineage, lambda: len(log.segments()))
        owner = _owner(log)
        candidates = _read_files(log, owner, report, on_file)
        states = _states(log, candidates, report)
        plans = [_plan(log, state, candidates.get(state.shard, []), report) for state in states]
        _place_streams(log, plans, report)
        report.listed = sum(len(plan.segments) for plan in plans)
        report.added = sum(len(plan.added) for plan in plans)
        report.events = sum(one.rows for plan in plans for one in plan.added)
        is_copy = not is_last(read_mark(store), log.directory_token())
        has_changed = report.added > 0 or any(_is_manifest_wrong(log, plan) for plan in plans)
        if is_copy and not has_changed:
            has_changed = True
            report.notes.append(f"{store.place} was changed last by another copy of this store, which loses it")
        is_wrong = any(plan.is_wrong for plan in plans)
        if is_dry:
            return report
        lineage = log.lineage
        if has_changed:
            makers = {one.identity for some in candidates.values() for one in some}
            ancestors = {*log.lineage.ancestors, log.identity, *owner.ancestors, owner.identity}
            lineage = Lineage(new_identity(), frozenset(ancestors | makers))
            for segment in (one for plan in plans for one in plan.added):
                store.publish(segment)
            keep_frames(store, [one.frame for plan in plans for one in plan.moved])
        if has_changed or is_wrong:
            _restore(log, lineage, plans)
        _restore_growth(log, _counts(candidates))
        for frame in kept_frames(store):
            log.append([frame])  # knows what it has already
        store.remove(MOVED)  # they are in the log again
        log.note_change(takes_over=True)
        report.identity = lineage.identity
    return report


def _owner(log: SegmentedLog) -> Lineage:
    """The log that the directory belongs to, which must be this one, or the store must be empty."""
    store = log.segment_store
    mark = read_mark(store)
    names = {found.name.log for found in store.published()}
    owner = log.lineage if mark is None else Lineage(mark.identity, frozenset(mark.ancestors))
    if mark is None and len(names) == 1 and not log.lineage.owns(next(iter(names))):
        owner = Lineage(next(iter(names)))
    is_related = log.lineage.owns(owner.identity) or owner.owns(log.identity)
    if not is_related and any(state.end for state in log.state()):
        raise SegmentsRefused(
            f"{store.place} has the segments of the log {owner.identity}, and the log {log.identity} in the store "
            "has events of its own: two logs cannot be made one. Repair into an empty store, or give this log another "
            "[log] segment_directory",
            identity=log.identity, found=owner.identity,
        )  # fmt: skip
    return owner


def _read_files(
    log: SegmentedLog, owner: Lineage, report: RepairReport, on_file: OnFile
) -> dict[int, list[Description]]:
    """Every file of the log that can be read, by shard."""
    store = log.segment_store
    files = [*store.published(), *store.unpublished()]
    found: dict[int, list[Description]] = {}
    for done, (shard, name, path) in enumerate(files):
        on_file(done, len(files))
        if not owner.owns(name.log) and not log.lineage.owns(name.log):
            report.notes.append(f"{path} was made by the log {name.log}..., and is left alone")
            continue
        try:
            description = describe(store, files[done])
        except LogCorrupt as error:
            report.notes.append(str(error))
            continue
        report.files += 1
        found.setdefault(shard, []).append(description)
    on_file(len(files), len(files))
    _check_shards(log, found)
    return found


def _counts(found: Files) -> set[int]:
    """How many shards the log had when each file was made."""
    return {one.shards for some in found.values() for one in some}


def _check_shards(log: SegmentedLog, found: Files) -> None:
    """Raises InvalidConfig when the log of these files cannot have had as many shards as the store."""
    mark, counts = read_mark(log.segment_store), _counts(found)
    last = max({*counts, *([mark.shards] if mark is not None else [])}, default=log.shards)
    steps = itertools.pairwise(sorted({*counts, log.shards}))
    if counts and (log.shards > last or any(after % before for before, after in steps)):
        raise InvalidConfig(
            f"{log.segment_store.place} is of a log with {last} shards, and the store was made with {log.shards}: make "
            f"the store anew, with [log] shards = {last}"
        )


def _states(log: SegmentedLog, found: Files, report: RepairReport) -> list[ShardState]:
    """Every shard that the log will have: also those that it had been given when the files were made, and that an older
    store does not have."""
    states, last = log.state(), max([log.shards, *_counts(found)])
    if last > len(states):
        report.notes.append(f"the store is from before the log was given more shards: it gets {last}, as the files say")
    return states + [ShardState(shard, 0, 0, 0, 0) for shard in range(len(states), last)]


def _restore(log: SegmentedLog, lineage: Lineage, plans: list[_Plan]) -> None:
    """New shards come when the others have all that the files have of them: that comes first, see `_restore_growth`."""
    restored = [_restored(log, plan) for plan in plans]
    had = log.shards
    log.restore(lineage, restored[:had])
    if len(plans) > had:
        if log.add_shards(log.shard_map, len(plans)) is None:
            raise used_meanwhile(had)
        log.find_shards()
        log.restore(lineage, restored[had:])


def _restore_growth(log: SegmentedLog, counts: set[int]) -> None:
    """Where the store lacks how the log got its shards, it is read in order again: of each shard that was there before,
    all that is there now comes first."""
    known = {(len(step.ends), step.shards): step for step in log.shard_map.steps}
    chain = sorted({log.shards, *log.shard_map.former, *counts})
    ends = [state.end for state in log.state()]
    steps = [known.get(pair) or GrowthStep(pair[1], tuple(ends[: pair[0]])) for pair in itertools.pairwise(chain)]
    if steps != [*log.shard_map.steps]:
        record = log.get_record(shard_map.RECORD)
        value = shard_map.encode(ShardMap(log.shards, tuple(steps)))
        log.put_records([(shard_map.RECORD, value, record.version if record else 0)])
        log.find_shards()


def _plan(log: SegmentedLog, state: ShardState, candidates: list[Description], report: RepairReport) -> _Plan:
    """Which files are listed: those that are and exist, then the longest of the others that do not overlap them."""
    former_end, end = state.end, max(state.end, log.stored_end(state.shard))
    state = state._replace(end=end)
    plan = _Plan(
        state, list(_sound_entries(log, state.shard, report)), former_end=former_end, is_wrong=end != former_end
    )
    if plan.is_wrong:
        report.notes.append(f"shard {state.shard} ends at {end}, not at {former_end} as the store says")
    names = {pathlib.Path(one.path).name for one in plan.kept}
    others = [one.segment for one in candidates if pathlib.Path(one.segment.path).name not in names]
    is_store_older = any(one.end > state.end for one in others)
    for segment in sorted(others, key=lambda one: (one.first - one.end, one.rows, one.path)):
        if segment.end <= state.start:
            continue  # retention has dropped it
        if any(one.first < segment.end and segment.first < one.end for one in plan.segments):
            report.notes.append(f"{segment.path} has offsets that another segment has, too, and is left alone")
        elif segment.end > state.sealed and not is_store_older:
            report.notes.append(f"{segment.path} has offsets that the store has unsealed, and is left alone")
        else:
            plan.added.append(segment)
    return plan


def _place_streams(log: SegmentedLog, plans: list[_Plan], report: RepairReport) -> None:
    """Find where streams stand with the segments added, and what the store has that they do not.

    In a log that was given more shards a stream may have events in several: earlier ones in shards of lower numbers.
    """
    streams = _sound_positions(log, plans, report)
    changed: dict[Key, StreamPosition] = {}
    for plan in plans:
        if any(one.end > plan.state.end for one in plan.added):  # the store is older
            numbers: dict[Key, list[Range]] = {}
            for one in _unsealed(log, plan.state, report):
                numbers.setdefault(_key(one), []).append(_numbers(one))
            for key, ranges in numbers.items():
                changed[key] = lacking(changed.get(key, streams.get(key, NOWHERE)), ranges)
    for plan in plans:
        for segment in sorted(plan.added, key=lambda one: one.first):
            for stored in log.segment_reader.frames(segment, segment.first):
                key = _key(stored)
                position = changed.get(key, streams.get(key, NOWHERE))
                changed[key] = place(stored.header(), position, ranges_max=sys.maxsize).position
    for plan in plans:
        if any(one.end > plan.state.end for one in plan.added):
            for one in _unsealed(log, plan.state, RepairReport("", "")):
                first, last = _numbers(one)
                lost = sum(max(0, min(last, high) - max(first, low) + 1) for low, high in changed[_key(one)].missing)
                if lost:
                    plan.moved.append(one)
                    report.moved += lost
    homes = {split_key(key): plan for plan in plans for key, _ in log.positions(plan.state.shard)}
    for key, position in changed.items():
        homes.get(key, plans[log.shards_of(key[1])[-1]]).streams[key] = position


def _sound_positions(log: SegmentedLog, plans: list[_Plan], report: RepairReport) -> dict[Key, StreamPosition]:
    """Where streams stand.  Of those where that is damaged it is found from all frames that are left, and planned."""
    streams, damaged = dict[Key, StreamPosition](), dict[Key, tuple[_Plan, bytes]]()
    for plan in plans:
        for stored_key, stored in log.positions(plan.state.shard):
            key = split_key(stored_key)
            try:
                streams[key] = decode_position(plan.state.shard, stored_key, stored)
            except LogCorrupt as error:
                report.notes.append(f"found anew from the frames: {error}")
                damaged[key] = plan, stored_key
                plan.is_wrong = True
    wrong = {plan.state.shard for plan, _ in damaged.values()}
    parents = {parent for shard in wrong for parent, _ in log.shard_map.after(shard)}
    found: dict[Key, StreamPosition] = {}
    for plan in plans:
        for one in _all_frames(log, plan, report) if plan.state.shard in wrong | parents else ():
            key = _key(one)
            if key not in streams:
                found[key] = place(one.header(), found.get(key, NOWHERE), ranges_max=sys.maxsize).position
    for key, position in found.items():
        plan = damaged[key][0] if key in damaged else plans[log.shards_of(key[1])[-1]]
        plan.streams[key] = position
    for key, (plan, stored_key) in damaged.items():
        if key not in found:
            plan.forgotten.add(stored_key)
    return streams | found


def _all_frames(log: SegmentedLog, plan: _Plan, report: RepairReport) -> Iterator[StoredFrame]:
    for segment in plan.kept:
        try:
            yield from log.segment_reader.frames(segment, segment.first)
        except LogCorrupt as error:
            report.notes.append(f"streams may have more than can be found: {error}")
    yield from _unsealed(log, plan.state, report)


def _unsealed(log: SegmentedLog, state: ShardState, report: RepairReport) -> Iterator[StoredFrame]:
    """All frames of a shard that are not sealed; those that are damaged are noted."""
    offset = max(state.sealed, state.start)
    while offset < state.end:
        try:
            frames = log.hot_read(state.shard, offset, events_max=10_000, bytes_max=16 << 20).frames
        except LogCorrupt as error:
            if error.end is None:
                raise
            report.notes.append(f"lost, unless a file has them: {error}")
            offset = error.end
            continue
        yield from frames
        offset = frames[-1].end


def _key(stored: StoredFrame) -> Key:
    header = stored.header()
    return header.guid, header.topic


def _numbers(stored: StoredFrame) -> Range:
    first = stored.header().first + stored.skipped
    return first, first + stored.count - 1


def _sound_entries(log: SegmentedLog, shard: int, report: RepairReport) -> Iterator[Segment]:
    for entry in log.manifest(shard):
        try:
            segment = log.decode_entry(entry)
        except LogCorrupt as error:
            report.notes.append(str(error))
            continue
        if log.segment_store.exists(segment):
            yield segment
        else:
            report.notes.append(f"{segment.path} is in the manifest and is missing")


def _is_manifest_wrong(log: SegmentedLog, plan: _Plan) -> bool:
    return log.manifest(plan.state.shard) != [log.encode_entry(segment) for segment in plan.segments]


def _restored(log: SegmentedLog, plan: _Plan) -> RestoredShard:
    """What the store is told: where the shard stands with the segments added, and where its streams do."""
    state, segments = plan.state, plan.segments
    end = max([state.end, *(one.end for one in segments)])
    sealed = max([state.sealed, *(one.end for one in segments)])
    start = state.start if state.end else min((one.first for one in segments), default=0)
    entries = [(one.first, log.encode_entry(one)) for one in segments]
    return RestoredShard(state.shard, start, sealed, end, entries, plan.streams, plan.forgotten, plan.former_end)
