"""Sets of samples and the merge policies, against the laws they are built on."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durability_service.core.alignment.merging import Changes, MergePolicy, merge
from durability_service.core.sets.buckets import Instances
from durability_service.core.sets.sample_set import Deletion, SampleSet
from durability_service.core.sets.samples import InstanceKey, Sample, make_sample, newest_first

BUCKETS = 4


def sample(key: str, timestamp: int, *, writer: int = 1, topic: str = "a/x", is_delete: bool = False) -> Sample:
    return make_sample(
        topic,
        "t",
        key,
        timestamp=timestamp,
        writer=bytes([writer]) * 16,
        number=timestamp,
        is_delete=is_delete,
        event=b"%s %d" % (key.encode(), timestamp),
    )


def published(key: str, timestamp: int, *, writer: int, topic: str) -> Sample:
    """What happened follows from the name of the sample, as it does for what a publisher sent."""
    is_delete = (timestamp + writer + len(topic)) % 3 == 0
    return sample(key, timestamp, writer=writer, topic=topic, is_delete=is_delete)


samples = st.builds(
    published,
    st.sampled_from("klm"),
    st.integers(1, 12),
    writer=st.integers(1, 2),
    topic=st.sampled_from(["a/x", "b"]),
)
lists = st.lists(samples, max_size=12)


def set_of(content: list[Sample], depth: int = 2) -> SampleSet:
    made = SampleSet(BUCKETS, lambda _topic: depth)
    for one in content:
        made.add(one)
    return made


def instances(of: SampleSet) -> dict[InstanceKey, tuple[Sample, ...]]:
    return {key: kept for number in range(BUCKETS) for key, kept in of.bucket(number).items()}


def apply(policy: MergePolicy, local: SampleSet, remote: Instances, t: int) -> Changes:
    changes = merge(policy, instances(local), remote, t, local.kept)
    for key, kept in changes.items():
        local.put(key, kept)
    return changes


@given(lists, st.integers(1, 3), st.randoms())
def test_a_set_does_not_depend_on_order_or_repetition(content: list[Sample], depth: int, chance: random.Random) -> None:
    shuffled = content + content[:3]
    chance.shuffle(shuffled)
    one, other = set_of(content, depth), set_of(shuffled, depth)
    assert instances(one) == instances(other)
    assert one.digest == other.digest
    assert one.count == other.count == sum(1 for _ in one)


@given(lists, lists, lists)
def test_merging_is_a_join(a: list[Sample], b: list[Sample], c: list[Sample]) -> None:
    def union(*parts: list[Sample]) -> dict[InstanceKey, tuple[Sample, ...]]:
        result = set_of(parts[0])
        for part in parts[1:]:
            apply(MergePolicy.MERGE, result, instances(set_of(part)), 0)
        return instances(result)

    assert len({repr(sorted(union(*order).items())) for order in itertools.permutations((a, b, c))}) == 1
    assert union(a, a) == union(a)
    assert union(a, b) == instances(set_of(a + b))


@given(lists, st.integers(1, 3))
def test_what_is_kept_of_an_instance_is_the_newest_down_to_a_deletion(content: list[Sample], depth: int) -> None:
    own = [one for one in content if one.instance == ("a/x", "t", "k")]
    kept = newest_first(tuple(own), depth)
    assert len(kept) <= depth
    assert list(kept) == sorted(kept, key=lambda one: one.order, reverse=True)
    assert not any(one.is_delete for one in kept[:-1])
    if own:
        assert kept[0] == max(own, key=lambda one: one.order)


@given(lists, lists, st.integers(0, 12))
def test_catchup_and_replace_give_the_set_of_the_other_side(a: list[Sample], b: list[Sample], t: int) -> None:
    remote = instances(set_of(b))
    caught, replaced = set_of(a), set_of(a)
    changes = apply(MergePolicy.CATCHUP, caught, remote, t)
    apply(MergePolicy.REPLACE, replaced, remote, t)
    newer = [one for one in set_of(a) if one.timestamp > t]
    assert instances(caught) == instances(replaced) == instances(set_of([*set_of(b), *newer]))
    before, after = instances(set_of(a)), instances(caught)
    assert changes.keys() == {key for key in before | after if before.get(key) != after.get(key)}


@given(lists, st.integers(0, 12))
def test_delete_leaves_only_what_is_newer_and_ignore_changes_nothing(a: list[Sample], t: int) -> None:
    deleted, ignored = set_of(a), set_of(a)
    apply(MergePolicy.DELETE, deleted, instances(set_of(a)), t)
    assert all(one.timestamp > t for one in deleted)
    assert {one for one in set_of(a) if one.timestamp > t} == set(deleted)
    assert apply(MergePolicy.IGNORE, ignored, instances(set_of(a)), t) == {}
    assert ignored.digest == set_of(a).digest


@given(lists, st.integers(0, 12))
def test_deleted_history_stays_away_wherever_it_comes_from(content: list[Sample], t: int) -> None:
    first, later = set_of(content), set_of([])
    assert first.delete(Deletion("a/#", t)) is not None
    later.delete(Deletion("a/#", t))
    for one in content:
        later.add(one)
    assert not [one for one in first if one.topic == "a/x" and one.timestamp <= t]
    assert not [one for one in later if one.topic == "a/x" and one.timestamp <= t]
    assert first.delete(Deletion("a/#", t)) is None


@settings(max_examples=50)
@given(lists)
def test_equal_digests_mean_equal_buckets(content: list[Sample]) -> None:
    whole, part = set_of(content), set_of(content[1:])
    differing = [number for number in range(BUCKETS) if whole.digest_of(number) != part.digest_of(number)]
    assert (whole.digest == part.digest) == (instances(whole) == instances(part)) == (not differing)
    assert all(whole.bucket(number) == part.bucket(number) for number in range(BUCKETS) if number not in differing)


def test_old_deletions_of_instances_are_swept() -> None:
    made = set_of([sample("k", 5, is_delete=True), sample("l", 5), sample("m", 9, is_delete=True)])
    made.delete(Deletion("b", 4))
    gone = [one for number in range(BUCKETS) for one in made.sweep(number, before=7)]
    assert [one.key for one in gone] == ["k"]
    assert {one.key for one in made} == {"l", "m"}
    assert not made.deletions
    assert made.digest == set_of([sample("l", 5), sample("m", 9, is_delete=True)]).digest


@pytest.mark.parametrize("policy", MergePolicy)
def test_no_policy_touches_what_was_written_after_the_request(policy: MergePolicy) -> None:
    local = set_of([sample("k", 5), sample("l", 20)])
    apply(policy, local, instances(set_of([sample("k", 4), sample("m", 3)])), 10)
    assert local.get(("a/x", "t", "l")) == (sample("l", 20),)
