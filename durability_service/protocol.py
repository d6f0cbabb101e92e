"""Questions of clients and answers of services: queries and replies of the bus with additional fields.

A question reaches every process on the bus.  A publisher or a cache ignores the fields that it does not know, sees a
query that wants nothing, and replies that it has nothing.  Only services fill in the fields of an `Answer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from durability_service.core.messages import Epoch
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample
from pubsub_api.core import frame as frames
from pubsub_api.core.durability import Durability
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.frame import Flag, Header, Kind
from pubsub_api.core.messages import Query, Reply, check_scope_of
from pubsub_api.core.topics import CONTROL_TOPIC

STATUS, HISTORY, DIGESTS, DELETE, SNAPSHOT = "status", "history", "digests", "delete", "snapshot"


class Ask(Query, omit_defaults=True):
    """A question to services; ``topics`` are the filters it is about."""

    durability: str = ""
    """`STATUS`, `HISTORY`, `DIGESTS`, `DELETE` or `SNAPSHOT`; empty in an ordinary query of the bus."""
    domain: str = ""
    to: str = ""
    """Name of the service that is to answer; empty: all."""
    name_space: str = ""
    bucket: int = 0
    after: tuple[str, str, str] | None = None
    """The page begins in ``bucket``, behind this object."""
    only: list[int] = []
    """Buckets that are wanted; empty: all."""
    until: int = 0
    """The latest timestamp that is wanted; 0 for all.  ``since`` and ``newest`` of `Query` bound history, too."""
    wants_data: bool = False
    """The client is going to read: a service with a LAZY name-space fetches it now."""
    action: int = 0
    """Identifies a deletion or a snapshot, so that a request that is repeated is done once."""
    challenge: bytes = b""
    proof: bytes = b""
    """Of requests for a deletion or a snapshot: see `durability_service.serving.administration`."""


class SpaceStatus(msgspec.Struct, kw_only=True):
    """One name-space of a service."""

    name: str
    filters: list[str]
    phase: str
    is_complete: bool
    epoch: Epoch
    master: str
    is_agreed: bool
    samples: int
    digest: str
    persistent: bool
    conflicts: list[str]
    counters: dict[str, int]
    warnings: list[str] = []
    """Sentences about the configuration and the data of the name-space."""
    durability: str = Durability.PERSISTENT.name
    """The strongest kind that the policy lets it keep."""
    joins: int = 0
    """How often data of another side was added after this side was complete."""
    replacements: int = 0
    """How often data of another side replaced that of this side."""


class PeerStatus(msgspec.Struct, kw_only=True):
    node: str
    role: str
    is_connected: bool
    is_one_way: bool
    incompatibility: str
    silent_s: float


class ServiceStatus(msgspec.Struct, kw_only=True):
    node: str
    incarnation: int
    domain: str
    role: str
    name_spaces: list[SpaceStatus]
    peers: list[PeerStatus] = msgspec.field(name="fellows")
    lag: int
    """Operations that are not on disk yet."""
    counters: dict[str, int]
    actions: dict[str, str]
    """Requests for deletions and snapshots, the latest ones -> their outcome; empty until they are done."""
    kinds: list[tuple[str, str]] = []
    """Filter and kind, the first match wins; `default_kind` is for the rest."""
    default_kind: str = Durability.PERSISTENT.name
    trouble: list[str] = []
    """Faults that concern the whole service, a sentence each."""


class SamplePage(msgspec.Struct, kw_only=True):
    """A part of a name-space's set."""

    samples: list[Sample]
    bucket: int
    """The next page begins in this bucket, behind ``after``; -1 if this page is the last."""
    after: tuple[str, str, str] | None
    is_complete: bool
    epoch: Epoch
    digests: dict[int, bytes] = {}
    """Of the buckets that begin in this page; in an answer to `DIGESTS`, of all.  Empty buckets are left out."""
    deletions: list[Deletion] = []
    """In the first page, and in an answer to `DIGESTS`."""


class Answer(Reply, omit_defaults=True):
    status: ServiceStatus | None = None
    page: SamplePage | None = None
    challenge: bytes = b""
    """To be proven in the next request for a deletion or a snapshot; empty where administration is off."""
    refused: str = ""
    """Why a deletion or a snapshot was not begun."""


Body = TypeVar("Body", Ask, Answer)
_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(Ask).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


def pack_ask(ask: Ask, guid: bytes, key: bytes | None) -> bytes:
    return frames.pack(Kind.QUERY, guid, CONTROL_TOPIC, _encode(ask), key=key)


def pack_answer(answer: Answer, guid: bytes, stamp: int, key: bytes | None) -> bytes:
    return frames.pack(Kind.REPLY, guid, CONTROL_TOPIC, _encode(answer), timestamp=stamp, flags=Flag.LAST, key=key)


def unpack_ask(frame: bytes, header: Header) -> Ask:
    """Raises UndecodableBody."""
    ask = _unpacked(_decode_ask, frame, header)
    check_scope_of(ask, header)
    if ask.durability and ask.scope != CONTROL_TOPIC:
        raise UndecodableBody(f"a question to services must have no scope, and this one has {ask.scope[:80]!r}")
    return ask


def unpack_answer(frame: bytes, header: Header) -> Answer:
    """Raises UndecodableBody."""
    return _unpacked(_decode_answer, frame, header)


def _unpacked(decode: Callable[[memoryview], Body], frame: bytes, header: Header) -> Body:
    try:
        return decode(frames.body(frame, header))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UndecodableBody(f"neither a question to nor an answer of a durability service: {error}") from error
