"""The checksum of a stored frame that is not sealed yet.  Segments have their own."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from durable_log.errors import LogCorrupt
from durable_log.log_api import ShardState, StoredFrame

_pack_numbers = struct.Struct(">6q").pack


def frame_checksum(frame: bytes, *numbers: int) -> int:
    """CRC-32 of a frame and of the six numbers that are stored beside it, in the order that the driver keeps.

    Raises TypeError or struct.error when they are not what they should be, as in a damaged row.
    """
    return zlib.crc32(frame, zlib.crc32(_pack_numbers(*numbers)))


def is_sound(checksum: int, frame: bytes, *numbers: int) -> bool:
    """Whether all is as it was stored.  Of a damaged row nothing is certain, not even the types."""
    try:
        # As `frame_checksum`, without a call: this is done for every frame that is read.
        return zlib.crc32(frame, zlib.crc32(_pack_numbers(*numbers))) == checksum
    except (TypeError, struct.error):
        return False


def damaged(shard: int, first: int, end: int) -> LogCorrupt:
    """The error for a stored frame that does not match its checksum.  ``end`` is where the next one begins."""
    return LogCorrupt(
        f"shard {shard}, offsets {first} to {end}: a frame in the store is damaged: its checksum differs. What comes "
        "after it can be read; 'heliograph log repair --give-up-damaged' seals the rest without it",
        shard=shard, first=first, end=end,
    )  # fmt: skip


def without_gaps(found: Iterable[StoredFrame], state: ShardState, offset: int) -> Iterator[StoredFrame]:
    """The frames from the one that covers ``offset`` on.  Raises LogCorrupt when it comes to offsets that no frame has:
    a row or an entry is gone, or is to be found under another offset."""
    for one in found:
        if one.end <= offset:
            continue  # the one before a gap
        if one.offset > offset:
            raise _gap(state.shard, offset, one.offset)
        yield one
        offset = one.end
    if offset < state.end:
        raise _gap(state.shard, offset, state.end)


def _gap(shard: int, first: int, end: int) -> LogCorrupt:
    return LogCorrupt(
        f"shard {shard}, offsets {first} to {end}: no frame in the store has them. What comes after them can be read; "
        "'heliograph log repair --give-up-damaged' seals the rest without them",
        shard=shard, first=first, end=end,
    )  # fmt: skip
