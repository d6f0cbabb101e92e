"""The messages between a subscriber and a publisher: msgpack arrays, in calls of one gRPC service.

========= ================== ==================================================================================
method    request, answer    what for
========= ================== ==================================================================================
Command   Batch, Applied     subscribe and unsubscribe; the first batch of a session opens it
Poll      Poll, Mail         wait for frames; acknowledges those of the answer before
Leave     Leave, Applied     end a session
Ask       a QUERY frame      one byte, 1 when queries are served and 0 otherwise; then REPLY frames
========= ================== ==================================================================================

A call of Poll carries any number of polls, each sent when the one before was answered, until either side ends it after
an answer.  It may carry a single poll, as a unary call does.

A session is named by 16 random bytes of the subscriber and by a serial number of the publisher, so that neither a
publisher that was started again nor a session that was forgotten and made anew can be taken for the old one.
"""

from __future__ import annotations

import enum
from typing import TypeVar

import msgspec

from pubsub_api.core.topics import check_filter
from pubsub_api.errors import InvalidTopic, MalformedFrame

SERVICE = "heliograph.longpoll.v1"
COMMAND, POLL, LEAVE, ASK = (f"/{SERVICE}/{name}" for name in ("Command", "Poll", "Leave", "Ask"))
SERVED, NOT_SERVED = b"\x01", b"\x00"
SESSION_BYTES = 16
BATCH_BYTES_MAX = 1024 * 1024
"""Of filters in one batch, at most; a longer one is made into several."""
_COMMANDS_MAX = 65_536
_HOLD_S_MAX = 86_400.0


class SessionStatus(enum.IntEnum):
    OK = 0
    UNKNOWN = 1
    """There is no such session: it was declared dead, or belonged to an earlier life of the publisher."""
    SUPERSEDED = 2
    """A newer poll of the same session has come."""
    RESET = 3
    """Frames for this subscriber were given up, because too many waited.  It is still subscribed."""
    CLOSING = 4
    """The publisher ends."""
    REFUSED = 5
    """A limit of the publisher is reached; the reason names it."""


class FrameBatch(msgspec.Struct, array_like=True, frozen=True):
    """Commands, numbered from ``first`` on without gaps within a session: a number takes effect once."""

    session: bytes
    serial: int
    """0: not known yet."""
    first: int
    commands: list[tuple[bool, str]]
    """(True to subscribe, False to unsubscribe; filter)."""


class Applied(msgspec.Struct, array_like=True, frozen=True):
    status: int
    publisher: bytes
    serial: int = 0
    number: int = 0
    """The last command that is in effect."""
    reason: str = ""


class Poll(msgspec.Struct, array_like=True, frozen=True):
    session: bytes
    serial: int
    number: int
    """Of this poll: a higher one supersedes it."""
    acknowledged: int
    hold_s: float
    """Answer after this time at the latest; 0: at once."""


class Mail(msgspec.Struct, array_like=True, frozen=True):
    status: int
    publisher: bytes
    first: int = 0
    """Number of the first frame, or of the reset."""
    runs: list[tuple[int, list[bytes]]] = []
    """(the last command that was in effect when these frames were published; the frames)."""
    skipped: int = 0
    """Events coalesced or dropped on purpose since the answer before."""
    reason: str = ""


class Leave(msgspec.Struct, array_like=True, frozen=True):
    session: bytes
    serial: int


Message = TypeVar("Message", FrameBatch, Applied, Poll, Mail, Leave)

encode = msgspec.msgpack.Encoder().encode
_DECODERS = {kind: msgspec.msgpack.Decoder(kind) for kind in (FrameBatch, Applied, Poll, Mail, Leave)}


def decode(kind: type[Message], data: bytes) -> Message:
    """Read a message.  Raises MalformedFrame for anything else."""
    try:
        message = _DECODERS[kind].decode(data)
        assert isinstance(message, kind)
        if isinstance(message, FrameBatch):
            _check_batch(message)
        if isinstance(message, (FrameBatch, Poll, Leave)) and len(message.session) != SESSION_BYTES:
            raise MalformedFrame(f"a session is {SESSION_BYTES} bytes, not {len(message.session)}")
        if isinstance(message, Poll) and not 0 <= message.hold_s <= _HOLD_S_MAX:
            raise MalformedFrame(f"a poll that waits {message.hold_s} s")
    except (msgspec.MsgspecError, InvalidTopic, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(f"not a {kind.__name__} message: {error}") from error
    return message


def _check_batch(batch: FrameBatch) -> None:
    if batch.first < 1 or len(batch.commands) > _COMMANDS_MAX:
        raise MalformedFrame(f"a batch of {len(batch.commands)} commands from {batch.first} on")
    for _, topic_filter in batch.commands:
        if not topic_filter.startswith("$"):
            check_filter(topic_filter)
