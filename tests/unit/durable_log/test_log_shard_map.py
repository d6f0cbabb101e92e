"""Which shards a topic has had, and what is to be read before what."""

from __future__ import annotations

import pytest

from durable_log.errors import LogCorrupt
from durable_log.log_api import ShardState, shard_of
from durable_log.storage.shard_map import GrowthStep, ShardMap, decode, encode, is_open
from pubsub_api.errors import UsageError

GROWN = ShardMap(4).grown(8, (10, 11, 12, 13)).grown(24, tuple(range(20, 28)))
TOPICS = [f"t/{number}" for number in range(200)]


def test_a_topic_goes_from_a_shard_to_one_of_its_children_and_never_elsewhere() -> None:
    for topic in TOPICS:
        shards = GROWN.shards_of(topic)
        assert shards[0] == shard_of(topic, 4)
        assert shards[-1] == shard_of(topic, 24)
        assert list(shards) == sorted(shards)
        assert [shard for shard, _ in GROWN.after(shards[-1])] == list(shards[:-1])


def test_what_comes_before_a_shard_is_known_through_all_generations() -> None:
    assert [GROWN.after(shard) for shard in (1, 5, 9, 13)] == [
        (), ((1, 11),), ((1, 21),), ((1, 11), (5, 25)),
    ]  # fmt: skip
    state = ShardState(13, 0, 0, 5, 1, GROWN.after(13))
    assert not is_open(state, {1: 11, 5: 24}.__getitem__)
    assert not is_open(state, {1: 10, 5: 25}.__getitem__)
    assert is_open(state, {1: 11, 5: 25}.__getitem__)


@pytest.mark.parametrize("shards", [0, 3, 4, 6])
def test_only_a_larger_multiple_keeps_topics_in_order(shards: int) -> None:
    with pytest.raises(UsageError, match="has 4 shards"):
        ShardMap(4).grown(shards, ())


def test_the_record_says_it_and_damage_of_it_is_named() -> None:
    assert encode(GROWN) == b"8 10 11 12 13\n24 20 21 22 23 24 25 26 27\n"
    assert decode(4, encode(GROWN)) == GROWN
    assert GROWN.steps[0] == GrowthStep(8, (10, 11, 12, 13))
    assert decode(4, None) == ShardMap(4)
    for damaged in (b"", b"8 x\n", b"\n"):
        with pytest.raises(LogCorrupt, match="log/growth"):
            decode(4, damaged)
