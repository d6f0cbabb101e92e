"""Bodies of all frames but DATA: what the parts of Heliograph say to each other.

Each is a msgpack map with named fields, decoded into a typed struct; a field this version does not know is ignored.
What a struct's ``__post_init__`` refuses never gets out of `decode`: whoever holds a message need not check it again.

A message too large for one frame is sent in several, each with its number from 0 in ``part``; the last one states in
``parts`` how many there are, so that the receiver sees whether one was lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from pubsub_api.core import frame as frames
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.topics import check_filter, check_topic

HEADS_PER_FRAME_MAX = 100
WANTS_PER_QUERY_MAX = 1000


def _check_guid(guid: bytes) -> None:
    if len(guid) != frames.GUID_BYTES:
        raise ValueError(f"a GUID of {len(guid)} bytes")


def _check_heads(heads: Iterable[tuple[str, int]]) -> None:
    for topic, head in heads:
        check_topic(topic)
        if not 0 <= head < frames.SEQUENCE_MAX:
            raise ValueError(f"head {head} of {topic!r} is out of range")


@dataclasses.dataclass
class Parts:
    """Which parts of a message came, and of how many once that is known."""

    came: set[int] = dataclasses.field(default_factory=set)
    parts: int = 0

    def add(self, part: int, parts: int) -> bool:
        """A part came; True when the message is whole."""
        self.came.add(part)
        self.parts = self.parts or parts
        return len(self.came) == self.parts


class Hello(msgspec.Struct, omit_defaults=True):
    """On the control topic: a publisher lives.  On a stream's topic the header says it all and this is empty."""

    name: str = ""
    predecessor: bytes = b""
    """GUID of this publisher's former life, when its final heads are known; they follow in ``heads``."""
    heads: dict[str, int] = {}
    part: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        if self.predecessor:
            _check_guid(self.predecessor)
        _check_heads(self.heads.items())


class Bye(msgspec.Struct, omit_defaults=True):
    """The publisher ends.  Final heads of its streams, in several frames when they are many; flag LAST on the last."""

    name: str = ""
    heads: dict[str, int] = {}
    part: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        _check_heads(self.heads.items())


class Want(msgspec.Struct, array_like=True):
    """Numbers ``first`` to ``last`` of one stream, both included; 1 and ``SEQUENCE_MAX`` leave an end open."""

    guid: bytes
    topic: str
    first: int = 1
    last: int = frames.SEQUENCE_MAX

    def __post_init__(self) -> None:
        _check_guid(self.guid)
        check_topic(self.topic)


class Query(msgspec.Struct, omit_defaults=True):
    """A question to every cache.  ``id`` comes back in the replies.

    With ``wants``: the frames that hold those numbers.  Without: the heads of all streams that ``topics`` select, of
    publisher ``guid`` or of all, and with ``history`` their frames too, restricted by ``newest`` and ``since``.
    """

    id: int
    wants: list[Want] = []
    topics: list[str] = []
    guid: bytes = b""
    confirm: bool = False
    """Of ``wants`` only say which are held whole; send no frames."""
    history: bool = False
    newest: int = 0
    """Frames holding the newest this many events of each stream; 0 for all."""
    since: int = 0
    """Frames sent at or after this timestamp; 0 for all."""

    def __post_init__(self) -> None:
        if self.guid:
            _check_guid(self.guid)
        if len(self.wants) > WANTS_PER_QUERY_MAX:
            raise ValueError(f"{len(self.wants)} ranges in one question")
        for topic_filter in self.topics:
            check_filter(topic_filter)


class Reply(msgspec.Struct, omit_defaults=True):
    """A part of an answer.  The header's GUID is the answering cache's; flag LAST marks its last part."""

    id: int
    responder: str = ""
    publisher: bool = False
    """The answer comes from the publisher itself: ``heads`` are all the streams it has, absent ones are at 0."""
    heads: list[tuple[bytes, str, int]] = []
    """GUID, topic, head of every stream the question is about."""
    frames: list[bytes] = []
    held: list[int] = []
    """Positions among the query's wants, when it asked for confirmation."""
    durable: list[int] = []
    """Those of ``held`` that are kept as well as their topic is to be kept, and not only in the memory of a cache."""
    former: list[bytes] = []
    """GUIDs of the answering publisher's former lives, the newest first: ``heads`` has their final heads as well."""
    part: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        for guid, _, _ in self.heads:
            _check_guid(guid)
        for guid in self.former:
            _check_guid(guid)
        _check_heads((topic, head) for _, topic, head in self.heads)


Body = TypeVar("Body", Hello, Bye, Query, Reply)
_encode = msgspec.msgpack.Encoder().encode
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in (Hello, Bye, Query, Reply)}


def encode(message: Hello | Bye | Query | Reply) -> bytes:
    return _encode(message)


def decode(kind: type[Body], frame: bytes, header: frames.Header) -> Body:
    """The body as ``kind``.  Raises UndecodableBody."""
    try:
        message = _decoders[kind].decode(frames.body(frame, header))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UndecodableBody(f"the body of a {kind.__name__} cannot be decoded: {error}") from error
    assert isinstance(message, kind)
    return message
