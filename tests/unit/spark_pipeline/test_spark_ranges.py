"""The arithmetic of ranges: nothing is left out, nothing is read twice, and limits hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_log import Segment, ShardState, shard_of
from pubsub_api.core.topics import matches
from pubsub_api.errors import UsageError
from spark_pipeline.core.ranges import LogRange, advance, from_json, pack, split, to_json
from spark_pipeline.reading.partitions import readable_ends, shards_of
from spark_pipeline.reading.whole_log import filter_pattern, make_plan

RANGES = st.tuples(st.integers(0, 3), st.integers(0, 1000), st.integers(0, 1000)).map(
    lambda drawn: LogRange(drawn[0], drawn[1], drawn[1] + drawn[2])
)
LEVELS = st.sampled_from(["a", "b.c", "d", "$x", "e+", "1"])


@given(given_range=RANGES, events_max=st.integers(1, 300))
def test_a_range_is_split_into_equal_parts_that_cover_it(given_range: LogRange, events_max: int) -> None:
    parts = list(split([given_range], events_max=events_max))
    covered = [offset for part in parts for offset in range(part.start, part.end)]
    assert covered == list(range(given_range.start, given_range.end))
    sizes = [part.events for part in parts]
    assert not sizes or (max(sizes) <= events_max and max(sizes) - min(sizes) <= 1)


@given(
    waiting=st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 500))),
    events_max=st.integers(1, 400),
)
def test_a_batch_moves_every_waiting_shard_on_and_never_beyond_its_end(
    waiting: dict[int, tuple[int, int]], events_max: int
) -> None:
    start = {shard: begin for shard, (begin, _) in waiting.items()}
    ends = {shard: begin + count for shard, (begin, count) in waiting.items()}
    until = advance(start, ends, events_max=events_max)
    assert until.keys() == ends.keys()
    for shard, end in ends.items():
        assert start[shard] <= until[shard] <= end
        assert until[shard] > start[shard] or end == start[shard]
    assert sum(until[shard] - start[shard] for shard in until) <= events_max + len(until)
    assert advance(start, ends, events_max=None) == ends


def test_a_batch_never_ends_before_it_begins() -> None:
    assert advance({0: 5, 1: 1}, {0: 3, 1: 4}, events_max=None) == {0: 5, 1: 4}
    assert advance({0: 5, 1: 1}, {0: 3, 1: 4}, events_max=2) == {0: 5, 1: 3}


def test_a_shard_that_the_checkpoint_does_not_know_begins_at_its_start() -> None:
    assert advance({0: 5}, {0: 7, 3: 2}, events_max=100) == {0: 7, 3: 2}


def test_offsets_survive_json_and_nonsense_is_refused() -> None:
    assert from_json(to_json({10: 3, 2: 0})) == {2: 0, 10: 3}
    assert from_json('{"1": 5}') == {1: 5}
    for nonsense in ("17", "[1]", '{"a": 1}', "{", '{"1": null}', '{"1": 1.5}', '{"1": true}'):
        with pytest.raises(UsageError, match="offsets are written as"):
            from_json(nonsense)


def segment(shard: int, first: int, end: int) -> Segment:
    return Segment(shard, first, end, f"{shard}-{first}.parquet", end - first, 1, "", 0, 0, 0, 0)


def test_a_read_is_divided_between_segments_and_the_hot_tail() -> None:
    states = [ShardState(0, 0, 20, 25, 1), ShardState(1, 5, 5, 9, 1), ShardState(2, 0, 10, 10, 0)]
    segments = [segment(0, 0, 10), segment(0, 10, 20), segment(2, 0, 10)]
    plan = make_plan(states, segments, {0: 12, 1: 5, 2: 0}, {0: 25, 1: 9, 2: 10})
    assert [one.path for one in plan.sealed] == ["0-10.parquet", "2-0.parquet"]
    assert plan.trimmed == [LogRange(0, 12, 25)]
    assert plan.hot == [LogRange(0, 20, 25), LogRange(1, 5, 9)]
    nothing = make_plan(states, segments, {0: 25, 1: 9, 2: 10}, {0: 25, 1: 9, 2: 10})
    assert nothing == ([], [], [])


def test_a_batch_reads_a_new_shard_when_what_comes_before_was_read() -> None:
    states = [ShardState(0, 0, 0, 25, 1), ShardState(1, 0, 0, 9, 1), ShardState(2, 0, 0, 7, 1, ((0, 20),))]
    ends = {0: 25, 1: 9, 2: 7}
    assert readable_ends(states, {0: 19, 1: 9}, ends) == {0: 25, 1: 9, 2: 0}
    assert readable_ends(states, {0: 20}, ends) == ends
    home = next(topic for topic in map(str, range(99)) if shard_of(topic, 3) == 2)
    assert shards_of([home], states) == [0, 2]
    assert shards_of(["#"], states) == [0, 1, 2]


def test_segments_in_an_object_store_are_read_as_the_hot_tail_is() -> None:
    states = [ShardState(0, 0, 20, 25, 1), ShardState(1, 0, 10, 10, 0)]
    segments = [segment(0, 0, 20)._replace(path="s3://bucket/0-0.parquet"), segment(1, 0, 10)]
    plan = make_plan(states, segments, {0: 5, 1: 0}, {0: 25, 1: 10})
    assert [one.path for one in plan.sealed] == ["1-0.parquet"]
    assert (plan.trimmed, plan.hot) == ([], [LogRange(0, 5, 25)])


@given(
    wanted=st.lists(LEVELS | st.just("+"), min_size=1, max_size=3),
    has_rest=st.booleans(),
    levels=st.lists(LEVELS, min_size=1, max_size=4),
)
def test_the_pattern_of_a_filter_selects_the_same_topics(wanted: list[str], has_rest: bool, levels: list[str]) -> None:
    topic_filter, topic = "/".join(wanted) + ("/#" if has_rest else ""), "/".join(levels)
    assert bool(re.fullmatch(filter_pattern(topic_filter), topic)) == matches(topic_filter, topic)
    assert bool(re.fullmatch(filter_pattern("#"), topic)) == matches("#", topic)


def test_short_ranges_stay_together_and_none_is_lost() -> None:
    ranges = [LogRange(0, 0, 3), LogRange(1, 5, 9), LogRange(2, 0, 20), LogRange(3, 1, 2)]
    assert pack(ranges, events_max=7) == [tuple(ranges[:2]), (ranges[2],), (ranges[3],)]
    assert pack(ranges, events_max=1000) == [tuple(ranges)]
    assert pack(ranges, events_max=1) == [(one,) for one in ranges]
    assert pack([], events_max=7) == []
