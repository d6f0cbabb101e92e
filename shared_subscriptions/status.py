"""What a leader says about its group: the record behind ``heliograph group show``."""

from __future__ import annotations

from collections.abc import Mapping

from shared_subscriptions.core.leader import Leader
from shared_subscriptions.core.members import Member
from shared_subscriptions.records import GroupStatus, MemberStatus, MoveStatus


def describe(leader: Leader, office: Mapping[str, int], endpoint: str, now: float) -> GroupStatus:
    """Plain data; ``office`` is what its office has counted.

    Times are ages: no clock of another host is needed to read them.
    """
    youngest = {member.slot: member for member in sorted(leader.members.values(), key=lambda member: member.joined)}
    holdings: dict[str, list[int]] = {}
    for stream in leader.streams.values():
        if stream.owner:
            holdings.setdefault(stream.owner, []).append(stream.number)
    names = {member.id: member.slot for member in leader.members.values()}
    return GroupStatus(
        epoch=leader.epoch,
        leader=endpoint,
        members=[
            MemberStatus(member.id, member.slot, sorted(holdings.get(member.id, ())), _state(member, youngest))
            for member in leader.members.values()
        ],
        streams={
            stream.number: (stream.status.value, names.get(stream.owner, "")) for stream in leader.streams.values()
        },
        moves=[
            MoveStatus(move.stream, move.source, move.target, move.reason, round(now - move.at, 3))
            for move in leader.moves
        ],
        counters={**leader.counters, **office},
    )


def _state(member: Member, youngest: dict[str, Member]) -> str:
    if member.is_expelled:
        return "expelled"
    return "member" if youngest[member.slot] is member else "superseded"
