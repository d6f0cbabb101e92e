"""Compaction: the newest change of every object, whatever the order of the rows."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_pipeline.errors import SchemaMismatch
from spark_pipeline.jobs.compact import compact, count_objects
from spark_pipeline.schema import AGE_ORDER, EVENT_COLUMNS, OBJECT
from tests.spark.conftest import event_row, frame_of, plain_rows

NAMES = list(EVENT_COLUMNS)


def column(row: Any, name: str) -> Any:
    return row[NAMES.index(name)]


def reference(rows: list[tuple[Any, ...]], tombstones_from_ns: int | None) -> set[tuple[Any, ...]]:
    """The same in plain Python."""
    newest: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows:
        name = tuple(column(row, part) for part in OBJECT)
        age = [column(row, part) for part in AGE_ORDER]
        if name not in newest or [column(newest[name], part) for part in AGE_ORDER] < age:
            newest[name] = row
    return {
        row
        for row in newest.values()
        if column(row, "action") != "delete"
        or (tombstones_from_ns is not None and column(row, "timestamp") >= tombstones_from_ns)
    }


def changes(seed: int, count: int) -> list[tuple[Any, ...]]:
    """Few objects, few versions and few timestamps, so that ties of every kind are frequent."""
    chance = random.Random(seed)
    return [
        event_row(
            offset=number,
            guid=bytes([chance.randrange(3)]) * 16,
            seq=number,
            key=f"p{chance.randrange(20)}",
            table=chance.choice(["port", "net"]),
            action=chance.choice(["create", "set", "set", "delete"]),
            value=bytes([chance.randrange(128)]),
            version=chance.randrange(6),
            timestamp=1_000 + chance.randrange(3),
        )
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("tombstones_from_ns", [None, 1_001])
@pytest.mark.parametrize("keys_fit_in_memory", [False, True])
def test_the_newest_change_wins_and_ties_are_settled_the_same_way_every_time(
    spark: SparkSession, tombstones_from_ns: int | None, keys_fit_in_memory: bool
) -> None:
    rows = changes(seed=7, count=2_000)
    for order in range(2):
        random.Random(order).shuffle(rows)
        found = compact(
            frame_of(spark, rows), tombstones_from_ns=tombstones_from_ns, keys_fit_in_memory=keys_fit_in_memory
        )
        assert found.columns == NAMES
        collected = plain_rows(found)
        assert len(collected) == len(set(collected))
        assert set(collected) == reference(rows, tombstones_from_ns)


def test_a_table_of_another_shape_is_refused_by_the_name_of_the_column(spark: SparkSession) -> None:
    events = frame_of(spark, [event_row()])
    with pytest.raises(SchemaMismatch, match="'version' is missing"):
        compact(events.drop("version"))
    with pytest.raises(SchemaMismatch, match="'version' is string, and must be bigint"):
        compact(events.withColumn("version", events["version"].cast("string")))


def test_objects_are_counted_roughly(spark: SparkSession) -> None:
    events = frame_of(spark, [event_row(key=f"p{number % 100}") for number in range(500)])
    assert 80 <= count_objects(events) <= 120
