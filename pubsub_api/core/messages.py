"""Bodies of all frames but DATA: what the parts of Heliograph say to each other.

Each is a msgpack map with named fields, decoded into a typed struct; a field this version does not know is ignored.
What a struct's ``__post_init__`` refuses never gets out of `decode`: a message that is decoded need not be checked
again.

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
from pubsub_api.core.scopes import check_scope, covers
from pubsub_api.core.topics import CONTROL_TOPIC, check_filter, check_topic

HEADS_PER_FRAME_MAX = 100
WANTS_PER_QUERY_MAX = 1000
FILTERS_PER_QUERY_MAX = 20_000
"""Twice as many as a subscriber is expected to have; one that has more asks for all streams."""
PARTS_MAX = 1_000_000
"""Of one message: as many frames as a cache of the default size holds at the most."""
EARLY_PARTS_MAX = 1000
"""Parts that overtook an earlier one and are remembered.  Transports keep order, so there are few or none."""
AGE_UNKNOWN = -1.0
AGE_MAX_S = 1e10
"""No publisher is three hundred years old."""


def _check_guid(guid: bytes) -> None:
    if len(guid) != frames.GUID_BYTES:
        raise ValueError(f"a GUID of {len(guid)} bytes")


def _check_part(message: Hello | Bye | Reply) -> None:
    if not (0 <= message.part < PARTS_MAX and 0 <= message.parts <= PARTS_MAX):
        raise ValueError(f"part {message.part} of {message.parts} is out of range")


def _check_heads(heads: Iterable[tuple[str, int]]) -> None:
    for topic, head in heads:
        check_topic(topic)
        if not 0 <= head < frames.SEQUENCE_MAX:
            raise ValueError(f"head {head} of {topic!r} is out of range")


@dataclasses.dataclass
class Parts:
    """Which parts of a message came, and of how many once that is known.  Bounded, whatever a peer sends."""

    came: int = 0
    """All parts before this one."""
    early: set[int] | None = None
    """Parts that came before their turn."""
    parts: int = 0

    def add(self, part: int, parts: int) -> bool:
        """A part came; True when the message is whole.  One too many before its turn counts as lost."""
        self.parts = self.parts or parts
        if part == self.came:
            self.came += 1
            while self.early and self.came in self.early:
                self.early.remove(self.came)
                self.came += 1
        elif part > self.came:
            self.early = self.early or set()
            if len(self.early) < EARLY_PARTS_MAX:
                self.early.add(part)
        return self.came == self.parts > 0


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
        _check_part(self)
        _check_heads(self.heads.items())


class Bye(msgspec.Struct, omit_defaults=True):
    """The publisher ends.  Final heads of its streams, in several frames when they are many; flag LAST on the last."""

    name: str = ""
    heads: dict[str, int] = {}
    part: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        _check_part(self)
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
    scope: str = CONTROL_TOPIC
    """What it is about at the most, as in the frame's header; see `pubsub_api.core.scopes`."""

    def __post_init__(self) -> None:
        if self.guid:
            _check_guid(self.guid)
        if len(self.wants) > WANTS_PER_QUERY_MAX:
            raise ValueError(f"{len(self.wants)} ranges in one question")
        if len(self.topics) > FILTERS_PER_QUERY_MAX:
            raise ValueError(f"{len(self.topics)} filters in one question")
        for topic_filter in self.topics:
            check_filter(topic_filter)
        if self.scope != CONTROL_TOPIC:
            self._check_scope()

    def _check_scope(self) -> None:
        check_scope(self.scope)
        for name in (*self.topics, *(want.topic for want in self.wants)):
            if not covers(self.scope, name):
                raise ValueError(f"a question about {name!r} in the scope {self.scope!r}")


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
    age: float = AGE_UNKNOWN
    """Seconds since the answering publisher started, by its own clock, rather too many than too few."""
    part: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        _check_part(self)
        for guid, _, _ in self.heads:
            _check_guid(guid)
        for guid in self.former:
            _check_guid(guid)
        if self.age != AGE_UNKNOWN and not 0 <= self.age < AGE_MAX_S:
            raise ValueError(f"an age of {self.age} s")
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
    if isinstance(message, Query):
        check_scope_of(message, header)
    return message


def check_scope_of(query: Query, header: frames.Header) -> None:
    """Raises UndecodableBody when a question is not in the scope that its header names, by which it was let pass."""
    if query.scope != header.topic:
        raise UndecodableBody(f"a question of scope {query.scope[:80]!r} in a frame of {header.topic!r}")
