"""The frame: what is written is read back, also by a msgpack library that knows nothing of Heliograph."""

from __future__ import annotations

import hmac
import struct
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_api.core import events, frame, messages
from pubsub_api.core.errors import (
    BadSignature,
    MalformedFrame,
    NotAFrame,
    OversizedFrame,
    UndecodableBody,
    UnsupportedVersion,
)
from pubsub_api.core.frame import SEQUENCE_MAX, WIRE_VERSION, Flag, Header, Kind
from pubsub_api.core.topics import CONTROL_TOPIC

GUID = bytes(range(16))
KEY = b"secret"
BYTES_MAX = 100_000
TOPIC = "tenant-7/port"

topics = st.lists(st.text("abcé-_. ", min_size=1, max_size=8), min_size=1, max_size=4).map("/".join)
guids = st.binary(min_size=16, max_size=16)
stamps = st.integers(0, 2**64 - 1)
keys = st.none() | st.binary(min_size=1, max_size=64)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def make(body: bytes = b"\x80", *, kind: int = Kind.HELLO, topic: str = TOPIC, **fields: Any) -> bytes:
    return frame.pack(kind, GUID, topic, body, **fields)


def make_data(body: bytes, count: int = 1) -> bytes:
    return make(body, kind=Kind.DATA, first=1, count=count)


def read(data: bytes, key: bytes | None = None) -> Header:
    return frame.unpack(data, bytes_max=BYTES_MAX, key=key)


def patched(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


# -- round trips


@given(guid=guids, topic=topics, first=st.integers(1, 2**62), skipped=st.integers(0, 5), stamp=stamps, key=keys,
       made=st.lists(st.tuples(st.text(max_size=5), st.sampled_from(("create", "set", "delete")), values),
                     min_size=1, max_size=4))  # fmt: skip
def test_data_round_trip(
    guid: bytes, topic: str, first: int, skipped: int, stamp: int, key: bytes | None, made: list[tuple[Any, ...]]
) -> None:
    after = max(0, first - 1 - skipped)
    originals = [
        events.Event(table="t", key=name, action=action, value=value, version=3, timestamp=4)
        for name, action, value in made
    ]
    body = events.pack_body([events.encode_event(event, 1) for event in originals])
    packed = frame.pack(
        Kind.DATA, guid, topic, body, first=first, after=after, count=len(made), timestamp=stamp, key=key
    )
    header = read(packed, key)
    assert header[:8] == (
        Kind.DATA, Flag.SIGNED if key else 0, guid, first, after, len(made), stamp, topic,
    )  # fmt: skip
    assert header.last == first + len(made) - 1
    assert bytes(frame.body(packed, header)) == body
    decoded = events.decode_events(packed, header)
    assert [(e.table, e.key, e.action, e.value, e.version, e.timestamp, e.topic) for e in decoded] == [
        (e.table, e.key, e.action, e.value, e.version, e.timestamp, topic) for e in originals
    ]
    assert events.decode_events(packed, header, skip=1) == decoded[1:]


@given(kind=st.sampled_from([kind for kind in Kind if kind is not Kind.DATA]), guid=guids, stamp=stamps, key=keys,
       topic=topics | st.just(CONTROL_TOPIC), flags=st.sampled_from((0, Flag.START, Flag.LAST, Flag.START | Flag.LAST)),
       first=st.integers(0, SEQUENCE_MAX), after=st.integers(0, SEQUENCE_MAX))  # fmt: skip
def test_header_round_trip_of_every_other_kind(
    kind: Kind, guid: bytes, stamp: int, key: bytes | None, topic: str, flags: int, first: int, after: int
) -> None:
    packed = frame.pack(kind, guid, topic, b"\x80", first=first, after=after, timestamp=stamp, flags=flags, key=key)
    header = read(packed, key)
    signed = Flag.SIGNED if key else 0
    assert header[:8] == (kind, flags | signed, guid, first, after, 0, stamp, topic)
    assert bytes(frame.body(packed, header)) == b"\x80"


MESSAGES = [
    (Kind.HELLO, messages.Hello(), {}),
    (
        Kind.HELLO,
        messages.Hello(name="n", predecessor=b"p" * 16, heads={"a/b": 7}, part=1, parts=2),
        {"name": "n", "predecessor": b"p" * 16, "heads": {"a/b": 7}, "part": 1, "parts": 2},
    ),
    (Kind.BYE, messages.Bye(name="n", heads={"a": 1}, parts=1), {"name": "n", "heads": {"a": 1}, "parts": 1}),
    (
        Kind.QUERY,
        messages.Query(id=4, wants=[messages.Want(GUID, "a", 12, 24)], confirm=True),
        {"id": 4, "wants": [[GUID, "a", 12, 24]], "confirm": True},
    ),
    (
        Kind.QUERY,
        messages.Query(id=5, topics=["a/#"], guid=GUID, history=True, newest=9, since=3),
        {"id": 5, "topics": ["a/#"], "guid": GUID, "history": True, "newest": 9, "since": 3},
    ),
    (
        Kind.REPLY,
        messages.Reply(id=6, responder="r", publisher=True, heads=[(GUID, "a", 3)], frames=[b"f"], held=[0], parts=1),
        {
            "id": 6, "responder": "r", "publisher": True, "heads": [[GUID, "a", 3]], "frames": [b"f"], "held": [0],
            "parts": 1,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
@pytest.mark.parametrize(("kind", "message", "plain"), MESSAGES)
def test_plain_msgpack_reads_every_message(kind: Kind, message: Any, plain: dict[str, Any], key: bytes | None) -> None:
    packed = frame.pack(
        kind, GUID, CONTROL_TOPIC, messages.encode(message), first=1, after=2, timestamp=3, flags=Flag.LAST, key=key
    )
    elements = msgpack.unpackb(packed)
    flags = Flag.LAST | (Flag.SIGNED if key else 0)
    assert elements[:11] == ["HG", WIRE_VERSION, kind, flags, GUID, 1, 2, 0, 3, CONTROL_TOPIC, plain]
    assert elements[11:] == ([hmac.digest(KEY, packed[:-34], "sha256")] if key else [None])
    assert messages.decode(type(message), packed, read(packed, key)) == message


def test_plain_msgpack_reads_data_and_control() -> None:
    body = events.pack_body(
        [
            events.encode_event(
                events.Event(table="port", key="k", action="set", value={"a": [1, None]}, version=9), 55
            ),
            events.encode_event(events.Event(table="port", key="k", action="delete", timestamp=66), 55),
        ]
    )
    packed = frame.pack(Kind.DATA, GUID, TOPIC, body, first=10, after=7, count=2, timestamp=77)
    assert msgpack.unpackb(packed) == [
        "HG", WIRE_VERSION, Kind.DATA, 0, GUID, 10, 7, 2, 77, TOPIC,
        [["port", "k", "set", {"a": [1, None]}, 9, 55], ["port", "k", "delete", None, 0, 66]],
        None,
    ]  # fmt: skip
    control = frame.pack(Kind.CONTROL, GUID, CONTROL_TOPIC, b"\x80")
    assert msgpack.unpackb(control)[1:3] == [WIRE_VERSION, Kind.CONTROL]


@given(kind=st.sampled_from(Kind), first=st.integers(1, 2**62), count=st.integers(1, 2**31), stamp=stamps, topic=topics)
def test_the_header_stands_at_constant_offsets(kind: Kind, first: int, count: int, stamp: int, topic: str) -> None:
    count = count if kind is Kind.DATA else 0
    packed = frame.pack(kind, GUID, topic, b"\x90", first=first, after=first - 1, count=count, timestamp=stamp)
    name = topic.encode()
    assert packed[:4] == b"\x9c\xa2HG"
    assert (packed[4], packed[5], packed[6]) == (WIRE_VERSION, kind, 0)
    assert packed[7:25] == b"\xc4\x10" + GUID
    assert packed[25:34] == b"\xcf" + struct.pack(">Q", first)
    assert packed[34:43] == b"\xcf" + struct.pack(">Q", first - 1)
    assert packed[43:48] == b"\xce" + struct.pack(">I", count)
    assert packed[48:57] == b"\xcf" + struct.pack(">Q", stamp)
    assert packed[57:60] == b"\xda" + struct.pack(">H", len(name))
    assert packed[60 : 60 + len(name)] == name
    assert read(packed).body_start == 60 + len(name)


# -- what is refused


@pytest.mark.parametrize("key", [None, b"secret"])
@pytest.mark.parametrize("count", [1, 2, 300])
def test_the_packer_of_a_publisher_makes_the_same_frames(key: bytes | None, count: int) -> None:
    encoded = [events.encode_event(events.Event(table="t", key=f"k{n}", action="set"), 1) for n in range(count)]
    packed = frame.DataPacker(GUID, key).pack(frame.topic_element("a/é"), encoded, first=7, after=6, timestamp=55)
    assert packed == frame.pack(
        Kind.DATA, GUID, "a/é", events.pack_body(encoded), first=7, after=6, count=count, timestamp=55, key=key
    )


@pytest.mark.parametrize("key", [None, b"secret"])
def test_a_lone_event_is_packed_as_many_are(key: bytes | None) -> None:
    encoded = events.encode_event(events.Event(table="t", key="k", action="set", value={"up": True}), 1)
    packer, topic = frame.DataPacker(GUID, key), frame.topic_element("a/é")
    packed = packer.pack_one(topic, encoded, 7, 5, 55)
    assert packed == packer.pack(topic, [encoded], first=7, after=5, timestamp=55)


def test_a_signed_frame_needs_its_key() -> None:
    packed = make(key=KEY)
    assert read(packed, KEY).flags == Flag.SIGNED
    assert read(packed).flags == Flag.SIGNED, "who has no key reads it without checking"
    with pytest.raises(BadSignature, match="does not match"):
        read(packed, b"another")


@pytest.mark.parametrize("offset", [9, 30, 61, -1, -32])
def test_a_changed_byte_breaks_the_signature(offset: int) -> None:
    changed = bytearray(make(key=KEY))
    changed[offset] ^= 1
    with pytest.raises(BadSignature):
        read(bytes(changed), KEY)


def test_an_unsigned_frame_is_refused_under_a_key() -> None:
    with pytest.raises(BadSignature, match="hmac_key"):
        read(make(), KEY)


def test_the_signed_flag_cannot_be_taken_off() -> None:
    packed = make(key=KEY)
    with pytest.raises((BadSignature, MalformedFrame)):
        read(patched(packed, 6, b"\x00"), KEY)
    with pytest.raises(BadSignature):
        read(patched(packed, 6, b"\x00")[:-34] + b"\xc0", KEY)


@pytest.mark.parametrize("cut", range(1, 35))
def test_a_truncated_signature_is_malformed(cut: int) -> None:
    with pytest.raises(MalformedFrame):
        read(make(key=KEY)[:-cut], KEY)


@pytest.mark.parametrize("version", [0, 2, 127, 255])
def test_another_wire_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=rf"wire version {version};.*speaks {WIRE_VERSION}"):
        read(patched(make(), 4, bytes([version])))


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_truncation_at_every_byte_is_refused(key: bytes | None) -> None:
    """An unsigned frame cut inside its body can look whole only when its last byte then happens to be nil."""
    body = events.pack_body([events.encode_event(events.Event(table="t", key="k", action="set", value=1), 1)])
    packed = frame.pack(Kind.DATA, GUID, TOPIC, body, first=1, count=1, key=key)
    for size in range(len(packed)):
        with pytest.raises(NotAFrame if size < 4 else MalformedFrame):
            read(packed[:size], key)


@pytest.mark.parametrize("trailing", [b"\x00", b"\xc1", b"trailing", bytes(34)])
@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_trailing_bytes_are_refused(trailing: bytes, key: bytes | None) -> None:
    with pytest.raises(MalformedFrame):
        read(make(key=key) + trailing, key)


def test_trailing_bytes_that_end_like_a_frame_are_refused_with_the_body() -> None:
    packed = make() + b"\xc0"
    with pytest.raises(UndecodableBody):
        messages.decode(messages.Hello, packed, read(packed))


def test_an_oversized_frame_is_refused_before_anything_is_read() -> None:
    packed = make()
    assert frame.unpack(packed, bytes_max=len(packed)).kind == Kind.HELLO
    with pytest.raises(OversizedFrame, match="frame_bytes_max"):
        frame.unpack(packed, bytes_max=len(packed) - 1)
    with pytest.raises(OversizedFrame):
        frame.unpack(bytes(101), bytes_max=100)


@pytest.mark.parametrize("data", [b"", b"\x9c", b"\x9c\xa2H", b"\x9c\xa2HX" + bytes(90), b"{}", bytes(200)])
def test_other_bytes_are_not_a_frame(data: bytes) -> None:
    assert not frame.is_frame(data)
    with pytest.raises(NotAFrame):
        read(data)


@pytest.mark.parametrize("offset", [7, 8, 25, 34, 43, 48, 57])
def test_a_wrong_type_mark_in_the_header_is_malformed(offset: int) -> None:
    assert frame.is_frame(make())
    with pytest.raises(MalformedFrame, match="not where they belong"):
        read(patched(make(), offset, b"\xc0"))


@pytest.mark.parametrize(
    ("offset", "new"),
    [(5, b"\x00"), (5, b"\x07"), (5, b"\xff"), (6, b"\x80"), (58, b"\xff\xff"), (58, b"\x00\x0f"), (58, b"\x00\x0e")],
)
def test_an_unknown_kind_or_flag_or_topic_length_is_malformed(offset: int, new: bytes) -> None:
    with pytest.raises(MalformedFrame):
        read(patched(make(), offset, new))


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_a_frame_without_a_body_is_malformed(key: bytes | None) -> None:
    with pytest.raises(MalformedFrame, match="do not fit"):
        read(make(b"", key=key), key)


@pytest.mark.parametrize(
    "numbers",
    [
        {"first": 0, "after": 0, "count": 1},
        {"first": 5, "after": 4, "count": 0},
        {"first": 5, "after": 5, "count": 1},
        {"first": 5, "after": 6, "count": 1},
        {"first": SEQUENCE_MAX, "after": 1, "count": 1},
        {"first": 2**64 - 1, "after": 1, "count": 1},
    ],
)
def test_numbers_that_are_no_range_are_malformed(numbers: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        read(make(kind=Kind.DATA, **numbers))


@pytest.mark.parametrize("numbers", [{"count": 1}, {"first": 2**63}, {"after": 2**63}])
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.DATA])
def test_numbers_out_of_range_in_other_kinds_are_malformed(kind: Kind, numbers: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        read(make(kind=kind, **numbers))


@pytest.mark.parametrize(
    "topic",
    ["", "/", "a//b", "a/", "/a", "a+b", "+", "#", "a/#", "*", "a?", "$other", "$controls", "@x", "a/@x", "a\x00b",
     "a\nb", "x" * 513],
)  # fmt: skip
def test_hostile_topics_are_malformed(topic: str) -> None:
    with pytest.raises(MalformedFrame, match="topic"):
        read(make(topic=topic))


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80"])
def test_topics_that_are_not_utf8_are_malformed(raw: bytes) -> None:
    packed = make(topic="x" * len(raw))
    with pytest.raises(MalformedFrame, match="topic"):
        read(patched(packed, 60, raw))


# -- bodies

NESTED = b"\x91" * 10_000 + b"\xc0"
BAD_BODIES = [
    b"\xc1",
    b"\xc0",
    b"\x01",
    b"\xa1x",
    b"\x90",
    b"\x81\x01\x02",
    NESTED,
    b"\xdf\xff\xff\xff\xff",
    b"\x80\x80",
]
BAD_FIELDS: list[tuple[type[Any], dict[str, Any]]] = [
    (messages.Hello, {"name": 1}),
    (messages.Hello, {"name": b"\xff"}),
    (messages.Hello, {"predecessor": b"short"}),
    (messages.Hello, {"heads": {"a": "x"}}),
    (messages.Hello, {"heads": {"a/#": 1}}),
    (messages.Hello, {"heads": {"a": -1}}),
    (messages.Bye, {"heads": {"a": SEQUENCE_MAX}}),
    (messages.Bye, {"heads": {"$control": 1}}),
    (messages.Bye, {"heads": [1]}),
    (messages.Query, {}),
    (messages.Query, {"id": "x"}),
    (messages.Query, {"id": 1, "guid": b"x"}),
    (messages.Query, {"id": 1, "topics": ["a/#/b"]}),
    (messages.Query, {"id": 1, "wants": [[b"x", "a", 1, 2]]}),
    (messages.Query, {"id": 1, "wants": [[GUID, "+", 1, 2]]}),
    (messages.Query, {"id": 1, "wants": [[GUID, "a", 1, 2]] * (messages.WANTS_PER_QUERY_MAX + 1)}),
    (messages.Reply, {}),
    (messages.Reply, {"id": 1, "heads": [[b"x", "a", 1]]}),
    (messages.Reply, {"id": 1, "heads": [[GUID, "", 1]]}),
    (messages.Reply, {"id": 1, "heads": [[GUID, "a", -1]]}),
    (messages.Reply, {"id": 1, "frames": ["text"]}),
]


@pytest.mark.parametrize("kind", [messages.Hello, messages.Bye, messages.Query, messages.Reply])
@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: f"{body[:6].hex()}-{len(body)}")
def test_bodies_of_another_shape_are_undecodable(kind: type[Any], body: bytes) -> None:
    packed = make(body)
    with pytest.raises(UndecodableBody, match=kind.__name__):
        messages.decode(kind, packed, read(packed))


@pytest.mark.parametrize(("kind", "fields"), BAD_FIELDS)
def test_fields_out_of_their_range_are_undecodable(kind: type[Any], fields: dict[str, Any]) -> None:
    packed = make(msgpack.packb(fields))
    with pytest.raises(UndecodableBody, match=kind.__name__):
        messages.decode(kind, packed, read(packed))


@pytest.mark.parametrize("kind", [messages.Hello, messages.Bye, messages.Query, messages.Reply])
def test_deep_nesting_in_a_field_that_is_not_known_is_undecodable(kind: type[Any]) -> None:
    packed = make(b"\x82\xa2id\x01\xa6colour" + NESTED)
    with pytest.raises(UndecodableBody, match=kind.__name__):
        messages.decode(kind, packed, read(packed))


@pytest.mark.parametrize("kind", [messages.Hello, messages.Bye])
def test_a_field_of_a_later_version_is_ignored(kind: type[Any]) -> None:
    packed = make(msgpack.packb({"name": "n", "colour": [1, {"deep": None}]}))
    assert messages.decode(kind, packed, read(packed)).name == "n"


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1", b"\x80", b"\x91\xc0", b"\x91\x01", NESTED, b"\x91" + NESTED, b"\xdd\xff\xff\xff\xff", b"\x90",
        msgpack.packb([["t", "k"]]),
        msgpack.packb([["t", "k", "explode", None, 0, 0]]),
        msgpack.packb([[1, "k", "set", None, 0, 0]]),
        msgpack.packb([["t", b"k", "set", None, 0, 0]]),
        msgpack.packb([["t", "k", "set", None, "v", 0]]),
        msgpack.packb([["t", "k", "set", None, 0, 0], ["t", "k", "set", None, 0, 0]]),
        b"\x91\x96\xa1t\xa1k\xa3set" + NESTED + b"\x00\x00",
        b"\x91\x96\xa1t\xa1\xff\xa3set\xc0\x00\x00",
    ],
    ids=lambda body: f"{body[:16].hex()}-{len(body)}",
)  # fmt: skip
def test_bad_events_are_undecodable(body: bytes) -> None:
    packed = make_data(body)
    with pytest.raises(UndecodableBody, match=TOPIC):
        events.decode_events(packed, read(packed))
