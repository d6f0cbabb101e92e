"""Hostile bytes: whatever arrives, reading it ends in a header, a body, or one error that says what was wrong.

Plain mutation of valid frames from a fixed seed, so that a run is the same everywhere; a failure prints the bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pubsub_api.core import events, frame, messages
from pubsub_api.core.errors import (
    BadSignature,
    FrameError,
    ImplausibleHead,
    MalformedFrame,
    NotAFrame,
    OversizedFrame,
    UndecodableBody,
    UnsupportedVersion,
)
from pubsub_api.core.frame import Flag, Header, Kind
from pubsub_api.core.receiving.subscriber import SubscriberCore
from pubsub_api.core.settings import FrameSettings, SubscriberSettings

CASES = 100_000
BYTES_MAX = 4096
KEY = b"a key of thirty-two bytes length"
GUID = bytes(range(16))
OTHER = bytes(range(16, 32))
UNKNOWN_QUERY = 2**40
INTERESTING = bytes((0x00, 0x01, 0x7F, 0x80, 0x90, 0x9C, 0xC0, 0xC1, 0xC4, 0xC6, 0xCA, 0xCF, 0xD9, 0xDC, 0xDF, 0xFF))

HEADER_ERRORS = (NotAFrame, UnsupportedVersion, OversizedFrame, MalformedFrame, BadSignature)
BODIES: dict[int, Any] = {
    Kind.HELLO: messages.Hello,
    Kind.BYE: messages.Bye,
    Kind.QUERY: messages.Query,
    Kind.REPLY: messages.Reply,
}


def data_frame(topic: str, first: int, count: int, *, guid: bytes = GUID, key: bytes | None = None) -> bytes:
    made = [events.Event(table="port", key=f"{first + n}", action="set", value={"n": [n, None]}) for n in range(count)]
    encoded = [events.encode_event(event, 1) for event in made]
    body = events.pack_body(encoded)
    return frame.pack(Kind.DATA, guid, topic, body, first=first, after=first - 1, count=count, timestamp=9, key=key)


def valid_frames(key: bytes | None) -> list[bytes]:
    """One or more frames of every kind."""

    def control(kind: Kind, message: messages.Hello | messages.Bye | messages.Query | messages.Reply) -> bytes:
        return frame.pack(kind, GUID, "$control", messages.encode(message), flags=Flag.LAST, timestamp=5, key=key)

    return [
        data_frame("tenant-7/port", 1, 1, key=key),
        data_frame("é/ü", 2**40, 12, key=key),
        frame.pack(Kind.HELLO, GUID, "a/b", messages.encode(messages.Hello()), first=8, after=7, key=key),
        control(Kind.HELLO, messages.Hello(name="north", predecessor=OTHER, heads={"a": 3, "b/c": 2**50}, parts=1)),
        control(Kind.BYE, messages.Bye(name="north", heads={"a": 3, "b/c": 2**50}, parts=1)),
        control(Kind.QUERY, messages.Query(id=7, wants=[messages.Want(GUID, "a", 1, 4), messages.Want(OTHER, "b")])),
        control(Kind.QUERY, messages.Query(id=8, topics=["a/#", "+/b"], guid=OTHER, history=True, newest=4, since=2)),
        control(Kind.REPLY, messages.Reply(id=UNKNOWN_QUERY, responder="c", heads=[(GUID, "a", 1)], held=[0, 2])),
        control(Kind.REPLY, messages.Reply(id=UNKNOWN_QUERY, frames=[data_frame("a", 1, 2)], part=1, parts=2)),
        frame.pack(Kind.CONTROL, GUID, "$control", b"\x80", timestamp=5, key=key),
    ]


def _flip(rng: random.Random, case: bytearray) -> None:
    case[rng.randrange(len(case))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, case: bytearray) -> None:
    case[rng.randrange(len(case))] = rng.choice(INTERESTING)


def _delete(rng: random.Random, case: bytearray) -> None:
    start = rng.randrange(len(case))
    del case[start : start + rng.randint(1, 9)]


def _insert(rng: random.Random, case: bytearray) -> None:
    start = rng.randrange(len(case) + 1)
    case[start:start] = rng.randbytes(rng.randint(1, 9))


def _repeat(rng: random.Random, case: bytearray) -> None:
    start = rng.randrange(len(case))
    case[start:start] = case[start : start + rng.randint(1, 60)]


def _truncate(rng: random.Random, case: bytearray) -> None:
    del case[rng.randrange(len(case)) :]


def _grow(rng: random.Random, case: bytearray) -> None:
    case.extend(bytes(BYTES_MAX))


MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _overwrite, _delete, _insert, _repeat, _truncate,
)  # fmt: skip


def hostile(seed: int, count: int, key: bytes | None) -> Iterator[bytes]:
    """Mutated valid frames; mutated bodies in sound frames, signed again; headers with random tails; noise."""
    rng = random.Random(seed)
    corpus = valid_frames(key)
    for number in range(count):
        origin = rng.choice(corpus)
        if number % 16 == 0:
            yield rng.randbytes(rng.randrange(120))
        elif number % 16 == 1:
            yield origin[: rng.randrange(4, 70)] + rng.randbytes(rng.randrange(120))
        elif number % 4 == 2:
            yield _with_mutated_body(rng, origin, key)
        else:
            yield _mutated(rng, origin)


def _mutated(rng: random.Random, origin: bytes) -> bytes:
    case = bytearray(origin)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if case:
            rng.choice(MUTATIONS)(rng, case)
    if rng.random() < 0.01:
        _grow(rng, case)
    return bytes(case)


def _with_mutated_body(rng: random.Random, origin: bytes, key: bytes | None) -> bytes:
    header = frame.unpack(origin, bytes_max=BYTES_MAX, key=key)
    body = _mutated(rng, bytes(frame.body(origin, header))) or b"\xc1"
    return frame.pack(
        header.kind, header.guid, header.topic, body, first=header.first, after=header.after, count=header.count,
        timestamp=header.timestamp, flags=header.flags & ~Flag.SIGNED, key=key,
    )  # fmt: skip


def read_body(case: bytes, header: Header) -> None:
    if header.kind == Kind.DATA:
        assert len(events.decode_events(case, header)) == header.count
    elif header.kind in BODIES:
        messages.decode(BODIES[header.kind], case, header)


def outcome(case: bytes, key: bytes | None) -> str:
    """How reading the case ended: "sound", or the name of the error.  Anything else fails, with the bytes."""
    try:
        header = frame.unpack(case, bytes_max=BYTES_MAX, key=key)
    except HEADER_ERRORS as error:
        return type(error).__name__
    except Exception as error:
        raise AssertionError(f"reading the header of {case.hex()}") from error
    try:
        read_body(case, header)
    except UndecodableBody:
        return "UndecodableBody"
    except Exception as error:
        raise AssertionError(f"reading the body of {case.hex()}") from error
    return "sound"


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_a_hundred_thousand_hostile_frames_end_in_one_error_or_none(key: bytes | None) -> None:
    outcomes: dict[str, int] = {}
    for case in hostile(20_240_101, CASES, key):
        name = outcome(case, key)
        outcomes[name] = outcomes.get(name, 0) + 1
    expected = {"NotAFrame", "UnsupportedVersion", "MalformedFrame", "OversizedFrame", "UndecodableBody", "sound"}
    assert set(outcomes) == (expected | {"BadSignature"} if key else expected)
    assert min(outcomes.values()) > 50, outcomes
    assert sum(outcomes.values()) == CASES


def test_the_frames_that_are_mutated_are_sound() -> None:
    for key in (None, KEY):
        assert {outcome(case, key) for case in valid_frames(key)} == {"sound"}
    kinds = {frame.unpack(case, bytes_max=BYTES_MAX).kind for case in valid_frames(None)}
    assert kinds == set(Kind)


def make_core(key: bytes | None) -> SubscriberCore:
    """A subscriber to everything that is joined already."""
    settings = SubscriberSettings(frame=FrameSettings(bytes_max=BYTES_MAX, key=key))
    core = SubscriberCore(settings, ["#"], guid=b"s" * 16, now=0.0, jitter=lambda: 0.0)
    core.link_up("here", 0.0)
    _, queries = core.take()
    core.asked(queries[0].id, 0, 0.0)
    core.poll(0.0)
    assert core.is_ready
    core.take()
    return core


def is_refused_by_core(case: bytes, key: bytes | None) -> str | None:
    """The error with which a subscriber core must count the case; events it counts, but does not decode."""
    try:
        header = frame.unpack(case, bytes_max=BYTES_MAX, key=key)
        if header.kind in (Kind.HELLO, Kind.BYE, Kind.REPLY):
            read_body(case, header)
        elif header.kind == Kind.DATA:
            frame.check_count(case, header)
    except FrameError as error:
        return type(error).__name__
    return None


def good_stream(key: bytes | None) -> list[bytes]:
    hello = messages.encode(messages.Hello(name="good", parts=1))
    start = frame.pack(Kind.HELLO, b"good" * 4, "$control", hello, flags=Flag.START | Flag.LAST, key=key)
    return [start, *(data_frame("good", n, 1, guid=b"good" * 4, key=key) for n in range(1, 101))]


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_refused_frames_are_counted_once_each_and_change_nothing(key: bytes | None) -> None:
    core = make_core(key)
    expected: dict[str, int] = {}
    for case in hostile(7, 10_000, key):
        name = is_refused_by_core(case, key)
        if name is None:
            continue
        expected[name] = expected.get(name, 0) + 1
        core.on_frames([case], 1.0)
        assert core.counters.bad_frames == expected, case.hex()
    assert core.take() == ([], [])
    assert core.publishers == {}
    core.on_frames(good_stream(key), 1.0)
    delivered, queries = core.take()
    assert [delivery[1].first for delivery in delivered if isinstance(delivery, tuple)] == list(range(1, 101))
    assert len(delivered) == 100
    assert queries == []


@pytest.mark.parametrize("seed", range(4))
def test_a_good_stream_is_delivered_in_order_between_hostile_frames(seed: int) -> None:
    """Sound frames of strangers may open streams and holes of their own; the good stream does not suffer."""
    core = make_core(None)
    rng = random.Random(seed)
    refused = 0
    good = good_stream(None)
    delivered: list[int] = []
    for position, case in enumerate(hostile(seed, 5_000, None)):
        refused += is_refused_by_core(case, None) is not None
        core.on_frames([case], 1.0 + position / 10_000)
        if good and rng.random() < 0.1:
            core.on_frames([good.pop(0)], 1.0 + position / 10_000)
        out, _ = core.take()
        delivered += [item[1].first for item in out if isinstance(item, tuple) and item[1].topic == "good"]
    assert delivered == list(range(1, 101))
    # What makes a sound frame implausible is the stream that it claims to continue, not the frame.
    by_error = {name: count for name, count in core.counters.bad_frames.items() if name != ImplausibleHead.__name__}
    assert sum(by_error.values()) == refused
