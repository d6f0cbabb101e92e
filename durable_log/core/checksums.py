"""The checksum of a stored frame that is not sealed yet.  Segments have their own."""

from __future__ import annotations

import struct
import zlib

from durable_log.errors import LogCorrupt

pack_numbers = struct.Struct(">6q").pack


def frame_checksum(frame: bytes, *numbers: int) -> int:
    """CRC-32 of a frame and of the six numbers that are stored beside it, in the order that the driver keeps.

    Raises TypeError or struct.error when they are not what they should be, as in a damaged row.
    """
    return zlib.crc32(frame, zlib.crc32(pack_numbers(*numbers)))


def is_sound(checksum: int, frame: bytes, *numbers: int) -> bool:
    """Whether all is as it was stored.  Of a damaged row nothing is certain, not even the types."""
    try:
        return frame_checksum(frame, *numbers) == checksum
    except (TypeError, struct.error):
        return False


def damaged(shard: int, first: int, end: int) -> LogCorrupt:
    """The error for a stored frame that does not match its checksum.  ``end`` is where the next one begins."""
    return LogCorrupt(
        f"shard {shard}, offsets {first} to {end}: a frame in the store is damaged: its checksum differs. What comes "
        "after it can be read; 'heliograph log repair --give-up-damaged' seals the rest without it",
        shard=shard, first=first, end=end,
    )  # fmt: skip


def gap(shard: int, first: int, end: int) -> LogCorrupt:
    """The error for offsets that no frame has: a row or an entry is gone, or is to be found under another offset."""
    return LogCorrupt(
        f"shard {shard}, offsets {first} to {end}: no frame in the store has them. What comes after them can be read; "
        "'heliograph log repair --give-up-damaged' seals the rest without them",
        shard=shard, first=first, end=end,
    )  # fmt: skip
