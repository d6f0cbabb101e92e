"""What a mailbox reads of a frame without decoding its events, and the one field it may rewrite.

Everything stands at constant offsets, see `pubsub_api.core.frame`.  A frame whose predecessors were coalesced or
dropped on purpose says so in ``after``; when it was signed, it is signed again.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple

from pubsub_api.core.frame import Flag, is_frame

_FIELDS = struct.Struct(">5xBB2x16sxQxQxI9x1xH")
_AFTER = struct.Struct(">Q")
_AFTER_AT = 35
_MAC_BYTES = 32
_TAIL_BYTES = 2 + _MAC_BYTES


class Stamp(NamedTuple):
    """The header fields that decide what a mailbox may do with a frame."""

    kind: int
    is_signed: bool
    stream: tuple[bytes, bytes]
    """GUID and topic: numbers are dense within it."""
    first: int
    after: int
    events: int


def read_stamp(frame: bytes) -> Stamp | None:
    """The stamp of a frame; None for bytes that are none."""
    if not is_frame(frame) or len(frame) <= _FIELDS.size:
        return None
    kind, flags, guid, first, after, count, topic_bytes = _FIELDS.unpack_from(frame)
    topic = frame[_FIELDS.size : _FIELDS.size + topic_bytes]
    return Stamp(kind, bool(flags & Flag.SIGNED), (guid, topic), first, after, count)


def topic_of(frame: bytes) -> str | None:
    """The topic that a frame states; None for bytes that are no frame."""
    stamp = read_stamp(frame)
    return stamp.stream[1].decode(errors="replace") if stamp is not None else None


def with_after(frame: bytes, after: int, key: bytes | None) -> bytes:
    """The same frame, following number ``after``.  A signed one is signed again, for which ``key`` must be given."""
    stamp = read_stamp(frame)
    if stamp is None or stamp.after == after:
        return frame
    changed = bytearray(frame)
    _AFTER.pack_into(changed, _AFTER_AT, after)
    if stamp.is_signed:
        if key is None:
            raise ValueError("a signed frame cannot be restamped without the key")
        changed[-_MAC_BYTES:] = hmac.digest(key, bytes(changed[:-_TAIL_BYTES]), "sha256")
    return bytes(changed)
