"""Which peers are there: heartbeats, expiry, restarts, and links that carry only one way.

Every advert lists the peers that its sender hears.  A peer counts as *connected* when we hear it and it says that it
hears us, in our present incarnation.  A link that carries only one way is therefore no link, on either side, and is
reported.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator

from durability_service.core.messages import Advert


class PeerChange(enum.Enum):
    """What a peer did."""

    HEARD = "heard"
    """It is new, or is back; nothing may be concluded before it hears us too."""
    CONNECTED = "connected"
    ONE_WAY = "one-way"
    """It no longer hears us, or never did for as long as a heartbeat may take."""
    RESTARTED = "restarted"
    EXPIRED = "expired"
    TERMINATED = "terminated"


@dataclasses.dataclass
class Peer:
    advert: Advert
    heard_at: float
    first_heard: float
    is_connected: bool = False
    is_one_way: bool = False
    incompatibility: str = ""
    judged: object = None
    """What its compatibility was last judged by."""

    @property
    def node(self) -> str:
        return self.advert.node


class Membership:
    def __init__(self, node: str, incarnation: int, expiry_s: float, peers_max: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._expiry_s = expiry_s
        self._peers_max = peers_max
        self.peers: dict[str, Peer] = {}
        self.refused = 0
        """Adverts of peers beyond ``peers_max``."""

    def connected(self) -> Iterator[Peer]:
        """Peers that hear us as we hear them and can work with us."""
        return (one for one in self.peers.values() if one.is_connected and not one.incompatibility)

    def get(self, node: str) -> Peer | None:
        """The peer, when it is connected and compatible."""
        peer = self.peers.get(node)
        return peer if peer and peer.is_connected and not peer.incompatibility else None

    def heard(self) -> dict[str, int]:
        return {node: peer.advert.incarnation for node, peer in self.peers.items()}

    def received(self, advert: Advert, now: float) -> list[tuple[PeerChange, str]]:
        """An advert came.  One that is older than what we have of its sender is nothing."""
        node = advert.node
        known = self.peers.get(node)
        if known and (advert.incarnation, advert.number) <= (known.advert.incarnation, known.advert.number):
            return []
        changes: list[tuple[PeerChange, str]] = []
        if known and advert.incarnation > known.advert.incarnation:
            del self.peers[node]
            known = None
            changes.append((PeerChange.RESTARTED, node))
        if advert.is_terminating:
            if known:
                del self.peers[node]
                changes.append((PeerChange.TERMINATED, node))
            return changes
        if known is None:
            if len(self.peers) >= self._peers_max:
                self.refused += 1
                return changes
            known = self.peers[node] = Peer(advert, heard_at=now, first_heard=now)
            changes.append((PeerChange.HEARD, node))
        known.advert, known.heard_at = advert, now
        return changes + self._judge(known, now)

    def _judge(self, peer: Peer, now: float) -> list[tuple[PeerChange, str]]:
        hears_us = peer.advert.heard.get(self._node) == self._incarnation
        if hears_us and not peer.is_connected:
            peer.is_connected, peer.is_one_way = True, False
            return [(PeerChange.CONNECTED, peer.node)]
        is_overdue = peer.is_connected or now - peer.first_heard > self._expiry_s
        if not hears_us and is_overdue and not peer.is_one_way:
            peer.is_connected, peer.is_one_way = False, True
            return [(PeerChange.ONE_WAY, peer.node)]
        return []

    def expire(self, now: float) -> list[tuple[PeerChange, str]]:
        """Forget peers that were silent for too long."""
        gone = [node for node, peer in self.peers.items() if now - peer.heard_at > self._expiry_s]
        for node in gone:
            del self.peers[node]
        return [(PeerChange.EXPIRED, node) for node in gone]
