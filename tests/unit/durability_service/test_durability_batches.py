"""Packed samples: nothing is lost, damage is told, and a set is the same whether its buckets are packed or not."""

from __future__ import annotations

import random

import pytest

from durability_service.core.sets.batches import (
    EMPTY,
    HEAD_BYTES,
    find,
    from_content,
    pack,
    pack_buckets,
    summary,
    unpack,
)
from durability_service.core.sets.sample_set import Deletion, SampleSet
from durability_service.core.sets.samples import Sample, make_sample
from pubsub_api.core.errors import UndecodableBody

BUCKETS = 4


def sample(number: int, topic: str = "a", *, key: str | None = None, is_delete: bool = False) -> Sample:
    return make_sample(
        topic, f"t{number % 2}", key or f"k{number}", timestamp=number, writer=bytes([number % 3]) * 16, number=number,
        is_delete=is_delete, event=b"e" * (number % 40),
    )  # fmt: skip


def some(count: int) -> list[Sample]:
    return [sample(number, f"topic/{number % 3}", is_delete=number % 5 == 0) for number in range(1, count + 1)]


def a_set(*, depth: int = 1) -> SampleSet:
    return SampleSet(BUCKETS, lambda _topic: depth)


@pytest.mark.parametrize("samples", [[], some(1), some(50), [sample(1)] * 2], ids=["none", "one", "many", "equal"])
def test_what_is_packed_is_unpacked(samples: list[Sample]) -> None:
    batch = from_content(pack(samples).content)
    assert unpack(batch) == samples
    assert batch == pack(samples)
    assert batch.count == len(samples)
    assert batch.newest == max((one.timestamp for one in samples), default=0)
    assert batch.first_delete == min((one.timestamp for one in samples if one.is_delete), default=0)
    assert set(batch.topics) == {one.topic for one in samples}
    for one in samples:
        assert find(batch, one.instance) == tuple(each for each in samples if each.instance == one.instance)
        assert find(batch, (one.topic, one.table, "another")) == find(batch, ("another", one.table, one.key)) == ()
    assert summary(batch.content[:HEAD_BYTES]) == (batch.digest, batch.count, batch.newest, batch.first_delete)


def test_damage_is_told_before_anything_is_used() -> None:
    content = pack(some(20)).content
    chance = random.Random(1)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        with pytest.raises(UndecodableBody):
            from_content(bytes(damaged))
    for cut in range(len(content)):
        with pytest.raises(UndecodableBody):
            from_content(content[:cut])


@pytest.mark.parametrize("seed", range(20))
def test_packing_changes_nothing_in_a_set(seed: int) -> None:
    chance = random.Random(seed)
    plain, packed = a_set(depth=2), a_set(depth=2)
    for number in range(1, 200):
        one = sample(number, chance.choice("ab"), key=chance.choice("xyz"), is_delete=chance.random() < 0.2)
        assert plain.add(one) == packed.add(one)
        packed.pack_idle(number, 0.0, samples_max=chance.randrange(4))
        if chance.random() < 0.05:
            deletion = Deletion(chance.choice("ab"), number - chance.randrange(20))
            gone = plain.delete(deletion), packed.delete(deletion)
            assert sorted(gone[0] or []) == sorted(gone[1] or [])
        if chance.random() < 0.1:
            bucket = chance.randrange(BUCKETS)
            assert sorted(plain.sweep(bucket, number - 50)) == sorted(packed.sweep(bucket, number - 50))
    assert sorted(plain) == sorted(packed)
    assert (plain.digest, plain.digests(), plain.count) == (packed.digest, packed.digests(), packed.count)
    for number in range(BUCKETS):
        assert sorted(unpack(packed.batch(number))) == sorted(
            one for kept in plain.bucket(number).values() for one in kept
        )


def test_only_an_empty_bucket_of_which_nothing_was_deleted_is_taken_over() -> None:
    batches = pack_buckets(some(40), BUCKETS)
    taken = a_set()
    assert all(taken.adopt(number, batch) for number, batch in batches.items())
    assert not any(taken.adopt(number, batch) for number, batch in batches.items())
    one_by_one = a_set()
    for one in some(40):
        one_by_one.add(one)
    assert (taken.digest, taken.count, taken.newest) == (one_by_one.digest, one_by_one.count, one_by_one.newest)
    deleted = a_set()
    deleted.delete(Deletion("topic/1", 5))
    assert not deleted.adopt(0, batches[0])
    assert deleted.adopt(1, EMPTY)
