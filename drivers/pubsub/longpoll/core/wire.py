"""The messages between a subscriber and a publisher: msgpack arrays, in calls of one gRPC service.

========= ================== ==================================================================================
method    request, answer    purpose
========= ================== ==================================================================================
Command   Batch, Applied     subscribe and unsubscribe; the first batch of a session opens it
Poll      Poll, Mail         wait for frames; acknowledges those of the answer before
Leave     Leave, Applied     end a session
Ask       a QUERY frame      one byte, 1 when queries are served and 0 otherwise; then REPLY frames
========= ================== ==================================================================================

A call of Poll carries any number of polls, each sent after the answer to the one before.  Either side may end the call
after an answer, even after the first one.

A session is named by 16 random bytes of the subscriber and by a serial number of the publisher, so that a message can
reach neither a restarted publisher nor a newer session by mistake.
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
"""Size of the filters in one batch, at most; more commands make several batches."""
_COMMANDS_MAX = 65_536
_HOLD_S_MAX = 86_400.0


class SessionStatus(enum.IntEnum):
    OK = 0
    UNKNOWN = 1
    """There is no such session: it was considered dead, or the publisher has restarted."""
    SUPERSEDED = 2
    """A newer poll of the same session has come."""
    RESET = 3
    """Frames for this subscriber were dropped, because too many waited.  It is still subscribed."""
    CLOSING = 4
    """The publisher ends."""
    REFUSED = 5
    """A limit of the publisher is reached; the reason names it."""


class FrameBatch(msgspec.Struct, array_like=True, frozen=True):
    """Commands, numbered from ``first`` on without gaps within a session: a number takes effect once."""

    session: bytes
    serial: int
    """0 while it is not known."""
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
    """A poll with a higher number supersedes it."""
    acknowledged: int
    hold_s: float
    """The poll is answered after this time at the latest; at once with 0."""


class Mail(msgspec.Struct, array_like=True, frozen=True):
    status: int
    publisher: bytes
    first: int = 0
    """Number of the first frame, or of the reset."""
    runs: list[tuple[int, list[bytes]]] = []
    """(the last command that was in effect when these frames were published; the frames)."""
    skipped: int = 0
    """Events coalesced or dropped on purpose since the last answer."""
    reason: str = ""


class Leave(msgspec.Struct, array_like=True, frozen=True):
    session: bytes
    serial: int


Message = TypeVar("Message", FrameBatch, Applied, Poll, Mail, Leave)

encode = msgspec.msgpack.Encoder().encode
_DECODERS = {kind: msgspec.msgpack.Decoder(kind) for kind in (FrameBatch, Applied, Poll, Mail, Leave)}


def decode(kind: type[Message], data: bytes) -> Message:
    """Parse a message of this kind.  Raises MalformedFrame."""
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
