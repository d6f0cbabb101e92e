"""Frames come back byte for byte from the columns of a segment, and our own ones without a copy of them."""

from __future__ import annotations

import msgspec
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_log.log_api import StoredFrame
from durable_log.segments.columns import events_batch
from durable_log.segments.group_cache import GroupCache
from durable_log.segments.rebuilding import PORTION_EVENTS, FrameRows, stored_frames
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.frame import Kind

GUID = bytes(range(16))

numbers = st.sampled_from([0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1])
texts = st.one_of(st.sampled_from([0, 1, 31, 32, 255, 256, 65_535, 65_536]).map("k".__mul__), st.text(max_size=40))
integers = st.integers(-(2**63), 2**64 - 1)
values = st.one_of(st.none(), integers, st.binary(max_size=40), st.floats(allow_nan=False),
                   st.dictionaries(st.text(max_size=3), integers, max_size=2))  # fmt: skip


@st.composite
def made_frames(draw: st.DrawFn) -> list[bytes]:
    made, first = [], 1
    for _ in range(draw(st.integers(1, 4))):
        events = [
            Event(table=draw(st.sampled_from(["port", "net" * 20])), key=draw(texts), topic="t/a",
                  action=draw(st.sampled_from(["create", "set", "delete"])), value=draw(values), version=draw(numbers))
            for _ in range(draw(st.integers(1, 5)))
        ]  # fmt: skip
        body = pack_body([encode_event(event, max(1, draw(numbers))) for event in events])
        made.append(frames.pack(Kind.DATA, GUID, "t/a", body, first=first, after=first - 1, count=len(events),
                                timestamp=draw(numbers), key=draw(st.sampled_from([None, b"k" * 32]))))  # fmt: skip
        first += len(events)
    return made


def _stored(made: list[bytes]) -> list[StoredFrame]:
    found, offset = [], 7
    for frame in made:
        count = frames.unpack(frame, bytes_max=1 << 30).count
        found.append(StoredFrame(3, offset, count, 0, 99, frame))
        offset += count
    return found


@settings(max_examples=60, deadline=None)
@given(made_frames())
def test_our_own_frames_come_back_without_a_copy_of_them(made: list[bytes]) -> None:
    stored = _stored(made)
    batch = events_batch(stored, with_frames=True)
    assert batch.column("frame").null_count == batch.num_rows
    assert list(stored_frames(pyarrow.Table.from_batches([batch]))) == stored


def test_what_others_encoded_comes_back_too() -> None:
    own = pack_body([encode_event(Event(topic="t", table="x", key="k", action="set"), 1)])
    short = b"\x91" + msgspec.msgpack.encode(["x", "k", "set"])  # fewer fields, and another kind of array
    broken = b"\xdd\x00\x00\x00\x01\xc1"
    made = [
        frames.pack(Kind.DATA, GUID, "t", body, first=number, after=number - 1, count=1)
        for number, body in enumerate((own, short, broken, own), 1)
    ]
    stored = _stored(made)
    batch = events_batch(stored, with_frames=True)
    assert batch.column("frame").null_count == 2
    assert list(stored_frames(pyarrow.Table.from_batches([batch]))) == stored


def _rows(frames_of: int, count: int) -> tuple[list[StoredFrame], FrameRows]:
    body = pack_body([encode_event(Event(topic="t", table="x", key=str(i), action="set"), 1) for i in range(frames_of)])
    stored = _stored([
        frames.pack(Kind.DATA, GUID, f"t/{number % 3}", body, first=1 + number // 3 * frames_of,
                    after=number // 3 * frames_of, count=frames_of)
        for number in range(count)
    ])  # fmt: skip
    return stored, FrameRows(pyarrow.Table.from_batches([events_batch(stored, with_frames=True)]))


def test_a_portion_is_rebuilt_alone() -> None:
    stored, rows = _rows(1000, 30)
    portions = [rows.rebuild(portion) for portion in range(rows.portions)]
    assert [one for portion in portions for one in portion] == stored
    assert rows.portions == -(-30_000 // PORTION_EVENTS)
    for one in stored:
        assert one in portions[rows.portion_at(one.offset)]
        assert one in portions[rows.portion_at(one.end - 1)]


def test_only_the_portions_that_have_numbers_of_a_stream_are_named() -> None:
    stored, rows = _rows(1000, 30)
    for topic, first, last in (("t/0", 1, 1), ("t/1", 5000, 5001), ("t/2", 1, 10_000)):
        wanted = [one for one in stored if one.header().topic == topic
                  and one.header().first <= last and one.header().first + 999 >= first]  # fmt: skip
        found = {one for portion in rows.portions_of(GUID, topic, first, last) for one in rows.rebuild(portion)}
        assert set(wanted) <= found
        assert len(rows.portions_of(GUID, topic, first, last)) == len({rows.portion_at(one.offset) for one in wanted})
    assert rows.portions_of(GUID, "t/3", 1, 10_000) == rows.portions_of(bytes(16), "t/0", 1, 10_000) == []


def test_rows_that_are_no_frames_are_refused() -> None:
    stored = _stored([frames.pack(Kind.DATA, GUID, "t", b"\xdd\x00\x00\x00\x02\xc0\xc0", first=1, after=0, count=2)])
    table = pyarrow.Table.from_batches([events_batch(stored, with_frames=True)])
    for damaged in (table.slice(1), table.slice(0, 1)):
        with pytest.raises(ValueError, match="frames"):
            FrameRows(damaged)


def test_what_is_kept_has_a_bound_and_the_last_group_stays() -> None:
    stored, rows = _rows(1000, 30)
    size = rows.bytes + sum(len(one.frame) for one in rows.rebuild(0))
    cache, reads = GroupCache(bytes_max=2 * size), []

    def read(number: int) -> list[StoredFrame]:
        key = ("file", number)
        known = cache.rows(key, lambda: reads.append(number) or rows)  # type: ignore[func-returns-value]
        return cache.frames(key, known, 0)

    assert read(0) is read(0)
    assert reads == [0]
    read(1), read(2)
    assert read(2) is read(2)
    assert read(1) is read(1)
    assert reads == [0, 1, 2]
    read(0)
    assert reads == [0, 1, 2, 0]
    cache.forget("file")
    assert read(1)[0] == stored[0]
    assert reads == [0, 1, 2, 0, 1]
