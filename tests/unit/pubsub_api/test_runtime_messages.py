"""Messages with their length before them, however the stream is cut."""

from __future__ import annotations

import pytest

from pubsub_api.errors import OversizedFrame
from pubsub_api.runtime.messages import Splitter, pack

MESSAGES = [b"a", b"bc" * 40, b"\0" * 100, b"end"]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 64, 10_000])
@pytest.mark.parametrize("signature", [b"", b"signature"])
def test_messages_come_out_as_they_went_in(step: int, signature: bytes) -> None:
    stream = b"".join(pack(signature, one, uncounted=len(signature)) for one in MESSAGES)
    splitter = Splitter(100, OversizedFrame, uncounted=len(signature))
    got = [one for at in range(0, len(stream), step) for one in splitter.feed(stream[at : at + step])]
    assert got == [signature + one for one in MESSAGES]
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
