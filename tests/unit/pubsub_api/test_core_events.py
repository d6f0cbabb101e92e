"""Events: what is refused before it leaves a publisher, with the reason; what passes arrives as it was."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import msgspec
import pytest

from pubsub_api.core import frame as frames
from pubsub_api.core.errors import InvalidEvent, UndecodableBody
from pubsub_api.core.events import ACTIONS, VERSION_MAX, Event, decode_events, encode_event, pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.subscribing.decoding import decode


class Port(msgspec.Struct, frozen=True):
    number: int


@dataclasses.dataclass(frozen=True)
class FrozenPort:
    number: int


def event(**fields: Any) -> Event:
    return Event(**{"table": "port", "key": "k", "action": "set", **fields})


def round_trip(*made: Event, stamp: int = 5) -> list[Event]:
    body = pack_body([encode_event(one, stamp) for one in made])
    packed = frames.pack(Kind.DATA, b"g" * 16, "a", body, first=1, count=len(made))
    return decode_events(packed, frames.unpack(packed, bytes_max=10**6))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"table": 1}, "table must be a str, not int"),
        ({"table": None}, "table must be a str, not NoneType"),
        ({"key": b"k"}, "key must be a str, not bytes"),
        ({"action": "update"}, "action 'update' is none of create, delete, set"),
        ({"action": None}, "action None is none of"),
        ({"action": ["set"]}, r"action \['set'\] is none of"),
        ({"version": -1}, "version -1 is not an int"),
        ({"version": VERSION_MAX + 1}, "is not an int from 0"),
        ({"version": 1.0}, r"version 1\.0 is not an int"),
        ({"version": True}, "version True is not an int"),
        ({"timestamp": -1}, "timestamp -1 is not an int"),
        ({"timestamp": VERSION_MAX + 1}, "is not an int from 0"),
        ({"timestamp": "now"}, "timestamp 'now' is not an int"),
        ({"value": object()}, "cannot be sent as msgpack"),
        ({"value": {"deep": [2**64]}}, "cannot be sent as msgpack"),
        ({"value": -(2**63) - 1}, "cannot be sent as msgpack"),
        ({"value": "\ud800"}, "cannot be sent as msgpack"),
        ({"table": "\ud800"}, "cannot be sent as msgpack"),
        ({"value": {Port(1): 2}}, "cannot be sent as msgpack: unhashable"),
        ({"value": [{"a": {FrozenPort(1): 2}}]}, "cannot be sent as msgpack: unhashable"),
        ({"value": msgspec.Raw(b"\xc1")}, "cannot be sent as msgpack: MessagePack data is malformed"),
        ({"value": {"a": [msgspec.Raw(b"")]}}, "objects of type msgspec.Raw"),
        ({"value": msgspec.msgpack.Ext(-1, b"x")}, "objects of type msgspec.msgpack.Ext"),
    ],
)
def test_a_bad_field_is_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        encode_event(event(**fields), 5)


@pytest.mark.parametrize("encoded", [b"", b"\xc1", b"\x01\x02", b"\x81\x80\x01"])
def test_a_value_that_is_encoded_already_is_looked_into_in_a_flood_too(encoded: bytes) -> None:
    """It could end anywhere, and take the events with it that follow it in its frame."""
    with pytest.raises(InvalidEvent, match="cannot be sent as msgpack"):
        encode_event(event(value=msgspec.Raw(encoded)), 5, looks_inside=False)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidEvent, match="cannot be sent as msgpack"):
        encode_event(event(value=value), 5)
    value.clear()


@pytest.mark.parametrize("action", sorted(ACTIONS))
@pytest.mark.parametrize("value", [None, True, 0, -1, 2**64 - 1, 1.5, "é", b"\x00\xff", [1, [2]], {"a": {"b": None}}])
def test_what_passes_arrives_as_it_was(action: str, value: Any) -> None:
    (arrived,) = round_trip(event(action=action, value=value, version=VERSION_MAX, timestamp=VERSION_MAX))
    assert arrived == event(action=action, value=value, version=VERSION_MAX, timestamp=VERSION_MAX, topic="a")


def test_the_publisher_stamps_only_what_has_no_timestamp() -> None:
    assert [one.timestamp for one in round_trip(event(), event(timestamp=9))] == [5, 9]


def test_a_value_that_is_encoded_already_arrives_as_what_it_says() -> None:
    assert round_trip(event(value=msgspec.Raw(msgspec.msgpack.encode({"a": [1]}))))[0].value == {"a": [1]}


def test_a_date_arrives_as_what_msgpack_makes_of_it() -> None:
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    assert round_trip(event(value=moment))[0].value == moment


def test_the_topic_of_the_event_is_that_of_the_frame() -> None:
    assert round_trip(event(topic="elsewhere"))[0].topic == "a"


def test_of_a_broken_frame_the_sound_events_are_decoded_and_the_others_named() -> None:
    sound = [encode_event(event(key=str(number)), 5) for number in range(4)]
    broken = msgspec.msgpack.encode(("port", "k", "set", {"a": msgspec.Raw(b"\x81\x80\x01")}, 0, 5))
    body = pack_body([sound[0], broken, *sound[1:], broken])
    packed = frames.pack(Kind.DATA, b"g" * 16, "a", body, first=11, after=10, count=6)
    header = frames.unpack(packed, bytes_max=10**6)
    with pytest.raises(UndecodableBody):
        decode_events(packed, header)
    events, undecodable = decode((packed, header, 0))
    assert [(one.topic, one.key) for one in events] == [("a", "0"), ("a", "1"), ("a", "2"), ("a", "3")]
    assert undecodable is not None
    assert undecodable.ranges == [(12, 12), (16, 16)]
    assert "number 12: MessagePack data is malformed" in undecodable.reason
    events, undecodable = decode((packed, header, 3))
    assert [one.key for one in events] == ["2", "3"]
    assert undecodable is not None
    assert undecodable.ranges == [(16, 16)]


def test_a_frame_without_a_list_of_events_is_lost_as_a_whole() -> None:
    packed = frames.pack(Kind.DATA, b"g" * 16, "a", b"\xdd\x00\x00\x00\x03\xc1", first=1, count=3)
    events, undecodable = decode((packed, frames.unpack(packed, bytes_max=10**6), 1))
    assert events == []
    assert undecodable is not None
    assert undecodable.ranges == [(2, 3)]
    assert undecodable.count == 2


@pytest.mark.parametrize("number", [-1, -(2**63), VERSION_MAX + 1, 2**64 - 1])
@pytest.mark.parametrize("is_version", [False, True])
def test_a_number_that_no_publisher_may_send_is_not_decoded(number: int, is_version: bool) -> None:
    numbers = (number, 5) if is_version else (5, number)
    body = pack_body([msgspec.msgpack.encode(("port", "k", "set", None, *numbers))])
    packed = frames.pack(Kind.DATA, b"g" * 16, "a", body, first=1, count=1)
    with pytest.raises(UndecodableBody, match="Expected `int`"):
        decode_events(packed, frames.unpack(packed, bytes_max=10**6))
