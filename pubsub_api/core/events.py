"""The event, and the body of a DATA frame.

An event is one change of one object.  On the wire it is an array of six elements, ``[table, key, action, value,
version, timestamp]``, and a seventh when it has headers (`pubsub_api.core.headers`); the topic stands once, in the
frame's header.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from pubsub_api.core import frame as frames
from pubsub_api.core.errors import InvalidEvent, UndecodableBody
from pubsub_api.core.headers import NO_HEADERS, HeadersField, read_headers, write_headers

Action = Literal["create", "set", "delete"]
ACTIONS: frozenset[str] = frozenset({"create", "set", "delete"})
VERSION_MAX = 2**63 - 1
Int63 = Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]
"""Checked when an event is decoded too: what databases, logs and tables have room for."""


class Event(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """One change: what object (``table``, ``key``), what happened (``action``), its new ``value`` and ``version``.

    ``version`` is the revision of the database at the commit, 0 without one.  ``timestamp`` is a hybrid logical clock
    value in nanoseconds; for 0 the publisher sets it.  ``headers`` are text that travels with the event, such as the
    context of a trace: at most 16, and 1024 bytes as JSON.  Order, versions and repair do not depend on them.

    The garbage collector ignores events, because there are so many: do not build a reference cycle through one.
    """

    table: str
    key: str
    action: Action
    value: Any = None
    version: Int63 = 0
    timestamp: Int63 = 0
    headers: HeadersField = NO_HEADERS
    topic: str = ""


class GroupEvent(Event, array_like=True, kw_only=True, gc=False):
    """An event with its place in the log, as a group of consumers delivers it.  On the wire it is an `Event`."""

    stream: int = 0
    """The partition that it was delivered from."""
    offset: int = 0
    """Its offset in the shard of the log."""
    attempt: int = 1
    """The number of this delivery, from 1, as far as the group knows."""
    grant: int = 0
    """Fencing token: the number of the grant under which it was delivered.  It rises when another member gets the
    partition."""
    loan: int = 0
    """The loan of this process under which it was delivered."""


encode_fields = msgspec.msgpack.Encoder().encode
"""The wire form of the six elements of an event, which the caller has checked.  Raises ENCODING_ERRORS."""
ENCODING_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
check_parts = msgspec.to_builtins
"""Refuses a value with a part that can be encoded but not decoded again.  Raises ENCODING_ERRORS.

Such parts are encoded values (`msgspec.Raw`), extensions of msgpack, and objects with fields as keys of a dict: the
encoder accepts them; decoders refuse them, or decode them as another type.
"""
PLAIN_TYPES = frozenset({str, int, float, bool, bytes, type(None)})
"""Values of these types need no check."""
CHECK_INTERVAL = 64
"""In a flood, one of so many dicts is checked: the check takes longer than encoding."""
_decode_any = msgspec.msgpack.Decoder().decode
_decode_list = msgspec.msgpack.Decoder(list[Event], dec_hook=read_headers).decode
decode_event = msgspec.msgpack.Decoder(Event, dec_hook=read_headers).decode
"""One event as `encode_event` made it, without its topic.  Raises msgspec.MsgspecError and others."""
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_DECODING_ERRORS = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_ARRAY32 = struct.Struct(">BI")


def check_value(value: Any) -> None:
    """Refuse a value that can be encoded but not decoded again.  Raises ENCODING_ERRORS.

    A value that is encoded already (`msgspec.Raw`) is decoded for the check.
    """
    if type(value) is msgspec.Raw:
        _decode_any(value)
    else:
        check_parts(value)


def encode_sound(event: Event, timestamp: int) -> bytes:
    """The wire form of an event that needs no check, such as a change that a database has accepted."""
    if event.headers is NO_HEADERS or not event.headers:
        return encode_fields((event.table, event.key, event.action, event.value, event.version, timestamp))
    fields = (event.table, event.key, event.action, event.value, event.version, timestamp, _headers_of(event))
    return encode_fields(fields)


def encode_event(event: Event, timestamp: int, *, looks_inside: bool = True) -> bytes:
    """The wire form of one event, with ``timestamp`` unless it has one.  Raises InvalidEvent.

    It is checked in the thread of the caller, because every subscriber must be able to decode what a publisher sends.
    Without ``looks_inside`` the parts of a dict are not checked: the caller has checked similar ones.
    """
    table = event.table  # separate assignments: unpacking would build a tuple for every event
    key = event.key
    action = event.action
    version = event.version
    stamp = event.timestamp or timestamp
    try:
        is_sound = (
            type(table) is str
            and type(key) is str
            and action in ACTIONS
            and type(version) is int
            and not version >> 63  # from 0 to VERSION_MAX, in one operation
            and (stamp is timestamp or (type(stamp) is int and 0 < stamp <= VERSION_MAX))
        )
    except TypeError:  # the action has no hash
        is_sound = False
    if not is_sound:
        raise InvalidEvent(_explain(event))
    value = event.value
    try:
        if type(value) is dict:
            if looks_inside:
                check_parts(value)
        elif type(value) not in PLAIN_TYPES:
            check_value(value)
        if event.headers is NO_HEADERS or not event.headers:
            return encode_fields((table, key, action, value, version, stamp))
        return encode_fields((table, key, action, value, version, stamp, _headers_of(event)))
    except InvalidEvent:
        raise
    except ENCODING_ERRORS as error:
        raise InvalidEvent(f"event {table}/{key}: its value cannot be sent as msgpack: {error}") from error


def _headers_of(event: Event) -> str:
    try:
        return write_headers(event.headers)
    except ValueError as error:
        raise InvalidEvent(f"event {event.table}/{event.key}: {error}") from error


def pack_body(encoded: Sequence[bytes]) -> bytes:
    """The body of a DATA frame from events that are encoded already."""
    return b"".join((_ARRAY32.pack(0xDD, len(encoded)), *encoded))


def decode_events(frame: bytes, header: frames.Header, *, skip: int = 0) -> list[Event]:
    """The events of a DATA frame, without the first ``skip``.  Raises UndecodableBody."""
    try:
        events = _decode_list(memoryview(frame)[header[8] : header[9]])  # `frames.body`, without the call
    except _DECODING_ERRORS as error:
        raise UndecodableBody(f"the events of topic {header.topic!r} cannot be decoded: {error}") from error
    topic = header.topic
    if len(events) != header.count:
        raise UndecodableBody(f"the frame of topic {topic!r} states {header.count} events and has {len(events)}")
    for event in events:
        event.topic = topic
    return events[skip:] if skip else events


def decode_one_by_one(
    frame: bytes, header: frames.Header, *, skip: int = 0
) -> tuple[list[Event], list[tuple[int, str]]]:
    """The events of a DATA frame that can be decoded, without the first ``skip``; number and fault of the other events.

    For a frame that `decode_events` has refused.  Raises UndecodableBody when the number of events is wrong, too.
    """
    try:
        parts = _split(frames.body(frame, header))
    except _DECODING_ERRORS as error:
        raise UndecodableBody(f"the frame of topic {header.topic!r} has no list of events: {error}") from error
    if len(parts) != header.count:
        raise UndecodableBody(f"the frame of topic {header.topic!r} states {header.count} events and has {len(parts)}")
    events: list[Event] = []
    faults: list[tuple[int, str]] = []
    for number, part in enumerate(parts[skip:], header.first + skip):
        try:
            event = decode_event(part)
        except _DECODING_ERRORS as error:
            faults.append((number, str(error)))
        else:
            event.topic = header.topic
            events.append(event)
    return events, faults


def _explain(event: Event) -> str:
    name = f"event {event.table!r}/{event.key!r}"
    for field in ("table", "key"):
        if type(getattr(event, field)) is not str:
            return f"{name}: {field} must be a str, not {type(getattr(event, field)).__name__}"
    if not (isinstance(event.action, str) and event.action in ACTIONS):
        return f"{name}: action {event.action!r} is none of {', '.join(sorted(ACTIONS))}"
    for field in ("version", "timestamp"):
        value = getattr(event, field)
        if type(value) is not int or not 0 <= value <= VERSION_MAX:
            return f"{name}: {field} {value!r} is not an int from 0 to 2**63 - 1"
    return f"{name}: cannot be sent"
