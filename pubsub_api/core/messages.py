"""Bodies of all frames but DATA: what the parts of Heliograph say to each other.

Each is a msgpack map with named fields, decoded into a typed struct; a field this version does not know is ignored.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pubsub_api.core import frame as frames
from pubsub_api.core.errors import UndecodableBody

HEADS_PER_FRAME_MAX = 100


class Hello(msgspec.Struct, omit_defaults=True):
    """On the control topic: a publisher lives.  On a stream's topic the header says it all and this is empty."""

    name: str = ""
    predecessor: bytes = b""
    """GUID of this publisher's former life, when its final heads are known; they follow in ``heads``."""
    heads: dict[str, int] = {}


class Bye(msgspec.Struct, omit_defaults=True):
    """The publisher ends.  Final heads of its streams, in several frames when they are many; flag LAST on the last."""

    name: str = ""
    heads: dict[str, int] = {}


class Want(msgspec.Struct, array_like=True):
    """Numbers ``first`` to ``last`` of one stream, both included; 1 and ``SEQUENCE_MAX`` leave an end open."""

    guid: bytes
    topic: str
    first: int = 1
    last: int = frames.SEQUENCE_MAX


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
    part: int = 0
    parts: int = 0
    """Number of this part, from 0, and on the last one how many there are: so the asker sees whether one was lost."""


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
