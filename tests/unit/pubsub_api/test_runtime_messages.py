"""Messages with their length before them, however the stream is cut."""

from __future__ import annotations

import pytest

from pubsub_api.errors import OversizedFrame
from pubsub_api.runtime.sockets.messages import Splitter, pack

MESSAGES = [b"a", b"bc" * 40, b"\0" * 100, b"end"]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 64, 10_000])
@pytest.mark.parametrize("signature", [b"", b"signature"])
def test_messages_come_out_as_they_went_in(step: int, signature: bytes) -> None:
    stream = b"".join(pack(signature, one, uncounted=len(signature)) for one in MESSAGES)
    splitter = Splitter(100, OversizedFrame, uncounted=len(signature))
    got = [one for at in range(0, len(stream), step) for one in splitter.feed(stream[at : at + step])]
    assert got == [signature + one for one in MESSAGES]
    assert splitter.waiting_bytes == 0


@pytest.mark.parametrize("step", [1, 2, 3, 5, 64, 10_000])
def test_views_of_a_buffer_that_is_used_again_are_good_until_then(step: int) -> None:
    stream = b"".join(map(pack, MESSAGES * 2))
    splitter = Splitter(100, OversizedFrame)
    buffer = bytearray(step)
    got = []
    for at in range(0, len(stream), step):
        part = stream[at : at + step]
        buffer[: len(part)] = part
        got += [bytes(one) for one in splitter.feed(memoryview(buffer)[: len(part)])]
        buffer[:] = b"\xff" * step
    assert got == MESSAGES * 2
    assert splitter.waiting_bytes == 0


def test_whole_messages_of_a_view_are_not_copied() -> None:
    buffer = bytearray(pack(b"one") + pack(b"two") + pack(b"three")[:-1])
    found = list(Splitter(100, OversizedFrame).feed(memoryview(buffer)))
    assert [type(one) for one in found] == [memoryview, memoryview]
    assert all(one.obj is buffer for one in found if isinstance(one, memoryview))


def test_a_length_that_came_in_pieces_is_refused_as_well() -> None:
    splitter = Splitter(100, OversizedFrame)
    assert list(splitter.feed(b"\0\0")) == []
    with pytest.raises(OversizedFrame, match="a message of 257 bytes"):
        list(splitter.feed(b"\1\1x"))
    assert splitter.waiting_bytes == 0


def test_an_incomplete_message_waits() -> None:
    splitter = Splitter(100, OversizedFrame)
    assert list(splitter.feed(pack(b"one") + pack(b"two")[:-1])) == [b"one"]
    assert splitter.waiting_bytes == 6
    assert list(splitter.feed(b"o")) == [b"two"]


@pytest.mark.parametrize("size", [0, 101, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_anything_of_it_is_kept(size: int) -> None:
    splitter = Splitter(100, OversizedFrame)
    found = splitter.feed(pack(b"good") + size.to_bytes(4, "big") + b"x" * 50)
    assert next(found) == b"good"
    with pytest.raises(OversizedFrame, match=f"a message of {size} bytes; at most 100 are accepted"):
        next(found)
    assert splitter.waiting_bytes == 0


def test_the_bound_may_change_from_one_message_to_the_next() -> None:
    splitter = Splitter(4, OversizedFrame)
    got = []
    for one in splitter.feed(pack(b"name") + pack(b"much more")):
        got.append(one)
        splitter.bytes_max = 100
    assert got == [b"name", b"much more"]


def test_a_message_that_comes_alone_needs_no_feeding() -> None:
    splitter = Splitter(100, OversizedFrame, uncounted=4)
    whole = pack(b"sign", b"one", uncounted=4)
    for data in (b"", whole[:-1], whole + b"x", pack(b"sign", b"x" * 101, uncounted=4), pack(b"sign", uncounted=4)):
        assert splitter.lone(data) is None
    assert splitter.lone(whole) == b"signone"
    assert list(splitter.feed(whole[:2])) == []
    assert splitter.lone(whole) is None, "it is the end of another one"
