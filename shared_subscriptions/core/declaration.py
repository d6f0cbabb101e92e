"""What a group is: the record that declares it, and the wishes about it that its leader carries out."""

from __future__ import annotations

import enum

import msgspec

from pubsub_api.core.errors import InvalidTopic, UsageError
from pubsub_api.core.topics import check_filter
from shared_subscriptions.core import coding
from shared_subscriptions.core.events import Mode
from shared_subscriptions.core.settings import LeaseSettings

NAME_BYTES_MAX = 128
LANES_MAX = 1024
PREFIXES: dict[str, Mode] = {"$shared": "shared", "$queue": "queue"}


class Wish(str, enum.Enum):
    """What an operator wants of a group."""

    ACTIVE = "active"
    PAUSED = "paused"
    """Nothing is delivered; events go on being kept."""
    DRAINING = "draining"
    """What was there when it was asked is delivered, and nothing after it."""


class Declaration(msgspec.Struct, frozen=True):
    """A group.  ``positions`` is where each shard that there was began at the last declare or seek, ``generation``
    counts seeks."""

    name: str
    topic_filter: str
    mode: Mode
    lanes: int
    positions: tuple[int, ...]
    generation: int = 1
    wish: Wish = Wish.ACTIVE
    until: tuple[int, ...] = ()
    """While draining: where each shard ended."""
    declared_ns: int = 0
    incarnation: str = ""
    """A name of this very declaration: a group that was destroyed and declared again is another one."""
    member_lease_s: float = LeaseSettings.member_lease_s
    claim_time_s: float = LeaseSettings.claim_time_s
    """Leases are promises between members, so all of them must mean the same by them."""
    placed_ns: int = 0
    """When the positions were chosen, by the clock of the log's store: what retention had removed then is no loss."""

    @property
    def lease(self) -> LeaseSettings:
        return LeaseSettings(self.member_lease_s, self.claim_time_s)

    @property
    def shards(self) -> int:
        return len(self.positions)

    def position_of(self, shard: int) -> int:
        """Where a shard began; one that the log was given later begins with its first event."""
        return self.positions[shard] if shard < self.shards else 0

    def until_of(self, partition: int) -> int:
        """Where delivery of a partition ends; -1 for nowhere."""
        if self.wish is not Wish.DRAINING:
            return -1
        shard = partition // self.lanes
        return self.until[shard] if shard < len(self.until) else 0


encode = coding.encode
decode = coding.decoder(Declaration, "a group's record")


def check_name(name: str) -> str:
    """Return ``name`` when a group may have it.  Raises UsageError."""
    if not isinstance(name, str) or not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
        raise UsageError(f"a group's name is 1 to {NAME_BYTES_MAX} bytes of printable text, not {name!r}")
    if set(name) & set("/+#$@*? "):
        raise UsageError(f"group {name!r}: the name must not contain any of / + # $ @ * ? or a space")
    return name


def parse(topic_filter: str) -> tuple[Mode, str, str]:
    """Mode, group and filter of ``$shared/GROUP/FILTER`` or ``$queue/GROUP/FILTER``.  Raises UsageError."""
    prefix, _, rest = topic_filter.partition("/")
    name, _, inner = rest.partition("/")
    if prefix not in PREFIXES or not name or not inner:
        raise InvalidTopic(f"{topic_filter[:80]!r} is neither $shared/GROUP/FILTER nor $queue/GROUP/FILTER")
    return PREFIXES[prefix], check_name(name), check_filter(inner)
