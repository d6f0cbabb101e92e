"""The stored form of what a leader knows: progress of streams, and the status that operators read."""

from __future__ import annotations

import msgspec

from pubsub_api.core.errors import UndecodableBody
from shared_subscriptions.core.streams import StreamRecord


class MemberStatus(msgspec.Struct, frozen=True):
    borrower: str
    name: str
    streams: list[int]
    state: str
    """``member``, ``superseded`` by a younger one of its name, or ``expelled``."""


class MoveStatus(msgspec.Struct, frozen=True):
    stream: int
    source: str
    target: str
    reason: str
    ago_s: float


class GroupStatus(msgspec.Struct, frozen=True):
    """What a leader says about its group, with every commit."""

    epoch: int
    leader: str
    members: list[MemberStatus] = []
    streams: dict[int, tuple[str, str]] = {}
    """Stream -> status and name of the member that has it."""
    moves: list[MoveStatus] = []
    counters: dict[str, int] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode_stream = msgspec.msgpack.Decoder(StreamRecord).decode
_decode_status = msgspec.msgpack.Decoder(GroupStatus).decode


def encode_stream(record: StreamRecord) -> bytes:
    return _encode(record)


def decode_stream(value: bytes) -> StreamRecord:
    """Raises UndecodableBody."""
    try:
        return _decode_stream(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UndecodableBody(f"the progress of a stream cannot be decoded: {error}") from error


def encode_status(status: GroupStatus) -> bytes:
    return _encode(status)


def decode_status(value: bytes) -> GroupStatus:
    """Raises UndecodableBody."""
    try:
        return _decode_status(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UndecodableBody(f"the status of a group cannot be decoded: {error}") from error
