"""The messages of the long-poll protocol: plain msgpack, and any garbage is exactly one typed error."""

from __future__ import annotations

import hypothesis
import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import strategies as st

from heliograph_drivers.pubsub.longpoll.core import wire
from heliograph_drivers.pubsub.longpoll.core.wire import Applied, FrameBatch, Leave, Mail, Poll, SessionStatus
from pubsub_api.errors import MalformedFrame

S = b"s" * 16
MESSAGES = (
    FrameBatch(S, 1, 4, [(True, "a/#"), (False, "b"), (True, "$control")]),
    Applied(SessionStatus.OK, b"p" * 16, 1, 6),
    Poll(S, 1, 9, 100, 10.0),
    Mail(SessionStatus.OK, b"p" * 16, 101, [(6, [b"frame", b"frame"])], 3),
    Mail(SessionStatus.RESET, b"p" * 16, 102, reason="too slow"),
    Leave(S, 1),
)
KINDS = (FrameBatch, Applied, Poll, Mail, Leave)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_back(message: FrameBatch | Applied | Poll | Mail | Leave) -> None:
    assert wire.decode(type(message), wire.encode(message)) == message


def test_another_msgpack_library_reads_the_same() -> None:
    assert msgpack.unpackb(wire.encode(MESSAGES[0])) == [S, 1, 4, [[True, "a/#"], [False, "b"], [True, "$control"]]]
    assert msgpack.unpackb(wire.encode(MESSAGES[3])) == [0, b"p" * 16, 101, [[6, [b"frame", b"frame"]]], 3, ""]


@pytest.mark.parametrize(
    "message",
    [
        FrameBatch(b"short", 0, 1, []),
        FrameBatch(S, 0, 0, []),
        FrameBatch(S, 0, 1, [(True, "a//b")]),
        FrameBatch(S, 0, 1, [(True, "")]),
        FrameBatch(S, 0, 1, [(True, "x" * 1000)]),
        FrameBatch(S, 0, 1, [(True, "a")] * 70_000),
        Poll(b"", 1, 1, 0, 1.0),
        Poll(S, 1, 1, 0, -1.0),
        Poll(S, 1, 1, 0, float("nan")),
        Poll(S, 1, 1, 0, float("inf")),
        Leave(b"", 1),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(message: FrameBatch | Poll | Leave) -> None:
    with pytest.raises(MalformedFrame):
        wire.decode(type(message), wire.encode(message))


@hypothesis.given(st.sampled_from(KINDS), st.binary(max_size=60))
def test_garbage_is_one_typed_error(kind: type[FrameBatch], garbage: bytes) -> None:
    try:
        wire.decode(kind, garbage)
    except MalformedFrame:
        return


@hypothesis.given(
    st.sampled_from(KINDS),
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3) | st.binary(max_size=16),
        lambda inner: st.lists(inner, max_size=5),
        max_leaves=12,
    ),
)
def test_msgpack_that_means_something_else_is_one_typed_error(kind: type[FrameBatch], value: object) -> None:
    try:
        wire.decode(kind, msgspec.msgpack.encode(value))
    except MalformedFrame:
        return
