"""Messages in a stream of bytes: the length of each is before it, in 4 bytes.  Does no I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import overload

BYTES_MAX = 2**32 - 1
"""The largest message: its length fits into 4 bytes."""
_LENGTH = struct.Struct(">I")


def pack(*parts: bytes, uncounted: int = 0) -> bytes:
    """One message for the stream.  ``uncounted``: see `Splitter`."""
    return b"".join((_LENGTH.pack(sum(map(len, parts)) - uncounted), *parts))


class Splitter:
    """Cuts a stream into messages.  Keeps the bytes of one incomplete message only, so at most ``bytes_max``.

    The bound may be changed between messages.  ``refuse`` makes the exception for a length of 0 or above the bound;
    after it the stream cannot be used.  ``uncounted`` bytes of each message, such as a signature, are not part of its
    length.
    """

    def __init__(self, bytes_max: int, refuse: Callable[[str], Exception], *, uncounted: int = 0) -> None:
        self.bytes_max = bytes_max
        self._refuse = refuse
        self._before = _LENGTH.size + uncounted
        self._rest = b""

    @overload
    def feed(self, data: bytes) -> Iterator[bytes]: ...

    @overload
    def feed(self, data: memoryview) -> Iterator[bytes | memoryview]: ...

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """The messages that are complete now.  Exhaust the iterator before the next call.

        The messages of a memoryview are views, too, which saves copying: they are valid until their buffer is written
        to again.  Only a message that came in pieces is copied, and then it is bytes.
        """
        at = 0
        if self._rest:
            at = self._complete(data)
            if at < 0:
                return
            message, self._rest = self._rest[_LENGTH.size :], b""
            yield message
        while len(data) - at >= _LENGTH.size:
            end = at + self._size(data, at)
            if end > len(data):
                break
            yield data[at + _LENGTH.size : end]
            at = end
        self._rest = bytes(data[at:])

    def lone(self, data: bytes | memoryview) -> bytes | memoryview | None:
        """The message, when ``data`` is exactly one, which is the most frequent case.  Otherwise None, and nothing is
        consumed: call `feed`.  For a memoryview the message is a view, as in `feed`."""
        before = self._before
        if self._rest or len(data) <= before or len(data) > self.bytes_max + before:
            return None
        size: int = _LENGTH.unpack_from(data)[0]
        return data[_LENGTH.size :] if len(data) == before + size else None

    def _complete(self, data: bytes | memoryview) -> int:
        """Complete the message in ``_rest``.  Returns how many bytes of ``data`` that took, -1 when more are needed."""
        taken = 0
        if len(self._rest) < _LENGTH.size:
            taken = min(_LENGTH.size - len(self._rest), len(data))
            self._rest += data[:taken]
            if len(self._rest) < _LENGTH.size:
                return -1
        rest, self._rest = self._rest, b""  # keep nothing when `_size` raises
        lacking = self._size(rest, 0) - len(rest)
        self._rest = b"".join((rest, data[taken : taken + lacking]))
        return taken + lacking if len(data) - taken >= lacking else -1

    def _size(self, data: bytes | memoryview, at: int) -> int:
        """Bytes of the message that begins at this offset, with those of its length."""
        size: int = _LENGTH.unpack_from(data, at)[0]
        if not 0 < size <= self.bytes_max:
            raise self._refuse(f"a message of {size} bytes; at most {self.bytes_max} are accepted")
        return self._before + size

    @property
    def waiting_bytes(self) -> int:
        """Bytes kept of a message that is not complete yet."""
        return len(self._rest)
