"""The stored form of what a leader knows: progress of partitions, and the status that operators read."""

from __future__ import annotations

import msgspec

from shared_subscriptions.core.coding import decoder, encode
from shared_subscriptions.core.leading.partitions import PartitionRecord


class MemberStatus(msgspec.Struct, frozen=True):
    borrower: str
    name: str
    streams: list[int]
    state: str
    """``member``, ``superseded`` by a younger one of its name, or ``expelled``."""


class MoveStatus(msgspec.Struct, frozen=True):
    stream: int
    source: str
    target: str
    reason: str
    ago_s: float


class GroupStatus(msgspec.Struct, frozen=True):
    """What a leader says about its group.  It holds until the leader says something else, or there is none."""

    epoch: int
    leader: str
    members: list[MemberStatus] = []
    streams: dict[int, tuple[str, str]] = {}
    """Partition -> status and name of the member that has it."""
    damaged: dict[int, list[tuple[int, int]]] = {}
    """Partition -> offsets that the log cannot give, and that are not done: from the first on, without the second."""
    moves: list[MoveStatus] = []
    counters: dict[str, int] = {}
    reported_ns: int = 0
    """When it was written, by the leader's clock.  The leader's record says when that one was heard of last."""
    is_cut: bool = False
    """There were too many members, partitions and moves for a record: some are left out."""


decode_partition = decoder(PartitionRecord, "the progress of a partition")
decode_status = decoder(GroupStatus, "the status of a group")


def encode_partition(record: PartitionRecord, *, bytes_max: int) -> tuple[bytes | None, bool]:
    """The record, and whether it is whole.

    One that is too large leaves out what was done furthest ahead, which is repeated after a crash, and the attempts
    that matter least.  None when there is still too much.
    """
    progress, value = record.progress, encode(record)
    while len(value) > bytes_max and (progress.ranges or progress.attempts):
        attempts = sorted(progress.attempts.items(), key=lambda item: (-item[1], item[0]))
        progress = msgspec.structs.replace(
            progress,
            ranges=progress.ranges[: len(progress.ranges) // 2],
            attempts=dict(attempts[: len(attempts) // 2]),
        )
        value = encode(msgspec.structs.replace(record, progress=progress))
    return (value if len(value) <= bytes_max else None), progress is record.progress


def encode_status(status: GroupStatus, *, bytes_max: int) -> bytes | None:
    """One that is too large names fewer members, partitions and moves, and says so.  None when there is still too
    much."""
    damaged = max((len(ranges) for ranges in status.damaged.values()), default=0)
    value, kept = encode(status), max(len(status.members), len(status.streams), len(status.moves), damaged)
    while len(value) > bytes_max and kept:
        kept //= 2
        value = encode(
            msgspec.structs.replace(
                status,
                members=[msgspec.structs.replace(one, streams=one.streams[:kept]) for one in status.members[:kept]],
                streams=dict(list(status.streams.items())[:kept]),
                damaged={number: ranges[:kept] for number, ranges in list(status.damaged.items())[:kept]},
                moves=status.moves[len(status.moves) - min(kept, len(status.moves)) :],
                is_cut=True,
            )
        )
    return value if len(value) <= bytes_max else None
