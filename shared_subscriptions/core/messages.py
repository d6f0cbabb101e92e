"""What borrowers and leaders say to each other.

The names are those of the protocol's specification; `leader_wanted` is `Connect` here, because it goes straight to the
leader that the registry names.  What a network needs is added: every message has a sequence number of its sender.  Of
the messages about one partition, or about the lease, a receiver drops a number that is not higher than the last
one, so that delay and repetition look like loss, which resending heals.  The leader's epoch and the number of a
grant fence what belongs to the past.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shared_subscriptions.core import coding
from shared_subscriptions.core.progress import GroupProgress


class _Message(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    borrower: str
    """The borrower that speaks or is spoken to.  Never used again: a new life has a new one."""
    seq: int = 0
    """Of the sender, rising."""


class Connect(_Message, frozen=True, tag="leader_wanted", kw_only=True):
    """I want partitions.  Repeated until it is answered."""

    name: str = ""
    """The member's name, the same after a restart.  Empty for one that will never come back."""
    former: str = ""
    """This member's last borrower, which has stopped for good."""
    portions: int = 1
    """Of a queue: how many portions this member wants at once."""
    offsets: int = 0
    """Of a queue: how large a portion may be; 0 for as large as the leader thinks right."""


class Ping(_Message, frozen=True, tag="ping", kw_only=True):
    """Renew my lease."""

    ends: dict[int, int] = {}
    """From a member that waits for work in a queue: shards that have grown -> their ends."""


class UpdateProgress(_Message, frozen=True, tag="update_progress", kw_only=True):
    """How far a partition is.  The first one confirms a grant, one with ``finished`` ends a revoke."""

    partition: int = msgspec.field(name="stream")
    grant: int
    progress: GroupProgress
    finished: bool = False


class RevokeFinished(_Message, frozen=True, tag="revoke_finished", kw_only=True):
    """I have forgotten the partition."""

    partition: int = msgspec.field(name="stream")
    grant: int


class Disconnect(_Message, frozen=True, tag="disconnect", kw_only=True):
    """I leave, and this is how far I came.  Not answered."""

    progresses: tuple[tuple[int, int, GroupProgress], ...] = ()
    """Partition, grant and progress."""


class _FromLeader(_Message, frozen=True, kw_only=True):
    epoch: int = 0
    """Of the leader: higher than that of every leader before it."""


class ConnectResponse(_FromLeader, frozen=True, tag="leader_connect_response", kw_only=True):
    """You are known; your lease counts from when you sent ``answers``."""

    answers: int
    lease_s: float


class PingResponse(_FromLeader, frozen=True, tag="ping_response", kw_only=True):
    """Your lease counts from when you sent ``answers``; 0 answers nothing, and says that the log has grown."""

    answers: int


class Grant(_FromLeader, frozen=True, tag="grant", kw_only=True):
    """The partition is yours, from this progress on.  Repeated until progress is reported."""

    partition: int = msgspec.field(name="stream")
    grant: int
    progress: GroupProgress
    until: int = -1
    """Deliver nothing from this offset on; -1 for no end."""
    expired: int = 0
    """Offsets that retention dropped while the partition had no owner, and that no owner was told of."""


class Revoke(_FromLeader, frozen=True, tag="revoke", kw_only=True):
    """Finish the partition.  Repeated until progress with ``finished`` comes."""

    partition: int = msgspec.field(name="stream")
    grant: int


class Revoked(_FromLeader, frozen=True, tag="revoked", kw_only=True):
    """Your last progress has arrived; forget the partition.  Repeated until `RevokeFinished` comes."""

    partition: int = msgspec.field(name="stream")
    grant: int


class Invalidate(_FromLeader, frozen=True, tag="invalidate", kw_only=True):
    """The leader does not know you (any more).  Begin anew."""

    reason: str = ""
    is_final: bool = False
    """The group is gone: beginning anew is no use."""


class PingAll(msgspec.Struct, frozen=True, tag_field="type", tag="ping_all"):
    """Renew the leases of all borrowers that were heard of on this connection, whatever their groups.

    Connections keep order, so the leader has heard of all borrowers that spoke on it before.
    """

    seq: int
    gone: list[str] = []
    """Borrowers that were heard of on this connection, and are no more: they are not renewed any more."""


class PingAllResponse(msgspec.Struct, frozen=True, tag_field="type", tag="ping_all_response"):
    """The leases of all of them count from when ``answers`` was sent, but for those that are ``lost``."""

    answers: int
    lost: list[str] = []


ToLeader = Connect | Ping | UpdateProgress | RevokeFinished | Disconnect
ToBorrower = ConnectResponse | PingResponse | Grant | Revoke | Revoked | Invalidate
Message = ToLeader | ToBorrower

TO_LEADER = (Connect, Ping, UpdateProgress, RevokeFinished, Disconnect)
TO_BORROWER = (ConnectResponse, PingResponse, Grant, Revoke, Revoked, Invalidate)

LEASE = -1
"""What a message is about when it is not about a partition."""


def concern(message: Message) -> int:
    """The partition that a message is about, or `LEASE`: order matters among messages of one concern."""
    return getattr(message, "partition", LEASE)


encode = coding.encode
decode_to_leader = coding.decoder(tuple[str, ToLeader | PingAll], "a message to a leader")
"""The group, and what is said to its leader."""
decode_to_borrower: Callable[[bytes], ToBorrower | PingAllResponse]
decode_to_borrower = coding.decoder(ToBorrower | PingAllResponse, "a message to a borrower")  # type: ignore[arg-type]
