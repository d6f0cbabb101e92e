"""Bodies of all frames but DATA: the messages between publishers, subscribers and caches.

Each is a msgpack map with named fields, decoded into a typed struct; fields that this version does not know are
ignored. `decode` also calls ``__post_init__``, which checks the fields: a decoded message need not be checked again.

A message that is too large for one frame is sent in several, each with its number, from 0, in ``part``.  The last one
has the number of parts in ``parts``, so that the receiver notices when one was lost.
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
"""Twice as many as a subscriber is expected to have.  A subscriber with more filters asks for all streams."""
PARTS_MAX = 1_000_000
"""Parts of one message: as many as a cache of the default size has frames at most."""
EARLY_PARTS_MAX = 1000
"""Parts that are remembered although an earlier one is missing.  Transports keep order, so there are few or none."""
AGE_UNKNOWN = -1.0
AGE_MAX_S = 1e10
"""Three hundred years: older than any publisher."""


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
    """Which parts of a message have arrived, and how many there are once that is known.  Its memory is bounded."""

    arrived: int = 0
    """All parts with smaller numbers have arrived."""
    early: set[int] | None = None
    """Parts that have arrived although an earlier one is missing."""
    parts: int = 0
    """Number of parts; 0: not known yet."""

    def add(self, part: int, parts: int) -> bool:
        """A part has arrived; True when the message is complete.  Early parts beyond the bound are dropped."""
        self.parts = self.parts or parts
        if part == self.arrived:
            self.arrived += 1
            while self.early and self.arrived in self.early:
                self.early.remove(self.arrived)
                self.arrived += 1
        elif part > self.arrived:
            self.early = self.early or set()
            if len(self.early) < EARLY_PARTS_MAX:
                self.early.add(part)
        return self.arrived == self.parts > 0


class Hello(msgspec.Struct, omit_defaults=True):
    """On the control topic: a publisher is alive.  On the topic of a stream it is empty: the header has the head."""

    name: str = ""
    predecessor: bytes = b""
    """The GUID that this publisher had before its restart, if its final heads are known; they are in ``heads``."""
    heads: dict[str, int] = {}
    part: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        if self.predecessor:
            _check_guid(self.predecessor)
        _check_part(self)
        _check_heads(self.heads.items())


class Bye(msgspec.Struct, omit_defaults=True):
    """The publisher ends.  Final heads of its streams, in several frames if they are many, the last with flag LAST."""

    name: str = ""
    heads: dict[str, int] = {}
    part: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        _check_part(self)
        _check_heads(self.heads.items())


class Want(msgspec.Struct, array_like=True):
    """The events ``first`` to ``last`` of one stream, both included; the defaults are no bounds."""

    guid: bytes
    topic: str
    first: int = 1
    last: int = frames.SEQUENCE_MAX

    def __post_init__(self) -> None:
        _check_guid(self.guid)
        check_topic(self.topic)


class Query(msgspec.Struct, omit_defaults=True):
    """A query to all caches.  ``id`` is repeated in the replies.

    With ``wants`` it asks for frames with these events.  Without, it asks for the heads of all streams that ``topics``
    select, of publisher ``guid`` or of all, and with ``history`` also for their frames, limited by ``newest`` and
    ``since``.
    """

    id: int
    wants: list[Want] = []
    topics: list[str] = []
    guid: bytes = b""
    confirm: bool = False
    """Only ask which of ``wants`` a cache has completely, for no frames."""
    history: bool = False
    newest: int = 0
    """Frames with the newest events of each stream, so many; 0: all."""
    since: int = 0
    """Frames sent at or after this timestamp; 0: all."""
    scope: str = CONTROL_TOPIC
    """The scope of the query, as in the header of its frame; see `pubsub_api.core.scopes`."""

    def __post_init__(self) -> None:
        if self.guid:
            _check_guid(self.guid)
        if len(self.wants) > WANTS_PER_QUERY_MAX:
            raise ValueError(f"{len(self.wants)} ranges in one query")
        if len(self.topics) > FILTERS_PER_QUERY_MAX:
            raise ValueError(f"{len(self.topics)} filters in one query")
        for topic_filter in self.topics:
            check_filter(topic_filter)
        if self.scope != CONTROL_TOPIC:
            self._check_scope()

    def _check_scope(self) -> None:
        check_scope(self.scope)
        for name in (*self.topics, *(want.topic for want in self.wants)):
            if not covers(self.scope, name):
                raise ValueError(f"a query about {name!r} in the scope {self.scope!r}")


class Reply(msgspec.Struct, omit_defaults=True):
    """A part of an answer.  The GUID in the header is that of the cache; the last part has flag LAST."""

    id: int
    responder: str = ""
    publisher: bool = False
    """A publisher answers for its own streams: ``heads`` has all of them; the head of any other is 0."""
    heads: list[tuple[bytes, str, int]] = []
    """GUID, topic, head of every stream that the query selects."""
    frames: list[bytes] = []
    held: list[int] = []
    """For ``confirm``: positions in ``wants`` of the ranges that the cache has completely."""
    durable: list[int] = []
    """Positions in ``held`` of ranges that are kept as durably as their topic demands, not only in memory."""
    former: list[bytes] = []
    """Earlier GUIDs of the answering publisher, before its restarts, newest first; ``heads`` has their final heads."""
    age: float = AGE_UNKNOWN
    """Seconds since the answering publisher started, by its own clock; never too few."""
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
    """Raises UndecodableBody when the scope of a query is not the one in its header, which access control has seen."""
    if query.scope != header.topic:
        raise UndecodableBody(f"a query of scope {query.scope[:80]!r} in a frame of {header.topic!r}")
