"""Answers of a Redis server: bytes in, values out.  By hiredis where it is installed, else in Python.  Does no I/O."""

from __future__ import annotations

from typing import Any, Final, Protocol

LINE_BYTES_MAX = 64 * 1024
BULK_BYTES_MAX = 512 * 1024 * 1024
"""The server's own limit (proto-max-bulk-len), and so the largest frame."""

INCOMPLETE: Final = object()
"""What a reader returns when the next answer has not arrived in full."""


class ServerError(Exception):
    """An error that the server answered, as a value.  It is never raised."""


class ProtocolError(Exception):
    """The peer does not speak the protocol of Redis."""


class Reader(Protocol):
    """The part of ``hiredis.Reader`` that is used here."""

    def feed(self, data: Any, offset: int, size: int, /) -> None: ...
    def gets(self) -> Any: ...


class PlainReader:
    """Reads answers in Python, where hiredis is not installed.  Knows the types that our commands can bring about."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._position = 0

    def feed(self, data: bytearray, offset: int, size: int, /) -> None:
        del self._data[: self._position]
        self._position = 0
        self._data += memoryview(data)[offset : offset + size]

    def gets(self) -> Any:
        """The next answer, or INCOMPLETE.  Raises ProtocolError."""
        answer, position = self._read(self._position)
        if answer is not INCOMPLETE:
            self._position = position
        return answer

    def _read(self, start: int) -> tuple[Any, int]:
        end = self._data.find(b"\r\n", start, start + LINE_BYTES_MAX)
        if end < 0:
            if len(self._data) - start >= LINE_BYTES_MAX:
                raise ProtocolError("a line without end")
            return INCOMPLETE, start
        mark, line, position = bytes(self._data[start : start + 1]), bytes(self._data[start + 1 : end]), end + 2
        if mark == b"+":
            return line, position
        if mark == b"-":
            return ServerError(line.decode(errors="replace")), position
        if mark == b"_":
            return None, position
        if mark not in (b":", b"$", b"=", b"*", b">") or not line.lstrip(b"-").isdigit():
            raise ProtocolError(f"unexpected bytes {mark + line[:40]!r}")
        number = int(line)
        if mark == b":":
            return number, position
        return self._read_bulk(position, number) if mark in (b"$", b"=") else self._read_items(position, number)

    def _read_bulk(self, start: int, size: int) -> tuple[Any, int]:
        if not 0 <= size <= BULK_BYTES_MAX:
            raise ProtocolError(f"a string of {size} bytes")
        end = start + size
        if len(self._data) < end + 2:
            return INCOMPLETE, start
        return bytes(self._data[start:end]), end + 2

    def _read_items(self, position: int, count: int) -> tuple[Any, int]:
        items = []
        for _ in range(count):
            item, position = self._read(position)
            if item is INCOMPLETE:
                return INCOMPLETE, position
            items.append(item)
        return items, position


def new_reader() -> Reader:
    """A reader for one connection."""
    try:
        import hiredis  # noqa: PLC0415 - optional
    except ImportError:
        return PlainReader()
    return hiredis.Reader(protocolError=ProtocolError, replyError=ServerError, notEnoughData=INCOMPLETE)
