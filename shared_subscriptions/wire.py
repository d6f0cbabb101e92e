"""How messages travel between a member and a leader: sealed with the key that stands in the leader's record.

A process that can read the log can speak to the leader, and no other can.  Every leader has a new key, so a message to
the one before is no message to it.  The text itself is not secret: it names partitions and offsets, never events.

One message on the wire: its length in 4 bytes, 16 bytes of keyed BLAKE2b over the body, the body.
"""

from __future__ import annotations

import hashlib
import hmac

from pubsub_api.errors import BadSignature, OversizedFrame
from pubsub_api.runtime.sockets.messages import Splitter, pack

KEY_BYTES = 32
_SEAL_BYTES = 16
GREETING_BYTES_MAX = 64 * 1024
"""Of the first message on a connection, which names a member and what it had before."""


def seal(body: bytes, key: bytes) -> bytes:
    return pack(_mac(body, key), body, uncounted=_SEAL_BYTES)


def _mac(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_SEAL_BYTES, key=key).digest()


class Unsealer:
    """Takes bytes as they come from a socket, returns whole messages."""

    def __init__(self, key: bytes, *, bytes_max: int, is_stranger: bool = False) -> None:
        self._key = key
        self._bytes_max = bytes_max
        # A peer that has not proven to know the key must not cost much memory.
        first_max = min(bytes_max, GREETING_BYTES_MAX) if is_stranger else bytes_max
        self._splitter = Splitter(first_max, OversizedFrame, uncounted=_SEAL_BYTES)

    def feed(self, data: bytes) -> list[bytes]:
        """Raises OversizedFrame and BadSignature; the connection is of no use after that."""
        bodies: list[bytes] = []
        for message in self._splitter.feed(data):
            found, body = message[:_SEAL_BYTES], message[_SEAL_BYTES:]
            if not hmac.compare_digest(found, _mac(body, self._key)):
                raise BadSignature("a message is sealed with another key than that of this leader")
            self._splitter.bytes_max = self._bytes_max
            bodies.append(body)
        return bodies
