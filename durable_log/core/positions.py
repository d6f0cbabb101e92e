"""How stores keep where a stream stands: with a checksum, because it decides what `append` takes for a duplicate.

A position that was damaged and believed would have events acknowledged that are stored nowhere.
"""

from __future__ import annotations

import zlib

import msgspec

from durable_log.core.placing import StreamPosition
from durable_log.errors import LogCorrupt
from pubsub_api.core.frame import GUID_BYTES

_CHECKSUM_BYTES = 4

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StreamPosition).decode


def stream_key(guid: bytes, topic: str) -> bytes:
    """What a position is stored under: GUID and topic in one."""
    return guid + topic.encode()


def split_key(key: bytes) -> tuple[bytes, str]:
    """GUID and topic.  A damaged topic is made readable."""
    return key[:GUID_BYTES], key[GUID_BYTES:].decode(errors="replace")


def encode_position(key: bytes, position: StreamPosition) -> bytes:
    """What is stored under a key."""
    encoded = _encode(position)
    return zlib.crc32(encoded, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "big") + encoded


def decode_position(shard: int, key: bytes, stored: bytes) -> StreamPosition:
    """Raises LogCorrupt when it, or its key, is not what was stored."""
    try:
        checksum, encoded = stored[:_CHECKSUM_BYTES], stored[_CHECKSUM_BYTES:]
        if int.from_bytes(checksum, "big") == zlib.crc32(encoded, zlib.crc32(key)):
            return _decode(encoded)
        why = "its checksum differs"
    except (msgspec.MsgspecError, TypeError) as error:
        why = str(error)
    guid, topic = split_key(key)
    raise LogCorrupt(
        f"shard {shard}: where the stream {guid.hex()} of topic {topic!r} stands is damaged: {why}. Nothing is stored "
        "of it; 'heliograph log repair' finds it anew from the frames",
        shard=shard,
    )


def wrong_end(shard: int) -> LogCorrupt:
    """The error for a shard whose frames reach beyond the end that it says it has."""
    return LogCorrupt(
        f"shard {shard}: it has frames behind its end, which is damaged. Nothing is stored in it; 'heliograph log "
        "repair' finds its end anew",
        shard=shard,
    )
