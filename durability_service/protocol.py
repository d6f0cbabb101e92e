"""What clients ask services, and what they are answered: queries and replies of the bus with a few fields more.

A publisher or a cache that gets such a query sees an ordinary one that asks for nothing, and says so; it ignores the
fields it does not know.  So one question reaches every process, and only services have something to say.
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
    """`STATUS`, `HISTORY`, `DIGESTS`, `DELETE` or `SNAPSHOT`; empty in a question that is not for us."""
    domain: str = ""
    to: str = ""
    """Name of the service that is to answer; empty: all."""
    name_space: str = ""
    bucket: int = 0
    after: tuple[str, str, str] | None = None
    """Where to go on: in this bucket, after this object."""
    only: list[int] = []
    """Buckets that are wanted; empty: all."""
    until: int = 0
    """Of history, samples up to this timestamp; 0 for all.  ``since`` and ``newest`` bound it too, object by object."""
    wants_data: bool = False
    """The asker is going to read: a service that fetches on first interest should begin."""
    action: int = 0
    """Identifies a deletion or a snapshot, so that asking twice does it once."""
    challenge: bytes = b""
    proof: bytes = b""
    """Of a deletion or a snapshot: see `durability_service.serving.administration`."""


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
    """What is configured in a way that cannot work well."""
    durability: str = Durability.PERSISTENT.name
    """The strongest kind that the policy lets it keep."""
    joins: int = 0
    """How often what another side had came in after this side was complete."""
    replacements: int = 0
    """How often this side gave way to another, so that what it had may be gone."""


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
    """Deletions and snapshots lately asked for -> what became of them; empty while they are under way."""
    kinds: list[tuple[str, str]] = []
    """Filter and kind, the first match wins; `default_kind` is for the rest."""
    default_kind: str = Durability.PERSISTENT.name
    trouble: list[str] = []
    """What is wrong and concerns the whole service."""


class SamplePage(msgspec.Struct, kw_only=True):
    """A part of a name-space's set."""

    samples: list[Sample]
    bucket: int
    """Where to go on; -1 at the end."""
    after: tuple[str, str, str] | None
    is_complete: bool
    epoch: Epoch
    digests: dict[int, bytes] = {}
    """Of the buckets that begin in it, those that are empty left out; to a question for `DIGESTS`, of all."""
    deletions: list[Deletion] = []
    """With the first page, and with digests."""


class Answer(Reply, omit_defaults=True):
    status: ServiceStatus | None = None
    page: SamplePage | None = None
    challenge: bytes = b""
    """What the next deletion or snapshot that is asked for has to answer; empty where administration is off."""
    refused: str = ""
    """Why a deletion or a snapshot was not even begun."""


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
        raise UndecodableBody(f"a question to services is not asked in a scope, as this one in {ask.scope[:80]!r}")
    return ask


def unpack_answer(frame: bytes, header: Header) -> Answer:
    """Raises UndecodableBody."""
    return _unpacked(_decode_answer, frame, header)


def _unpacked(decode: Callable[[memoryview], Body], frame: bytes, header: Header) -> Body:
    try:
        return decode(frames.body(frame, header))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UndecodableBody(f"not a question to, or an answer of, a durability service: {error}") from error
