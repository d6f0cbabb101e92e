"""The frame: the bytes that drivers move, caches keep and logs store.

A frame is one msgpack array of twelve elements, so that any msgpack library can read it.  The elements before the topic
have constant widths, so they are at constant offsets: code that only routes, checks or stores a frame reads the header
with one ``struct`` call, and does not decode the events.

====== ======================== =========================================================================
offset bytes                    element
====== ======================== =========================================================================
0      9c                       array of 12
1      a2 48 47                 magic, the string "HG"
4      01                       wire version
5      00-7f                    kind
6      00-7f                    flags
7      c4 10 + 16               GUID of the publisher (of the asker, in a QUERY)
25     cf + 8                   first: number of the first event; in a HELLO the number the next event will have
34     cf + 8                   after: the number this frame follows, first - 1 unless numbers were skipped on purpose
43     ce + 4                   count: how many events
48     cf + 8                   timestamp: hybrid logical clock at sending, nanoseconds
57     da + 2 + n               topic; in a QUERY and its REPLY the scope, see `pubsub_api.core.scopes`
60 + n                          body: what the kind prescribes, see `pubsub_api.core.messages`
end    c0, or c4 20 + 32        nil, or the HMAC-SHA256 of every byte before this element
====== ======================== =========================================================================
"""

from __future__ import annotations

import enum
import functools
import hmac
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pubsub_api.core.errors import (
    BadSignature,
    FrameError,
    InvalidTopic,
    MalformedFrame,
    NotAFrame,
    OversizedFrame,
    UnsupportedVersion,
)
from pubsub_api.core.scopes import check_scope
from pubsub_api.core.topics import CONTROL_TOPIC, TOPIC_BYTES_MAX, check_topic

WIRE_VERSION = 1
GUID_BYTES = 16
GUID_AT = slice(9, 9 + GUID_BYTES)
"""The GUID in a frame, for code that only counts senders."""
SEQUENCE_MAX = 2**63 - 1
FRAME_OVERHEAD_BYTES_MAX = 60 + TOPIC_BYTES_MAX + 34


class Kind(enum.IntEnum):
    DATA = 1
    """Events."""
    HELLO = 2
    """The head of a stream (on its topic), or that a publisher is alive (on the control topic)."""
    BYE = 3
    """The publisher ends; its final heads."""
    QUERY = 4
    """A query to caches."""
    REPLY = 5
    """A part of the answer to a query."""
    CONTROL = 6
    """Other messages between parts of Heliograph.  Never delivered to a program as an event."""


class Flag(enum.IntFlag):
    NONE = 0
    SIGNED = 1
    """The last element is an HMAC."""
    START = 2
    """HELLO of a publisher that has sent nothing before: every stream of this GUID starts at 1."""
    LAST = 4
    """The last frame of a message that spans several."""


class Header(NamedTuple):
    kind: int
    flags: int
    guid: bytes
    first: int
    after: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which is not needed of a header
    timestamp: int
    topic: str
    body_start: int
    body_end: int

    @property
    def last(self) -> int:
        """Number of the last event of the frame."""
        return self.first + self.count - 1


_FIXED = struct.Struct(">4sBBB2s16scQcQcIcQcH")
_AFTER_VERSION = struct.Struct(">BB2s16scQcQcIcQcH")
_NUMBERS = struct.Struct(">cQcQcIcQ")
_STAMP = struct.Struct(">5xBB2x16sxQxQxI9x1xH")
_AFTER = struct.Struct(">Q")
_AFTER_AT = 35
_ARRAY32 = struct.Struct(">BI")
_COUNT_AT = slice(44, 48)
_ONE_EVENT = _ARRAY32.pack(0xDD, 1)
"""The beginning of the body of a DATA frame with one event."""
PREFIX = b"\x9c\xa2HG"
"""The beginning of every frame."""
_BEGINNING = PREFIX + bytes((WIRE_VERSION,))
_GUID_MARK = b"\xc4\x10"
_UINT64, _UINT32, _STR16 = b"\xcf", b"\xce", b"\xda"
_MARKS = (_UINT64, _UINT64, _UINT32, _UINT64, _STR16)
_NIL = b"\xc0"
MAC_MARK = b"\xc4\x20"
MAC_BYTES = 32
_KINDS = frozenset(int(kind) for kind in Kind)
_DATA = int(Kind.DATA)
_SCOPED = (int(Kind.QUERY), int(Kind.REPLY))
"""Kinds that have a scope in place of a topic, see `pubsub_api.core.scopes`."""
_FIXED_BYTES = _FIXED.size
_new_header = functools.partial(tuple.__new__, Header)


def is_frame(data: bytes) -> bool:
    """Whether the bytes begin as a frame does.  The rest is not checked."""
    return data[:4] == PREFIX


def is_of_kind(frame: bytes, kind: Kind) -> bool:
    """Whether a frame is of this kind.  Nothing else is checked."""
    return frame[5:6] == bytes((kind,))


def name_of(frame: bytes) -> bytes:
    """The topic or scope in a frame, for code that compares it with the place where the frame arrived.  No checks."""
    return frame[_FIXED_BYTES : _FIXED_BYTES + int.from_bytes(frame[_FIXED_BYTES - 2 : _FIXED_BYTES], "big")]


def data_beginning(*, is_signed: bool) -> bytes:
    """The beginning of every DATA frame, up to its GUID."""
    return _BEGINNING + bytes((_DATA, Flag.SIGNED if is_signed else Flag.NONE)) + _GUID_MARK


class Stamp(NamedTuple):
    """The header fields that a queue of frames needs to decide what it may drop or merge.  Not checked."""

    kind: int
    is_signed: bool
    stream: tuple[bytes, bytes]
    """GUID and topic: numbers have no gaps within a stream."""
    first: int
    after: int
    events: int


def read_stamp(frame: bytes) -> Stamp | None:
    """The stamp of a frame; None for bytes that are no frame."""
    if not is_frame(frame) or len(frame) <= _FIXED_BYTES:
        return None
    kind, flags, guid, first, after, count, topic_bytes = _STAMP.unpack_from(frame)
    topic = frame[_FIXED_BYTES : _FIXED_BYTES + topic_bytes]
    return Stamp(kind, bool(flags & Flag.SIGNED), (guid, topic), first, after, count)


def with_after(frame: bytes, after: int, key: bytes | None) -> bytes:
    """The same frame with another ``after``: the numbers between were skipped on purpose.

    A signed frame is signed again with ``key``.
    """
    stamp = read_stamp(frame)
    if stamp is None or stamp.after == after:
        return frame
    changed = bytearray(frame)
    _AFTER.pack_into(changed, _AFTER_AT, after)
    if stamp.is_signed:
        if key is None:
            raise ValueError("a signed frame cannot be restamped without the key")
        unsigned = changed[: -len(MAC_MARK) - MAC_BYTES]
        changed[-MAC_BYTES:] = hmac.digest(key, unsigned, "sha256")
    return bytes(changed)


def pack(
    kind: int,
    guid: bytes,
    topic: str,
    body: bytes,
    *,
    first: int = 0,
    after: int = 0,
    count: int = 0,
    timestamp: int = 0,
    flags: int = 0,
    key: bytes | None = None,
) -> bytes:
    """Build a frame.  ``body`` is msgpack.  With ``key`` the frame is signed.  The caller has checked the topic."""
    name = topic.encode()
    if key:
        flags |= Flag.SIGNED
    fixed = _FIXED.pack(
        PREFIX, WIRE_VERSION, kind, flags, _GUID_MARK, guid, _UINT64, first, _UINT64, after, _UINT32, count,
        _UINT64, timestamp, _STR16, len(name),
    )  # fmt: skip
    if not key:
        return b"".join((fixed, name, body, _NIL))
    unsigned = b"".join((fixed, name, body))
    return b"".join((unsigned, MAC_MARK, hmac.digest(key, unsigned, "sha256")))


class DataPacker:
    """Packs DATA frames of one publisher as `pack` does.  What they have in common is packed once."""

    __slots__ = ("_beginning", "_key")

    def __init__(self, guid: bytes, key: bytes | None) -> None:
        self._beginning = data_beginning(is_signed=bool(key)) + guid
        self._key = key

    def pack(self, topic: bytes, events: Sequence[bytes], *, first: int, after: int, timestamp: int) -> bytes:
        """A frame of encoded events, numbered from ``first`` on.  ``topic`` is a `topic_element`."""
        count = len(events)
        numbers = _NUMBERS.pack(_UINT64, first, _UINT64, after, _UINT32, count, _UINT64, timestamp)
        parts = [self._beginning, numbers, topic, _ARRAY32.pack(0xDD, count), *events]
        if self._key:
            parts += (MAC_MARK, hmac.digest(self._key, b"".join(parts), "sha256"))
        else:
            parts.append(_NIL)
        return b"".join(parts)

    def pack_one(self, topic: bytes, event: bytes, first: int, after: int, timestamp: int) -> bytes:
        """As `pack` for one event, with less work."""
        if self._key:
            return self.pack(topic, (event,), first=first, after=after, timestamp=timestamp)
        numbers = _NUMBERS.pack(_UINT64, first, _UINT64, after, _UINT32, 1, _UINT64, timestamp)
        return b"".join((self._beginning, numbers, topic, _ONE_EVENT, event, _NIL))


def topic_element(topic: str) -> bytes:
    """The topic as an element of a frame.  The caller has checked it."""
    name = topic.encode()
    return _STR16 + len(name).to_bytes(2, "big") + name


def unpack(frame: bytes, *, bytes_max: int, key: bytes | None = None) -> Header:
    """Read and check the header.  The body is not checked.

    Raises a FrameError for bytes that are no correct frame: NotAFrame, UnsupportedVersion, OversizedFrame,
    MalformedFrame, BadSignature.  No bytes make it raise another exception.
    """
    size = len(frame)
    if size > bytes_max or size <= _FIXED_BYTES or frame[:5] != _BEGINNING:
        raise _refusal(frame, bytes_max)
    (kind, flags, guid_mark, guid, mark0, first, mark1, after, mark2, count, mark3, timestamp, mark4,
     topic_bytes) = _AFTER_VERSION.unpack_from(frame, 5)  # fmt: skip
    if guid_mark != _GUID_MARK or (mark0, mark1, mark2, mark3, mark4) != _MARKS:
        raise MalformedFrame("the header's fixed fields are not where they belong")
    body_start = _FIXED_BYTES + topic_bytes
    body_end = size - (1 + 1 + MAC_BYTES if flags & 1 else 1)
    if kind not in _KINDS or flags > 0x7F or body_end <= body_start:
        raise MalformedFrame(f"kind {kind}, flags {flags:#x}, {topic_bytes} bytes of topic do not fit {size} bytes")
    if key or flags & 1 or frame[body_end] != 0xC0:
        _check_tail(frame, body_end, bool(flags & 1), key)
    if kind != _DATA or count == 0 or first == 0 or after >= first or first + count > SEQUENCE_MAX:
        _check_numbers(kind, first, after, count)
    name = frame[_FIXED_BYTES:body_start]
    topic = _read_topic(name) if kind == _DATA or kind not in _SCOPED else _read_scope(name)
    # As the class itself would make it, but without Python code: this runs for every frame.
    return _new_header((kind, flags, guid, first, after, count, timestamp, topic, body_start, body_end))


def _refusal(frame: bytes, bytes_max: int) -> FrameError:
    """The error for a frame that is too large or too short, or whose beginning is wrong."""
    size = len(frame)
    if size > bytes_max:
        return OversizedFrame(f"a frame of {size} bytes is larger than frame_bytes_max = {bytes_max}")
    if frame[:4] != PREFIX:
        return NotAFrame(f"{size} bytes that start with {frame[:4].hex() or 'nothing'} are not a Heliograph frame")
    if size > 4 and frame[4] != WIRE_VERSION:
        return UnsupportedVersion(f"the frame has wire version {frame[4]}; this release speaks {WIRE_VERSION}")
    return MalformedFrame(f"a frame of {size} bytes ends inside its header")


def body(frame: bytes, header: Header) -> memoryview:
    """The msgpack of the body, not copied."""
    return memoryview(frame)[header.body_start : header.body_end]


def check_count(frame: bytes, header: Header) -> None:
    """Raises MalformedFrame unless the body of a DATA frame begins as an array of as many events as the header has.

    Code that uses the numbers in the header before it decodes events must call this first: with a count that is too
    high, the numbers of later events would be taken as received.
    """
    at, size = header.body_start, header.body_end - header.body_start
    mark = frame[at]
    if mark == 0xDD and frame[at + 1 : at + 5] == frame[_COUNT_AT] and header.count < size:
        return  # as this package writes it
    width = {0xDC: 2, 0xDD: 4}.get(mark, 0)
    stated = int.from_bytes(frame[at + 1 : at + 1 + width], "big") if width else mark & 0xF if mark >> 4 == 9 else 0
    if stated != header.count or stated >= size:
        raise MalformedFrame(f"the header states {header.count} events, the {size} bytes of the body {stated}")


def _check_tail(frame: bytes, body_end: int, is_signed: bool, key: bytes | None) -> None:
    if is_signed:
        if frame[body_end : body_end + 2] != MAC_MARK:
            raise MalformedFrame("the frame claims a signature and has none")
        if key and not hmac.compare_digest(frame[body_end + 2 :], hmac.digest(key, frame[:body_end], "sha256")):
            raise BadSignature("the HMAC of the frame does not match: another key, or the frame was changed")
    elif frame[body_end:] != _NIL:
        raise MalformedFrame("the frame does not end where its length says")
    elif key:
        raise BadSignature("the frame is unsigned and hmac_key is set")


def _check_numbers(kind: int, first: int, after: int, count: int) -> None:
    if kind == Kind.DATA:
        if count == 0 or first == 0 or after >= first or first + count > SEQUENCE_MAX:
            raise MalformedFrame(f"events {first}+{count} after {after} are not a valid range")
    elif count or first > SEQUENCE_MAX or after > SEQUENCE_MAX:
        raise MalformedFrame(f"a frame of kind {kind} with first {first}, after {after}, count {count}")


@functools.lru_cache(maxsize=65_536)
def _read_topic(raw: bytes) -> str:
    try:
        topic = raw.decode()
        return topic if topic == CONTROL_TOPIC else check_topic(topic)
    except (UnicodeDecodeError, InvalidTopic) as error:
        raise MalformedFrame(f"the frame's topic is invalid: {error}") from error


@functools.lru_cache(maxsize=4096)
def _read_scope(raw: bytes) -> str:
    try:
        return check_scope(raw.decode())
    except (UnicodeDecodeError, InvalidTopic) as error:
        raise MalformedFrame(f"the frame's scope is invalid: {error}") from error
