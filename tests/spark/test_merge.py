"""Merging with Spark gives what the durability service's own functions give, for every policy."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from durability_service.core.alignment import merging
from durability_service.core.sets.samples import InstanceKey, Sample, make_sample, newest_first
from spark_pipeline.jobs.merge import SnapshotMergePolicy, digest, merge, merge_if_different
from spark_pipeline.schema import EVENT_COLUMNS
from tests.spark.conftest import event_row, frame_of, plain_rows

T = 6
NAMES = list(EVENT_COLUMNS)
Instances = dict[InstanceKey, tuple[Sample, ...]]


def samples(chance: random.Random, count: int) -> list[Sample]:
    """Few instances, times, writers and numbers, so that ties, deletes and samples of both sides are frequent."""
    made = []
    for _ in range(count):
        topic, key = chance.choice("ab"), chance.choice("xyz")
        timestamp, writer, number = chance.randrange(1, 12), bytes([chance.randrange(2)]) * 16, chance.randrange(1, 40)
        # The content follows from the name, as it does for what a publisher sent.
        is_delete = number % 5 == 0
        made.append(
            make_sample(topic, "port", key, timestamp=timestamp, writer=writer, number=number, is_delete=is_delete,
                        event=bytes([number]))
        )  # fmt: skip
    return made


def kept(given: list[Sample], depth: int) -> Instances:
    found: dict[InstanceKey, list[Sample]] = {}
    for sample in given:
        found.setdefault(sample.instance, []).append(sample)
    return {instance: newest_first(tuple(of_it), depth) for instance, of_it in found.items()}


def rows_of(instances: Instances) -> list[tuple[Any, ...]]:
    return [
        event_row(
            topic=one.topic, table=one.table, key=one.key, timestamp=one.timestamp, guid=one.writer, seq=one.number,
            action="delete" if one.is_delete else "set", value=one.event,
        )
        for of_it in instances.values()
        for one in of_it
    ]  # fmt: skip


@pytest.mark.parametrize("policy", list(SnapshotMergePolicy))
def test_the_result_is_that_of_the_service(spark: SparkSession, policy: SnapshotMergePolicy) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        depth = chance.choice([1, 3])
        common = samples(chance, 10)
        local, remote = kept(common + samples(chance, 40), depth), kept(common + samples(chance, 40), depth)
        expected = dict(local)
        keep = functools.partial(newest_first, depth=depth)
        expected.update(merging.merge(merging.MergePolicy[policy.name], local, remote, T, keep))
        found = merge(policy, frame_of(spark, rows_of(local)), frame_of(spark, rows_of(remote)), t=T, depth=depth)
        assert found.columns == NAMES
        assert sorted(plain_rows(found)) == sorted(rows_of(expected)), f"seed {seed}"


def test_equal_sets_are_found_without_moving_anything(spark: SparkSession) -> None:
    rows = rows_of(kept(samples(random.Random(1), 60), depth=2))
    local = frame_of(spark, rows)
    shuffled = frame_of(spark, [row[:1] + (99,) + row[2:] for row in reversed(rows)])  # other places in another log
    assert digest(local) == digest(shuffled)
    merged, has_moved = merge_if_different(SnapshotMergePolicy.MERGE, local, shuffled, t=T)
    assert merged is local
    assert not has_moved
    different = frame_of(spark, rows[1:])
    assert digest(local) != digest(different)
    assert merge_if_different(SnapshotMergePolicy.CATCHUP, local, different, t=T)[1]
    assert digest(frame_of(spark, [])) == (0, 0, 0)
