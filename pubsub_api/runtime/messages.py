"""Messages in a stream of bytes: each with its length before it, in 4 bytes.  Does no I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

BYTES_MAX = 2**32 - 1
"""The largest message that its length can tell."""
_LENGTH = struct.Struct(">I")


def pack(*parts: bytes, uncounted: int = 0) -> bytes:
    """One message for the stream.  ``uncounted``: see `Splitter`."""
    return b"".join((_LENGTH.pack(sum(map(len, parts)) - uncounted), *parts))


class Splitter:
    """Cuts a stream into messages.  Holds at most one that is incomplete, and so at most ``bytes_max`` bytes.

    The bound may be changed between messages.  ``refuse`` makes the exception for a length of 0 or above the bound,
    after which the stream is of no use.  ``uncounted`` bytes of each message, such as a signature, are not part of its
    length.
    """

    def __init__(self, bytes_max: int, refuse: Callable[[str], Exception], *, uncounted: int = 0) -> None:
        self.bytes_max = bytes_max
        self._refuse = refuse
        self._before = _LENGTH.size + uncounted
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are complete now; to be gone through before more is fed."""
        data = self._rest + data if self._rest else data
        self._rest = b""
        at = 0
        while len(data) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, at)
            if not 0 < size <= self.bytes_max:
                raise self._refuse(f"a message of {size} bytes; at most {self.bytes_max} are accepted")
            end = at + self._before + size
            if end > len(data):
                break
            yield data[at + _LENGTH.size : end]
            at = end
        self._rest = data[at:]

    @property
    def waiting_bytes(self) -> int:
        """Of a message that is not complete yet."""
        return len(self._rest)
