"""Groups as an operator sees them: declare, list, show, pause, drain, seek, destroy.

Everything is a record in the log.  A command writes what is wanted; the leader of the group, or the next one, does it.
So every command works whether or not the group has members now.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from durable_log.errors import RecordConflict
from durable_log.log_api import DroppedRange, LogApi, Segment, ShardState
from pubsub_api.core.topics import FilterSet, check_filter, overlap
from pubsub_api.errors import UsageError
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.core.declaration import LANES_MAX, Declaration, Wish, check_name
from shared_subscriptions.core.events import Mode
from shared_subscriptions.core.leading import candidate as candidates
from shared_subscriptions.core.leading import process_lease
from shared_subscriptions.core.leading.partitions import PartitionRecord
from shared_subscriptions.core.progress import AcknowledgedOffsets, GroupProgress
from shared_subscriptions.core.settings import LeaseSettings
from shared_subscriptions.errors import GroupExists, GroupNotFound
from shared_subscriptions.lag import OFFSETS_MAX, Lag, ShardLag
from shared_subscriptions.leading.records import GroupStatus, decode_partition, decode_status
from shared_subscriptions.names import CHANGES, PREFIX, Names, group_of

Start = Literal["now", "earliest"] | datetime.datetime | Mapping[int, int]
"""Where a group begins: at what comes from now on, at the oldest event that is kept, at a time by the clock of the
log's store, or at an offset for each shard named (the others begin now)."""

_ATTEMPTS = 20


def declare(
    log: LogApi,
    name: str,
    topic_filter: str,
    *,
    mode: Mode = "shared",
    lanes: int = 1,
    start: Start = "now",
    lease: LeaseSettings | None = None,
) -> Declaration:
    """Declare a group: from now on its events wait for it, also while it has no member.

    ``lease`` holds for all members, whatever their own configuration says.  Declaring it again with the same filter,
    mode and lanes changes nothing, whatever ``start`` and ``lease`` say.  Blocks for a bounded time.  Raises
    UsageError, GroupExists, LogUnavailable.
    """
    check_name(name)
    check_filter(topic_filter)
    if mode == "queue" and lanes != 1:
        raise UsageError("a queue has no lanes: it hands out events to members that have room")
    if not 1 <= lanes <= LANES_MAX:
        raise UsageError(f"a group has 1 to {LANES_MAX} lanes, not {lanes}")
    lease = lease or LeaseSettings()
    placed_ns = log.now_ns()
    wanted = Declaration(
        name, topic_filter, mode, lanes, positions(log, start), declared_ns=time.time_ns(),
        incarnation=uuid.uuid4().hex, member_lease_s=lease.member_lease_s, claim_time_s=lease.claim_time_s,
        placed_ns=placed_ns,
    )  # fmt: skip
    record = log.get_record(Names(name).group)
    if record is None:
        try:
            log.put_records([(Names(name).group, declarations.encode(wanted), 0)])
            return wanted
        except RecordConflict:
            record = log.get_record(Names(name).group)
    found = get(log, name) if record is None else declarations.decode(record.value)
    if (found.topic_filter, found.mode, found.lanes) != (topic_filter, mode, lanes):
        raise GroupExists(
            f"group {name!r} is declared as ${found.mode}/{name}/{found.topic_filter} with {found.lanes} lanes, not as "
            f"${mode}/{name}/{topic_filter} with {lanes}"
        )
    return found


def positions(log: LogApi, start: Start) -> tuple[int, ...]:
    """An offset for each shard.  Raises UsageError when ``start`` makes no sense for this log."""
    states = log.state()
    if start == "now":
        return tuple(state.end for state in states)
    if start == "earliest":
        return tuple(state.start for state in states)
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise UsageError("a time needs a time zone, as in 2026-01-31T12:00:00+00:00")
        appended_ns = int(start.timestamp() * 1e9)
        return tuple(log.find(state.shard, appended_ns) for state in states)
    if isinstance(start, Mapping):
        return tuple(_checked(start, state) for state in states) if _names_shards(start, len(states)) else ()
    raise UsageError(f"{start!r} is no place to begin: now, earliest, a time, or offsets")


def _names_shards(offsets: Mapping[int, int], shards: int) -> bool:
    unknown = sorted(set(offsets) - set(range(shards)))
    if unknown:
        raise UsageError(f"the log has shards 0 to {shards - 1}, not {unknown[0]}")
    return True


def _checked(offsets: Mapping[int, int], state: ShardState) -> int:
    offset = offsets.get(state.shard, state.end)
    if not state.start <= offset <= state.end:
        raise UsageError(f"shard {state.shard} can be read from {state.start} to {state.end}, not from {offset}")
    return offset


def get(log: LogApi, name: str) -> Declaration:
    """Raises GroupNotFound."""
    record = log.get_record(Names(check_name(name)).group)
    if record is None:
        raise GroupNotFound(f"no group {name!r} is declared; declare it with: heliograph group declare {name} FILTER")
    return declarations.decode(record.value)


def names(log: LogApi) -> list[str]:
    """Every group, by name."""
    found = (group_of(record.name) for record in log.list_records(PREFIX))
    return sorted(name for name in found if name is not None)


# -- wishes


def pause(log: LogApi, name: str) -> Declaration:
    """Take all partitions back; events go on being kept.  Raises GroupNotFound."""
    return _change(log, name, lambda found: msgspec.structs.replace(found, wish=Wish.PAUSED))


def resume(log: LogApi, name: str) -> Declaration:
    """End a pause or a drain.  Raises GroupNotFound."""
    return _change(log, name, lambda found: msgspec.structs.replace(found, wish=Wish.ACTIVE))


def drain(log: LogApi, name: str) -> Declaration:
    """Deliver what is there now and nothing after it.  `show` tells when that is done.  Raises GroupNotFound."""
    ends = tuple(state.end for state in log.state())
    return _change(log, name, lambda found: msgspec.structs.replace(found, wish=Wish.DRAINING, until=ends))


def seek(log: LogApi, name: str, start: Start) -> Declaration:
    """Let the group go on at another place; what it has acknowledged is forgotten.

    Raises GroupNotFound, UsageError.
    """
    placed_ns = log.now_ns()
    places = positions(log, start)
    return _change(
        log, name,
        lambda found: msgspec.structs.replace(
            found, positions=places, placed_ns=placed_ns, generation=found.generation + 1
        ),
    )  # fmt: skip


def destroy(log: LogApi, name: str) -> None:
    """Remove the group and its progress; members are told.  The log keeps its events.  Raises GroupNotFound."""
    get(log, name)
    group = Names(name).group
    doomed = [record.name for record in log.list_records(f"{group}/")]
    for _ in range(_ATTEMPTS):  # a leader or a job may write once more before it notices
        log.put_records([(CHANGES, name.encode(), None), *((record, None, None) for record in (group, *doomed))])
        doomed = [record.name for record in log.list_records(f"{group}/")]
        if not doomed:
            return


def _change(log: LogApi, name: str, change: Callable[[Declaration], Declaration]) -> Declaration:
    for _ in range(_ATTEMPTS):
        record = log.get_record(Names(check_name(name)).group)
        if record is None:
            break
        wanted = change(declarations.decode(record.value))
        try:
            log.put_records([
                (record.name, declarations.encode(wanted), record.version),
                (CHANGES, name.encode(), None),
            ])  # fmt: skip
            return wanted
        except RecordConflict:
            continue
    return get(log, name)


# -- what is going on


@dataclasses.dataclass(frozen=True)
class PartitionView:
    """One partition of a group."""

    stream: int
    """Its number."""
    shard: int
    lane: int
    status: str
    owner: str
    low: int
    """Everything before this offset is done."""
    end: int
    lag: int
    """Events of this partition that are not done."""
    is_lag_exact: bool
    """False when there was too much to look at: then the lag is at most that, because all that was not looked at
    counts as if it were of this partition."""
    oldest_s: float | None
    """Age of the oldest of them, by the clock of this host; None when there is none."""
    retrying: int
    """Events that were delivered in vain and are not done."""
    expired: int
    """Offsets that retention dropped before a member could handle what was there, of whatever lane; those that
    `[log] retention_topics` dropped only when they may have been of the group's topics."""
    redelivered: int
    damaged: list[tuple[int, int]]
    """Offsets that the log cannot give, as the leader was told: from the first on, without the second."""


@dataclasses.dataclass(frozen=True)
class GroupView:
    """A group, from its records."""

    name: str
    mode: str
    topic_filter: str
    lanes: int
    wish: str
    is_drained: bool
    generation: int
    lag: int
    is_lag_exact: bool
    expired: int
    """Events that retention dropped before they were delivered are at most so many."""
    leader: str
    """Where the leader is; empty when the group has no leader."""
    heard_s: float | None
    """How long ago the leader, or the last one, was heard of, by the clocks of its host and of this one; None when
    no process ever led."""
    status: GroupStatus | None
    """What the leader said last, without members and owners when there is no leader; None when there was none ever."""
    streams: list[PartitionView]
    missing: int
    """Events of its topics that the log knows of and lacks: lost, or sent before a process recorded."""


def show(log: LogApi, name: str, *, offsets_max: int = OFFSETS_MAX) -> GroupView:
    """Which member has what, how far it is and why it moved.  Reads at most ``offsets_max`` offsets of each shard, in
    order to count what is not done.  Raises GroupNotFound."""
    found = get(log, name)
    group = Names(name)
    states = {state.shard: state for state in log.state()}
    leader, heard_s = _leader(log, found)
    record = log.get_record(group.status)
    status = None if record is None else decode_status(record.value)
    if status is not None and not leader:
        status = msgspec.structs.replace(status, members=[], streams={}, damaged={})
    stored = {
        group.partition_number(item.name): decode_partition(item.value) for item in log.list_records(group.partitions)
    }
    segments = log.segments()
    partitions: list[PartitionView] = []
    lag = expired = 0
    for shard, state in states.items():
        numbers = range(shard * found.lanes, (shard + 1) * found.lanes)
        if state.end == 0 and not any(number in stored for number in numbers):
            continue
        items = {number % found.lanes: _stored(found, stored.get(number), state) for number in numbers}
        done = {lane: AcknowledgedOffsets(item.progress.low, item.progress.ranges) for lane, item in items.items()}
        counted = ShardLag(log, found, state, done)
        counted.count(offsets_max)
        lag += counted.total
        dropped = _dropped(found, [segment for segment in segments if segment.shard == shard])
        views = [
            _view(shard * found.lanes + lane, lane, item, state, counted.lags[lane], status, dropped)
            for lane, item in items.items()
        ]
        expired += max(view.expired for view in views)  # the same offsets for all lanes
        partitions += views
    return GroupView(
        name, found.mode, found.topic_filter, found.lanes, found.wish.value,
        found.wish is Wish.DRAINING and all(view.low >= found.until_of(view.stream) for view in partitions),
        found.generation, lag, all(view.is_lag_exact for view in partitions), expired, leader, heard_s, status,
        partitions, _missing(log, found),
    )  # fmt: skip


def _leader(log: LogApi, found: Declaration) -> tuple[str, float | None]:
    """Where the leader is, and how long ago it was heard of.  One that was silent for the claim time is none."""
    record = log.get_record(Names(found.name).leader)
    if record is None:
        return "", None
    leader = candidates.decode(record.value)
    sign = log.get_record(leader.lease) if leader.lease else None
    renewed_ns = max(leader.renewed_ns, process_lease.decode(sign.value).renewed_ns if sign is not None else 0)
    heard_s = round(max(0.0, (time.time_ns() - renewed_ns) / 1e9), 3)
    is_leading = not leader.is_vacant and leader.incarnation == found.incarnation and heard_s < found.claim_time_s
    return leader.endpoint if is_leading else "", heard_s


def _missing(log: LogApi, found: Declaration) -> int:
    filters = FilterSet([found.topic_filter])
    streams = (one for shard in range(log.shards) for one in log.streams(shard) if filters.match(one.topic))
    return sum(high - low + 1 for one in streams for low, high in one.missing)


def _stored(found: Declaration, item: PartitionRecord | None, state: ShardState) -> PartitionRecord:
    if item is None or item.progress.generation != found.generation:
        # No process has led since it was declared or moved: this is what the next leader will find.
        return PartitionRecord(GroupProgress(found.generation, found.position_of(state.shard)))
    return item


def _dropped(found: Declaration, segments: Iterable[Segment]) -> list[DroppedRange]:
    """What retention has removed from segments that are still there, of the group's topics."""
    return [
        one
        for segment in segments
        for one in segment.dropped
        if one.dropped_ns >= found.placed_ns and overlap(one.topic, found.topic_filter)
    ]


def _view(
    number: int, lane: int, item: PartitionRecord, state: ShardState, lag: Lag, status: GroupStatus | None,
    dropped: Sequence[DroppedRange],
) -> PartitionView:  # fmt: skip
    said, owner = (status.streams.get(number) if status else None) or ("absent", "")
    gone = 0
    if not owner:  # else it is for that one to tell
        done = AcknowledgedOffsets(item.progress.low, item.progress.ranges)
        gone = done.missing(0, state.start)
        gone += sum(min(one.events, done.missing(max(one.first, state.start), one.end)) for one in dropped)
    return PartitionView(
        stream=number,
        shard=state.shard,
        lane=lane,
        status=said,
        owner=owner,
        low=item.progress.low,
        end=state.end,
        lag=lag.events,
        is_lag_exact=not lag.unread,
        oldest_s=None if lag.oldest_ns is None else round((time.time_ns() - lag.oldest_ns) / 1e9, 3),
        retrying=len(item.progress.attempts),
        expired=item.expired + gone,
        redelivered=item.redelivered,
        damaged=status.damaged.get(number, []) if status else [],
    )
