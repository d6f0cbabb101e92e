"""Reading a frame as a whole says what reading header and body one after the other says, or nothing."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_api.core import data_frames, events, frame
from pubsub_api.core.frame import SEQUENCE_MAX, Header, Kind
from pubsub_api.core.settings import FrameSettings
from tests.unit.pubsub_api.test_core_frame import BYTES_MAX, GUID, KEY, TOPIC, guids, keys, stamps, topics, values


def packed(body: list[Any], key: bytes | None = None, **numbers: int) -> bytes:
    packer = frame.DataPacker(GUID, key)
    return packer.pack(frame.topic_element(TOPIC), [msgpack.packb(event) for event in body], **numbers)


@given(
    topic=topics, guid=guids, stamp=stamps, first=st.integers(0, SEQUENCE_MAX), gap=st.integers(-1, 3), key=keys,
    made=st.lists(values, max_size=3), position=st.integers(-200, 200), new=st.binary(max_size=3),
    bytes_max=st.sampled_from([100, BYTES_MAX]), is_known=st.booleans(),
)  # fmt: skip
def test_it_says_what_the_other_way_says(
    topic: str, guid: bytes, stamp: int, first: int, gap: int, key: bytes | None, made: list[Any], position: int,
    new: bytes, bytes_max: int, is_known: bool,
) -> None:  # fmt: skip
    """Or nothing, whatever was done to the frame."""
    body = [msgpack.packb(["port", "p1", "set", value, 5, 1]) for value in made]
    after = max(first - 1 - gap, 0)
    sound = frame.DataPacker(guid, key).pack(
        frame.topic_element(topic), body, first=first, after=after, timestamp=stamp
    )
    at = position % len(sound)
    data = sound[:at] + new + sound[at + len(new) :]
    settings = FrameSettings(bytes_max=bytes_max, key=key if is_known else None)
    found = data_frames.data_reader(settings)(data)
    if found is not None and 0 < found.first == found.after + 1 <= SEQUENCE_MAX - found.count and found.topic == topic:
        if data[25:44:9] + data[48:49] != b"\xcf\xcf\xce\xcf":  # numbers that are marked as having a sign
            assert msgpack.unpackb(data, strict_map_key=False)[5:9] == [
                found.first, found.after, found.count, found.timestamp,
            ]  # fmt: skip
            return
        header = frame.unpack(data, bytes_max=bytes_max, key=settings.key)
        frame.check_count(data, header)
        assert (found.guid, found.first, found.after, found.count, found.timestamp, found.topic) == (
            header.guid, header.first, header.after, header.count, header.timestamp, header.topic,
        )  # fmt: skip
        for event in found.events:
            event.topic = topic
        assert found.events == events.decode_events(data, header)
    if data == sound and body and len(data) <= bytes_max and (is_known or not key):
        assert found is not None


@given(data=st.binary(max_size=200), key=keys)
def test_bytes_that_are_no_frame_are_read_by_neither(data: bytes, key: bytes | None) -> None:
    settings = FrameSettings(key=key)
    assert data_frames.data_reader(settings)(data) is None
    assert data_frames.header_reader(settings)(data) is None


@pytest.mark.parametrize("key", [None, KEY])
def test_the_header_alone_is_read_of_a_frame_that_is_handed_on_as_it_is(key: bytes | None) -> None:
    settings = FrameSettings(key=key)
    read = data_frames.header_reader(settings)
    data = packed([["port", "p1", "no action", None, 5, 1]], key, first=4, after=3, timestamp=9)
    header = read(data)
    assert isinstance(header, Header)
    assert header == frame.unpack(data, bytes_max=BYTES_MAX, key=key)
    assert data_frames.data_reader(settings)(data) is None, "its event cannot be decoded"
    hello = frame.pack(Kind.HELLO, GUID, TOPIC, b"\x80", key=key)
    assert read(hello) is None
    assert read(data[:-1]) is None
    at = header.body_start
    assert read(data[: at + 4] + b"\2" + data[at + 5 :]) is None, "its body has more events than it states"
