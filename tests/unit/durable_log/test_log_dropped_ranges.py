"""What retention by topic has removed from a segment: how it is kept small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from durable_log.core.dropped_ranges import DroppedRange, bounded, common_parts
from pubsub_api.core.topics import overlap

RUNS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5), st.sampled_from(["a/b/c", "a/b/d", "a/b", "x"])))


def ranges_of(runs: list[tuple[int, int, str]]) -> list[DroppedRange]:
    found, offset = list[DroppedRange](), 0
    for gap, length, topic in runs:
        found.append(DroppedRange(topic, offset + gap, offset + gap + length, length, offset))
        offset += gap + length
    return found


@given(RUNS, st.integers(1, 8))
def test_few_ranges_say_no_less_than_many(runs: list[tuple[int, int, str]], limit: int) -> None:
    ranges = ranges_of(runs)
    found = bounded(ranges, limit)
    assert len(found) <= limit
    assert sum(one.events for one in found) == sum(one.events for one in ranges)
    assert list(found) == sorted(found, key=lambda one: one.first)
    for one in ranges:
        assert any(
            kept.first <= one.first and one.end <= kept.end and overlap(kept.topic, one.topic)
            and kept.dropped_ns >= one.dropped_ns
            for kept in found
        )  # fmt: skip
    assert len(ranges) > limit or sorted(found) == sorted(ranges)


def test_the_nearest_are_joined_and_many_topics_have_one_filter() -> None:
    runs = [DroppedRange("a", first, first + 2, 2, 7) for first in (0, 3, 20)]
    assert bounded(runs, 2) == (DroppedRange("a", 0, 5, 4, 7), DroppedRange("a", 20, 22, 2, 7))
    runs = [DroppedRange(f"m/{number}/cpu", number, number + 1, 1, 7) for number in range(5)]
    assert bounded(runs, 2)[0].topic == "m/#"
    runs.append(DroppedRange("other", 9, 10, 1, 7))
    assert bounded(runs, 2)[0].topic == "#"
    assert bounded([*bounded(runs, 2), *runs], 2)[0].topic == "#"


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)).map(lambda one: (one[0], sum(one))))


@given(st.sets(st.integers(0, 40)), SPANS)
def test_the_parts_of_holes_that_lie_in_ranges(offsets: set[int], ranges: list[tuple[int, int]]) -> None:
    holes = [(offset, offset + 1) for offset in sorted(offsets)]
    found = [offset for first, end in common_parts(holes, ranges) for offset in range(first, end)]
    assert found == [one for one in sorted(offsets) if any(first <= one < end for first, end in ranges)]
    assert common_parts([(0, 41)], ranges) == sorted(common_parts([(0, 41)], ranges))
