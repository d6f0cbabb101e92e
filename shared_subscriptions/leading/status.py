"""What a leader says about its group: the record behind ``heliograph group show``."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from shared_subscriptions.core.leading.leader import Leader
from shared_subscriptions.core.leading.members import ConnectedMember
from shared_subscriptions.core.leading.partitions import Partition
from shared_subscriptions.leading.records import GroupStatus, MemberStatus, MoveStatus

_OWNERS_CHARACTERS_MAX = 200


def describe(leader: Leader, office: Mapping[str, int], endpoint: str, now: float) -> GroupStatus:
    """Plain data; ``office`` is what its office has counted.

    Times are ages: no clock of another host is needed to read them.
    """
    youngest = {member.slot: member for member in sorted(leader.members.values(), key=lambda member: member.joined)}
    holdings: dict[str, set[int]] = {}
    for partition in leader.loans.values():
        if partition.owner:
            holdings.setdefault(partition.owner, set()).add(partition.base.number)
    names = {member.id: member.slot for member in leader.members.values()}
    return GroupStatus(
        epoch=leader.epoch,
        leader=endpoint,
        members=[
            MemberStatus(member.id, member.slot, sorted(holdings.get(member.id, ())), _state(member, youngest))
            for member in leader.members.values()
        ],
        streams={partition.number: _holding(leader, partition, names) for partition in leader.partitions.values()},
        damaged=leader.damaged(),
        moves=[
            MoveStatus(move.partition, move.source, move.target, move.reason, round(now - move.at, 3))
            for move in leader.moves
        ],
        counters={**leader.counters, **office},
        reported_ns=time.time_ns(),
    )


def without_times(status: GroupStatus) -> GroupStatus:
    """What is worth writing.  Moves are counted, so nothing is missed when they are left out here."""
    return msgspec.structs.replace(status, moves=[], reported_ns=0)


def _holding(leader: Leader, partition: Partition, names: Mapping[str, str]) -> tuple[str, str]:
    """Its status, and its owner; of a queue, all members that have a portion of it."""
    if leader.loans is leader.partitions:
        return partition.status.value, names.get(partition.owner, "")
    owners = sorted({names.get(loan.owner, "") for loan in leader.loans.values() if loan.base is partition})
    return ("handed out" if owners else "absent"), ", ".join(owners)[:_OWNERS_CHARACTERS_MAX]


def _state(member: ConnectedMember, youngest: dict[str, ConnectedMember]) -> str:
    if member.is_expelled:
        return "expelled"
    return "member" if youngest[member.slot] is member else "superseded"
