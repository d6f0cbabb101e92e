"""Events: what is refused before it leaves a publisher, with the reason; what passes arrives as it was."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from pubsub_api.core import frame as frames
from pubsub_api.core.errors import InvalidEvent
from pubsub_api.core.events import ACTIONS, VERSION_MAX, Event, decode_events, encode_event, pack_body
from pubsub_api.core.frame import Kind


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
    ],
)
def test_a_bad_field_is_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        encode_event(event(**fields), 5)


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


def test_a_date_arrives_as_what_msgpack_makes_of_it() -> None:
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    assert round_trip(event(value=moment))[0].value == moment


def test_the_topic_of_the_event_is_that_of_the_frame() -> None:
    assert round_trip(event(topic="elsewhere"))[0].topic == "a"
