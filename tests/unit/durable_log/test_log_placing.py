"""What is new in a frame: compared with a model that remembers every number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from durable_log.core.placing import NOWHERE, Placement, StreamPosition, place
from pubsub_api.core.frame import Header, Kind


def header(first: int, count: int, after: int | None = None) -> Header:
    return Header(Kind.DATA, 0, bytes(16), first, first - 1 if after is None else after, count, 0, "t", 60, 61)


def numbers(ranges: tuple[tuple[int, int], ...]) -> list[int]:
    return [number for low, high in ranges for number in range(low, high + 1)]


FRAMES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3)), max_size=40)


@given(FRAMES)
def test_every_number_is_kept_once_and_what_is_missing_is_known(frames: list[tuple[int, int, int]]) -> None:
    position, held, skipped = NOWHERE, set[int](), set[int]()
    for first, count, skip in frames:
        after = max(0, first - 1 - skip)
        placement = place(header(first, count, after), position, ranges_max=1000)
        kept = numbers(placement.kept)
        expected = [n for n in range(first, first + count) if n not in held and n not in skipped]
        assert kept == expected
        skipped |= set(range(after + 1, first)) - held
        held |= set(kept)
        position = placement.position
        assert placement.forgotten == 0
        assert position.last == max(held | {0})
        assert numbers(position.missing) == sorted(set(range(1, position.last + 1)) - held - skipped)


def test_the_next_frame_is_kept_whole() -> None:
    assert place(header(5, 3), StreamPosition(4, ((2, 2),)), ranges_max=10) == Placement(
        ((5, 7),), StreamPosition(7, ((2, 2),)), 0
    )


def test_ranges_that_touch_are_kept_as_one() -> None:
    assert place(header(3, 8), StreamPosition(6, ((4, 6),)), ranges_max=10).kept == ((4, 10),)


def test_too_many_holes_are_forgotten_from_the_oldest() -> None:
    position = NOWHERE
    for number in range(1, 5):
        position = place(header(10 * number, 1), position, ranges_max=3).position
    assert position == StreamPosition(40, ((11, 19), (21, 29), (31, 39)))
    placement = place(header(50, 1), position, ranges_max=3)
    assert placement.forgotten == 9
    assert place(header(15, 1), placement.position, ranges_max=3).kept == ()
