"""What stands between a name-space here and what its peers hold, most urgent first.

A conflict is never queued: the list is derived, whenever something changed, from what every peer says of itself now.
So a conflict that is over is gone, one that was reported twice is one, and each is judged again right before it is
resolved.  One is resolved at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from durability_service.core.alignment.alignee import AlignmentPurpose
from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.keeping.holding import Holding
from durability_service.core.messages import NameSpaceAdvert
from durability_service.core.peers.membership import Peer


class SpacePeer(NamedTuple):
    """A connected, compatible peer that knows the name-space."""

    service: Peer
    advert: NameSpaceAdvert

    @property
    def node(self) -> str:
        return self.service.node

    @property
    def role(self) -> str:
        return self.service.advert.role


class Conflict(NamedTuple):
    purpose: AlignmentPurpose
    peer: SpacePeer
    policy: MergePolicy

    def __str__(self) -> str:
        return f"{self.purpose.value} with {self.peer.node} by {self.policy.value}"


def find(
    holding: Holding, peers: Iterable[SpacePeer], *, node: str, role: str, now: float, reconcile_s: float
) -> list[Conflict]:
    """The conflicts of a name-space that is complete.  ``reconcile_s``: how long equal epochs may have unequal sets."""
    known = list(peers)
    own = holding.policy.merge_for(role, role)
    same_role = [peer for peer in known if peer.role == role and peer.advert.is_complete]
    if not holding.is_agreed or not holding.master:
        return []
    if holding.master == node:
        found = [*_collect(holding, same_role, own), *_foreign(holding, known, role, now - reconcile_s)]
    else:
        ahead = [peer for peer in same_role if _is_ahead(holding, peer) and not is_apart(holding, peer, own)]
        found = [_follow(holding, peer, own) for peer in ahead]
        if own is MergePolicy.MERGE and holding.policy.aligner:
            # Another side: the master joins with us first, and then we are of its past.
            found = [conflict for conflict in found if holding.epoch in conflict.peer.advert.lineage]
    return found + _reconcile(holding, same_role, own, node=node, now=now, reconcile_s=reconcile_s)


def is_apart(holding: Holding, master: SpacePeer, own: MergePolicy) -> bool:
    """Our master is of another side, and each side keeps what it has: its epoch must not be taken for ours."""
    return (
        own is MergePolicy.IGNORE
        and holding.epoch != master.advert.epoch
        and holding.epoch not in master.advert.lineage
    )


def _is_ahead(holding: Holding, peer: SpacePeer) -> bool:
    return peer.node == holding.master and peer.advert.is_master and peer.advert.epoch > holding.epoch


def _follow(holding: Holding, master: SpacePeer, own: MergePolicy) -> Conflict:
    """We are at another epoch than our master.  Of its past, we simply follow; otherwise we are another side."""
    is_past = holding.epoch in master.advert.lineage
    return Conflict(AlignmentPurpose.FOLLOW, master, MergePolicy.MERGE if is_past else own)


def _collect(holding: Holding, members: list[SpacePeer], own: MergePolicy) -> list[Conflict]:
    """A member comes from another side of a split: its epoch is not in our past."""
    if own not in (MergePolicy.MERGE, MergePolicy.DELETE):
        return []  # the others take over what we have, or neither side does anything
    return [
        Conflict(AlignmentPurpose.COLLECT, peer, own)
        for peer in members
        if not holding.knows(peer.advert.epoch) and (peer.advert.is_aligner or own is MergePolicy.DELETE)
    ]


def _foreign(holding: Holding, peers: list[SpacePeer], role: str, before: float) -> list[Conflict]:
    """The master of another role has something that we did not join with yet.

    Joining starts a new epoch, which the other role then joins with: while there are events on their way both find
    something new each time.  So a role is joined with again only when the last time was ``before`` that.
    """
    return [
        Conflict(AlignmentPurpose.FOREIGN, peer, holding.policy.merge_for(peer.role, role))
        for peer in peers
        if peer.role != role
        and peer.advert.is_master
        and peer.advert.is_complete
        and holding.merged.get(peer.role) != peer.advert.epoch
        and holding.merged_at.get(peer.role, before) <= before
    ]


def _reconcile(
    holding: Holding, members: list[SpacePeer], own: MergePolicy, *, node: str, now: float, reconcile_s: float
) -> list[Conflict]:
    """Same epoch, other set: a live event did not reach one of us.

    With IGNORE the master may be of another side; then those of one side have only each other.
    """
    found = []
    for peer in members:
        is_related = (holding.master in (node, peer.node) or own is MergePolicy.IGNORE) and peer.advert.is_aligner
        if not is_related or peer.advert.epoch != holding.epoch or peer.advert.digest == holding.set.digest:
            holding.differs_since.pop(peer.node, None)
        elif now - holding.differs_since.setdefault(peer.node, now) >= reconcile_s:
            found.append(Conflict(AlignmentPurpose.RECONCILE, peer, MergePolicy.MERGE))
    return found
