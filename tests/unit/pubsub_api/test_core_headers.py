"""Headers of events: what travels, what is refused, and that releases without headers pass over them."""

from __future__ import annotations

import copy
import pathlib
import pickle
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

import durable_log
import pubsub_api
from durability_service.serving.sampling import SampleRecorder, event_of
from pubsub_api.core import frame as frames
from pubsub_api.core.errors import InvalidEvent, UndecodableBody
from pubsub_api.core.events import Action, Event, decode_events, encode_event, pack_body
from pubsub_api.core.frame import Header, Kind
from pubsub_api.core.headers import HEADER_NAME_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, NO_HEADERS
from pubsub_api.subscribing.decoding import decode
from shared_subscriptions.consuming.dead_letters import DeadLetters
from shared_subscriptions.core import events as group_events
from tests.helpers.waiting import wait_until

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
PLAIN_BYTES = bytes.fromhex("96 a4706f7274 a27031 a3736574 81a27570c3 2a cf17979cfe362a0000")
"""The event of docs/wire-format.md, as the first release wrote it and all write it."""
BYTES_WITH_HEADERS = bytes.fromhex("97 a4706f7274 a27031 a3736574 81a27570c3 2a cf17979cfe362a0000 a9") + b'{"a":"b"}'
"""The same with a header."""
PATIENCE_S = 60.0


class OldEvent(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """How a subscriber of the release before headers reads an event.  It sets the topic afterwards."""

    table: str
    key: str
    action: Action
    value: Any = None
    version: int = 0
    timestamp: int = 0
    topic: str = ""


class OldGroupEvent(OldEvent, array_like=True, kw_only=True, gc=False):
    """The same, for a group.  It sets all of these afterwards."""

    stream: int = 0
    offset: int = 0
    attempt: int = 1
    grant: int = 0
    loan: int = 0


class OldRow(msgspec.Struct, array_like=True, gc=False):
    """The same, for sealed segments, Spark and the durability service."""

    table: str
    key: str
    action: Action
    value: msgspec.Raw
    version: int
    timestamp: int


def event(**fields: Any) -> Event:
    return Event(**{"table": "port", "key": "p1", "action": "set", "value": {"up": True}, "version": 42, **fields})


def framed(*encoded: bytes) -> tuple[bytes, Header]:
    packed = frames.pack(Kind.DATA, b"g" * 16, "t/p", pack_body(encoded), first=1, count=len(encoded))
    return packed, frames.unpack(packed, bytes_max=10**6)


def test_an_event_without_headers_is_written_as_ever() -> None:
    assert encode_event(event(), 1_700_000_000_000_000_000) == PLAIN_BYTES
    assert encode_event(event(headers={}), 1_700_000_000_000_000_000) == PLAIN_BYTES


def test_headers_are_a_seventh_element() -> None:
    assert encode_event(event(headers={"a": "b"}), 1_700_000_000_000_000_000) == BYTES_WITH_HEADERS


@pytest.mark.parametrize("kind", [OldEvent, OldGroupEvent, OldRow])
def test_readers_of_the_release_before_pass_over_headers(kind: type[Any]) -> None:
    read = msgspec.msgpack.Decoder(kind).decode
    plain, traced = read(PLAIN_BYTES), read(BYTES_WITH_HEADERS)
    for name in OldRow.__struct_fields__:
        assert getattr(plain, name) == getattr(traced, name)


def test_old_and_new_events_of_one_frame_are_read() -> None:
    plain, traced = decode_events(*framed(PLAIN_BYTES, BYTES_WITH_HEADERS))
    assert plain == event(timestamp=1_700_000_000_000_000_000, topic="t/p")
    assert plain.headers is NO_HEADERS
    assert traced == event(timestamp=1_700_000_000_000_000_000, topic="t/p", headers={"a": "b"})


def test_an_element_of_a_later_release_is_passed_over() -> None:
    later = b"\x98" + BYTES_WITH_HEADERS[1:] + b"\xa4more"
    (read,) = decode_events(*framed(later))
    assert (read.headers, read.topic) == ({"a": "b"}, "t/p")


def test_headers_cannot_be_changed_and_can_be_copied() -> None:
    plain, traced = decode_events(*framed(PLAIN_BYTES, BYTES_WITH_HEADERS))
    for one in (plain, traced):
        with pytest.raises(TypeError):
            one.headers["c"] = "d"  # type: ignore[index]
        assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert encode_event(pickle.loads(pickle.dumps(plain)), 1) == PLAIN_BYTES


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({str(number): "" for number in range(HEADERS_MAX + 1)}, "17 headers are more than 16"),
        ({"": "x"}, "header '': a name has 1 to 64 bytes"),
        ({"é" * (HEADER_NAME_BYTES_MAX // 2 + 1): ""}, "a name has 1 to 64 bytes"),
        ({"a": "x" * HEADERS_BYTES_MAX}, "headers of 1032 bytes are more than 1024"),
        ({"a": 1}, "header 'a': name and value must be str"),
        ({1: "a"}, "header 1: name and value must be str"),
        (["a"], "headers must be a mapping, not list"),
        ({"a": "\ud800"}, "port/p1: 'utf-8' codec"),
        ({"\ud800": "a"}, "port/p1: 'utf-8' codec"),
    ],
)
def test_headers_that_are_too_many_or_no_text_are_refused_with_the_reason(headers: Any, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        encode_event(event(headers=headers), 5)


def test_what_is_within_the_bounds_passes() -> None:
    room = HEADERS_BYTES_MAX - len('{"a":""}')
    for headers in ({"a": "x" * room}, {str(number): "é" for number in range(HEADERS_MAX)}, {"n" * 64: ""}):
        assert decode_events(*framed(encode_event(event(headers=headers), 5)))[0].headers == headers


@pytest.mark.parametrize("seventh", ["no JSON", '{"a":1}', "[]", {"a": "b"}, 7, None])
def test_an_event_whose_headers_cannot_be_read_is_named_and_the_others_are_delivered(seventh: object) -> None:
    bad = msgspec.msgpack.encode(("port", "bad", "set", 1, 2, 3, seventh))
    packed, header = framed(PLAIN_BYTES, bad, BYTES_WITH_HEADERS)
    with pytest.raises(UndecodableBody):
        decode_events(packed, header)
    read, undecodable = decode((packed, header, 0))
    assert [one.headers for one in read] == [{}, {"a": "b"}]
    assert undecodable is not None
    assert undecodable.ranges == [(2, 2)]


def test_a_group_delivers_headers() -> None:
    packed, header = framed(PLAIN_BYTES, BYTES_WITH_HEADERS)
    read = group_events.decode(packed, header, group_events.LoanOrigin(3, 4, 5), skip=0, offset=10)
    assert [(one.offset, one.attempt, one.loan, one.headers) for one in read] == [
        (10, 1, 5, {}),
        (11, 1, 5, {"a": "b"}),
    ]


def test_a_dead_letter_has_the_headers_of_its_event(tmp_path: pathlib.Path) -> None:
    with durable_log.open(f"sqlite://{tmp_path}/log.db?shards=1") as log:
        DeadLetters(log, "billing", "dead/{group}").park(
            pubsub_api.GroupEvent(table="port", key="p1", action="set", topic="t", headers=TRACE), "it always fails"
        )
        (letter,) = log.read(0, 0)[0].events()
    assert (letter.topic, letter.headers) == ("dead/billing", TRACE)


@pytest.mark.parametrize("depth", [1, 5])
def test_samples_of_the_durability_service_have_the_bytes_that_were_sent(depth: int) -> None:
    recorder = SampleRecorder(lambda _: depth, 10**6)
    traced = encode_event(event(key="p2", headers=TRACE), 5)
    packed, header = framed(PLAIN_BYTES, traced)
    recorder.add([(packed, header, 0)])
    samples = recorder.take().samples
    assert [sample.event for sample in samples] == [PLAIN_BYTES, traced]
    assert [event_of(sample).headers for sample in samples] == [{}, TRACE]
    assert recorder.undecodable == 0


def test_headers_reach_the_callback_whichever_way_they_are_sent() -> None:
    got: list[tuple[int, Mapping[str, str]]] = []
    total = 300
    with pubsub_api.open("memory://headers") as session:
        publisher = session.publisher()
        session.subscriber(["t/p"], lambda one: got.append((one.version, one.headers))).wait_ready(timeout_s=PATIENCE_S)
        made = [event(topic="t/p", version=number, headers=TRACE if number % 3 else {}) for number in range(1, total)]
        for one in made[:200]:
            publisher.send_event(one)
        publisher.send_events(made[200:])
        with pytest.raises(InvalidEvent):
            publisher.send_event(event(topic="t/p", headers={"": ""}))
        wait_until(lambda: len(got) >= len(made), PATIENCE_S, "all events")
    assert got == [(one.version, one.headers) for one in made]
