"""What services say to each other: msgpack, one message per CONTROL frame.

All of it is state, not change: an `Advert` says what a service is and holds now, and may be lost, repeated or late
without harm.  Alignment is asked for again until it has come whole.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import DIGEST_BYTES
from pubsub_api.core.errors import UndecodableBody

PROTOCOL = 2


class Epoch(NamedTuple):
    """A state of a name-space that one master vouched for."""

    counter: int
    master: str


NO_EPOCH = Epoch(0, "")
NO_DIGEST = bytes(DIGEST_BYTES)


class NameSpaceAdvert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a service stands in one name-space."""

    name: str
    filters: list[str]
    is_ready: bool = False
    """Discovery is over: it takes part in the election."""
    can_lead: bool = False
    is_aligner: bool = False
    priority: int = 0
    is_complete: bool = False
    is_pristine: bool = False
    """It is empty and nothing was ever written."""
    quality: int = 0
    """Timestamp of the newest sample of a complete set on disk, before any service was complete."""
    count: int = 0
    digest: bytes = NO_DIGEST
    epoch: Epoch = NO_EPOCH
    lineage: list[Epoch] = []
    """Earlier epochs whose data is in this one."""
    is_master: bool = False
    master: str = ""
    view: bytes = b""
    """Hash of the members it sees and of what they said: equal views mean equal choices."""
    candidate: str = ""
    is_delayed: bool = False
    joins: int = 0
    """How often, in this incarnation, what another side had came in after this side was complete.  For readers."""
    replacements: int = 0
    """How often this side gave way to another, so that what it had may be gone."""


class Advert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="advert"):
    """Heartbeat and state in one."""

    protocol: int
    domain: str
    node: str
    incarnation: int
    number: int
    """Rises with every advert of an incarnation: an older one that comes late says nothing."""
    role: str
    rules: bytes
    buckets: int
    cleanup_s: float = 86_400.0
    """How long it remembers deletions."""
    is_terminating: bool = False
    heard: dict[str, int] = {}
    """Peer -> incarnation, of those heard lately: a peer that is missing here is not heard."""
    name_spaces: list[NameSpaceAdvert] = []


class AlignRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="request"):
    """Give me what differs from this."""

    node: str
    incarnation: int
    to: str
    name_space: str
    number: int
    """Rises with every request of the sender."""
    is_initial: bool = False
    digests: dict[int, bytes] | None = None
    """What the asker has, by bucket; a bucket that is missing is empty.  None: send everything."""


class BucketPart(msgspec.Struct, frozen=True, array_like=True):
    """Piece of a bucket as it is packed; ``parts`` pieces of one answer make it whole, and it has this digest."""

    bucket: int
    part: int
    parts: int
    digest: bytes
    content: bytes


class AlignData(msgspec.Struct, frozen=True, kw_only=True, tag="data"):
    """A chunk of an answer, for every peer named in it."""

    node: str
    incarnation: int
    name_space: str
    answer: int = msgspec.field(name="stream")
    addressees: list[tuple[str, int]]
    """Node and number of its request."""
    chunk: int
    parts: list[BucketPart]


class AlignEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="end"):
    """The end of an answer, and what it was an answer from."""

    node: str
    incarnation: int
    name_space: str
    answer: int = msgspec.field(name="stream")
    addressees: list[tuple[str, int]]
    chunks: int
    buckets: dict[int, bytes]
    """The buckets that were sent, with their digests; all others are equal to what the asker said it had."""
    is_complete: bool
    epoch: Epoch
    lineage: list[Epoch]
    deletions: list[Deletion]


class AlignProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """I have seen chunks up to this one: send on."""

    node: str
    to: str
    name_space: str
    answer: int = msgspec.field(name="stream")
    chunk: int


class DeletionNotice(msgspec.Struct, frozen=True, kw_only=True, tag="delete"):
    """History was deleted.  Only speeds things up: deletions are part of the sets that are compared."""

    node: str
    name_space: str
    deletions: list[Deletion]


Message = Advert | AlignRequest | AlignData | AlignEnd | AlignProgress | DeletionNotice

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def encode(message: Message) -> bytes:
    return _encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Raises UndecodableBody for anything that is not a message of this version."""
    try:
        message: Message = _decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise UndecodableBody(f"not a message between durability services: {error}") from error
    return message
