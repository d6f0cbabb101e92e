"""An independent reader of the wire format, on the plain ``msgpack`` package.

It shares no code with `pubsub_api.core`, on purpose: it was written from the description of the format, so a frame that
both read alike is as documented.  It is made for looking at captured bytes, not for speed: it reads a capture from
memory, frame by frame.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack  # type: ignore[import-untyped]

from pubsub_api.errors import FrameError, MalformedFrame, NotAFrame, UndecodableBody, UnsupportedVersion

MAGIC = "HG"
WIRE_VERSION = 1
KINDS = {1: "DATA", 2: "HELLO", 3: "BYE", 4: "QUERY", 5: "REPLY", 6: "CONTROL"}
FLAGS = {1: "SIGNED", 2: "START", 4: "LAST"}
ELEMENTS = ("magic", "version", "kind", "flags", "guid", "first", "after", "count", "timestamp", "topic", "body", "mac")
EVENT_FIELDS = ("table", "key", "action", "value", "version", "timestamp")
"""The fields of every event; an event may have ``headers`` as well."""
GUID_BYTES = 16
MAC_BYTES = 32

_TYPES: Mapping[str, Any] = {
    "magic": str, "version": int, "kind": int, "flags": int, "guid": bytes, "first": int, "after": int, "count": int,
    "timestamp": int, "topic": str, "body": (list, dict), "mac": (bytes, type(None)),
}  # fmt: skip

# What msgpack raises for bytes that are no msgpack, beside OutOfData: its own errors are ValueErrors, and a map whose
# key is itself a map cannot become a dict.
_UNREADABLE = (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException)


@dataclasses.dataclass(frozen=True)
class DecodedFrame:
    """One frame of a capture."""

    offset: int
    """Where it starts in the capture."""
    size: int
    version: int
    kind: str
    flags: tuple[str, ...]
    guid: str
    first: int
    after: int
    count: int
    timestamp: int
    topic: str
    signature: str | None
    """The HMAC in hex.  It is shown, not checked: the reader has no key."""
    events: list[dict[str, Any]] | None
    """The events of a DATA frame."""
    body: Any
    """The body of a frame of another kind.  Frames inside a REPLY are decoded into this class, too."""


def read_frames(data: bytes) -> Iterator[DecodedFrame]:
    """Every frame in ``data``, in order.

    Raises NotAFrame, UnsupportedVersion, MalformedFrame or UndecodableBody, with the byte offset, at the first bytes
    that are no valid frame, after yielding the frames before them.
    """
    if not data:
        raise NotAFrame("at byte offset 0: the input is empty")
    offset = 0
    while offset < len(data):
        frame = _read_frame(memoryview(data)[offset:], offset, is_stored=False)
        yield frame
        offset += frame.size


def _read_frame(data: memoryview, offset: int, *, is_stored: bool) -> DecodedFrame:
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=max(len(data), 1))
    unpacker.feed(data)
    try:
        length = unpacker.read_array_header()
    except msgpack.OutOfData:
        raise MalformedFrame(f"at byte offset {offset}: the input ends inside the frame's first element") from None
    except _UNREADABLE:
        raise NotAFrame(f"at byte offset {offset}: byte {data[0]:02x} does not start a frame, 9c does") from None
    if length != len(ELEMENTS):
        raise NotAFrame(f"at byte offset {offset}: an array of {length} elements is no frame, one of 12 is")
    fields: dict[str, Any] = {}
    for name in ELEMENTS:
        position = offset + unpacker.tell()
        fields[name] = _read_element(unpacker, name, position)
        _check_element(name, fields[name], position)
    if not is_stored and isinstance(fields["body"], dict) and isinstance(fields["body"].get("frames"), list):
        fields["body"]["frames"] = [_stored(frame, offset) for frame in fields["body"]["frames"]]
    return _build(fields, offset, unpacker.tell())


def _read_element(unpacker: msgpack.Unpacker, name: str, position: int) -> object:
    try:
        value: object = unpacker.unpack()
    except msgpack.OutOfData:
        raise MalformedFrame(f"at byte offset {position}: the input ends inside the element {name!r}") from None
    except _UNREADABLE as error:
        why = str(error) or type(error).__name__
        kind = UndecodableBody if name == "body" else MalformedFrame
        raise kind(f"at byte offset {position}: the element {name!r} is not valid msgpack: {why}") from error
    return value


def _check_element(name: str, value: Any, position: int) -> None:
    """Raises FrameError for a value that this element cannot have.  Ranges that only a receiver checks are not
    checked here: their values are shown."""
    problem = ""
    if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
        problem = f"has the wrong type, {type(value).__name__}"
    elif name == "magic" and value != MAGIC:
        raise NotAFrame(f"at byte offset {position}: the magic is {value[:20]!r}, a frame has {MAGIC!r}")
    elif name == "version" and value != WIRE_VERSION:
        raise UnsupportedVersion(f"at byte offset {position}: wire version {value}; this release reads {WIRE_VERSION}")
    elif name == "kind" and value not in KINDS:
        problem = f"is {value}, and no such kind exists"
    elif name == "flags" and not 0 <= value < 128:
        problem = f"is {value}, and flags go from 0 to 127"
    elif isinstance(value, bytes) and len(value) != (GUID_BYTES if name == "guid" else MAC_BYTES):
        problem = f"has {len(value)} bytes"
    if problem:
        raise MalformedFrame(f"at byte offset {position}: the element {name!r} {problem}")


def _build(fields: dict[str, Any], offset: int, size: int) -> DecodedFrame:
    kind = KINDS[fields["kind"]]
    events = _events(fields["body"], fields["count"], offset) if kind == "DATA" else None
    return DecodedFrame(
        offset=offset,
        size=size,
        version=fields["version"],
        kind=kind,
        flags=flag_names(fields["flags"]),
        guid=fields["guid"].hex(),
        first=fields["first"],
        after=fields["after"],
        count=fields["count"],
        timestamp=fields["timestamp"],
        topic=fields["topic"],
        signature=None if fields["mac"] is None else fields["mac"].hex(),
        events=events,
        body=fields["body"] if events is None else None,
    )


def flag_names(flags: int) -> tuple[str, ...]:
    """The names of the bits that are set; a bit without a name as its value in hex."""
    return tuple(FLAGS.get(1 << bit, f"{1 << bit:#x}") for bit in range(7) if flags & 1 << bit)


def _events(body: object, count: int, offset: int) -> list[dict[str, Any]]:
    if not isinstance(body, list) or not all(isinstance(event, list) for event in body):
        raise UndecodableBody(f"at byte offset {offset}: the body of a DATA frame is an array of arrays, this is not")
    if len(body) != count:
        raise UndecodableBody(f"at byte offset {offset}: the frame states {count} events and has {len(body)}")
    return [_event(event) for event in body]


def _event(fields: list[Any]) -> dict[str, Any]:
    """The event's fields by name.  Fields of later versions are kept under ``more``."""
    event = dict(zip(EVENT_FIELDS, fields, strict=False))
    headers, more = fields[len(EVENT_FIELDS) :][:1], fields[len(EVENT_FIELDS) + 1 :]
    if headers:
        event["headers"] = _headers(headers[0])
    return {**event, "more": more} if more else event


def _headers(text: object) -> object:
    """The headers in a JSON text; the text itself when it is no JSON."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _stored(frame: object, offset: int) -> DecodedFrame:
    """Decode a frame inside a REPLY.  Its own body is not searched for frames: no cache stores replies."""
    if not isinstance(frame, bytes) or not frame:
        raise UndecodableBody(f"at byte offset {offset}: a reply holds its frames as bytes, this one does not")
    try:
        decoded = _read_frame(memoryview(frame), 0, is_stored=True)
    except FrameError as error:
        raise type(error)(f"at byte offset {offset}: inside a frame that this reply holds, {error}") from error
    if decoded.size != len(frame):
        raise MalformedFrame(f"at byte offset {offset}: a frame that this reply holds is followed by other bytes")
    return decoded
