"""Random programs of filters, unions and joins over the log, each compared with the same program in DuckDB.

All programs run over the same views, one after the other: what one of them asked for must not be felt by the next one.
The number of a program is its seed; the failing one is in the message.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import pathlib
import random
from typing import Any

import duckdb
import pyarrow
import pyarrow.compute
import pytest
from pyspark.sql import SparkSession

import durable_log
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from pubsub_api.core.topics import FilterSet
from spark_pipeline.reading.whole_log import read_log
from spark_pipeline.schema import EVENT_COLUMNS
from tests.spark.conftest import log_frame

TOPICS = ["a/port", "a/net", "b/port", "c,d/port"]
SOME = ["a/+", "c,d/port"]
SHARDS = 2
FIRST = 7
"""Where a read with a start begins, in each shard."""
VIEWS = ("everything", "whole", "of_some_topics", "of_one_topic", "from_a_place", "later", "earlier_of_some", "narrow")
COLUMNS = "shard, `offset`, topic, seq, key, version"
NARROW = "version, key, seq, topic, offset, shard"
"""No other columns are read."""
PROGRAMS = 300
SAMPLE = 10


def fill(url: str) -> pyarrow.Table:
    """A log that is sealed in part, with a body that cannot be decoded, and what is in it."""
    unreadable = frames.pack(Kind.DATA, b"x" * 16, "a/port", b"\x01", first=1, count=3, timestamp=1)
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.append([log_frame(topic, first=start, count=5) for topic in TOPICS for start in (1, 6, 11)])
        for shard in range(0, log.shards, 2):
            Sealer(log).seal(shard)
        log.append([unreadable, *(log_frame(topic, first=16, count=5) for topic in TOPICS)])
        batches = [
            batch for state in log.state() for batch in durable_log.arrow_batches(log, state.shard, 0, state.end)
        ]
    return pyarrow.Table.from_batches(batches)


def make_views(spark: SparkSession, url: str, rows: pyarrow.Table) -> duckdb.DuckDBPyConnection:
    """The views in Spark, and a DuckDB that has the same ones."""
    source = spark.read.format("heliograph").option("log", url)
    moment_us = sorted(rows.column("appended_ns").unique().to_pylist())[1] // 1000
    moment = (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=moment_us)).isoformat()
    begin = json.dumps({str(shard): FIRST for shard in range(SHARDS)})
    made = {
        "everything": source.load(),
        "whole": read_log(spark, url),
        "of_some_topics": read_log(spark, url, topics=SOME),
        "of_one_topic": spark.read.format("heliograph").options(log=url, topics="b/port").load(),
        "from_a_place": spark.read.format("heliograph").options(log=url, start=begin).load(),
        "later": spark.read.format("heliograph").options(log=url, startingTimestamp=moment).load(),
        "earlier_of_some": spark.read.format("heliograph")
        .options(log=url, endingTimestamp=moment, topics=json.dumps(SOME), columns=NARROW)
        .load(),
        "narrow": spark.read.format("heliograph").options(log=url, columns=NARROW, start=begin).load(),
    }
    for name, frame in made.items():
        frame.createOrReplaceTempView(name)
    some, one = FilterSet(SOME), FilterSet(["b/port"])
    matches = [(some.match(topic), one.match(topic)) for topic in rows.column("topic").to_pylist()]
    is_later = pyarrow.compute.greater_equal(rows.column("appended_ns"), moment_us * 1000)
    of_some = pyarrow.array([match for match, _ in matches])
    of_one = pyarrow.array([match for _, match in matches])
    from_a_place = rows.filter(pyarrow.compute.greater_equal(rows.column("offset"), FIRST))
    reference = duckdb.connect()
    for name, table in {
        "everything": rows,
        "whole": rows,
        "of_some_topics": rows.filter(of_some),
        "of_one_topic": rows.filter(of_one),
        "from_a_place": from_a_place,
        "later": rows.filter(is_later),
        "earlier_of_some": rows.filter(pyarrow.compute.and_not(of_some, is_later)),
        "narrow": from_a_place,
    }.items():
        reference.register(name, table)
    return reference


def condition(chance: random.Random) -> str:
    topics = ", ".join(f"'{topic}'" for topic in chance.sample(TOPICS, 2))
    simple = [
        f"topic = '{chance.choice(TOPICS)}'",
        f"topic IN ({topics})",
        f"topic <> '{chance.choice(TOPICS)}'",
        f"topic LIKE '{chance.choice('abc')}%'",
        f"shard = {chance.randrange(SHARDS)}",
        f"shard IN ({chance.randrange(SHARDS)}, {chance.randrange(SHARDS)})",
        f"shard IS NOT NULL AND `offset` >= {chance.randrange(30)}",
        f"seq BETWEEN {chance.randrange(10)} AND {chance.randrange(10, 25)}",
        f"key = 'p{chance.randrange(1, 21)}'",
        "key IS NULL",
        f"version > {chance.randrange(20)}",
    ]
    chosen = chance.sample(simple, chance.randint(1, 3))
    joined = f" {chance.choice(['AND', 'OR'])} ".join(f"({one})" for one in chosen)
    return f"NOT ({joined})" if chance.random() < 0.2 else joined


def program(chance: random.Random, depth: int) -> str:
    """A query whose columns are always the same, so that queries can be put together."""
    if depth == 0:
        return f"SELECT {COLUMNS} FROM {chance.choice(VIEWS)}"
    one = program(chance, depth - 1)
    kind = chance.choice(["filter", "filter", "union", "intersect", "join", "semi"])
    if kind == "filter":
        return f"SELECT {COLUMNS} FROM ({one}) AS f WHERE {condition(chance)}"
    other = program(chance, chance.randrange(depth))
    if kind == "union":
        return f"SELECT {COLUMNS} FROM (({one}) UNION ALL ({other})) AS u"
    if kind == "intersect":
        return f"SELECT {COLUMNS} FROM (({one}) {chance.choice(['INTERSECT', 'EXCEPT'])} ({other})) AS i"
    if kind == "semi":
        word = chance.choice(["IN", "NOT IN"])
        return f"SELECT {COLUMNS} FROM ({one}) AS s WHERE seq {word} (SELECT seq FROM ({other}) AS t)"
    columns = ", ".join(f"l.{name.strip()}" for name in COLUMNS.split(","))
    how = chance.choice(["JOIN", "LEFT JOIN"])
    on = chance.choice(["l.topic = r.topic AND l.seq = r.seq", "l.key = r.key", "l.shard = r.shard AND l.seq = r.seq"])
    return f"SELECT {columns} FROM ({one}) AS l {how} ({other}) AS r ON {on}"


def in_order(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


def check(spark: SparkSession, reference: duckdb.DuckDBPyConnection, seed: int) -> None:
    chance = random.Random(seed)
    compare(spark, reference, program(chance, chance.randint(1, 3) if seed >= SAMPLE else 1 + seed % 2), seed)


def compare(spark: SparkSession, reference: duckdb.DuckDBPyConnection, text: str, seed: int) -> None:
    wanted = in_order(reference.execute(text.replace("`", '"')).fetchall())
    assert in_order(spark.sql(text).collect()) == wanted, f"program {seed}: {text}"


@pytest.mark.parametrize("seeds", [range(SAMPLE), pytest.param(range(PROGRAMS), marks=pytest.mark.chaos)], ids=len)
def test_a_program_over_the_log_gives_what_duckdb_gives(
    spark: SparkSession, tmp_path: pathlib.Path, seeds: range
) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards={SHARDS}"
    rows = fill(url)
    assert set(rows.column_names) == set(EVENT_COLUMNS)
    reference = make_views(spark, url, rows)
    for name in ("later", "earlier_of_some", "narrow"):  # chance may leave them out
        compare(spark, reference, f"SELECT {COLUMNS} FROM {name}", -1)
    for seed in seeds:
        check(spark, reference, seed)


def test_a_filter_of_one_query_is_not_felt_by_the_next(spark: SparkSession, log_url: str) -> None:
    everything = len(fill(log_url))
    events = spark.read.format("heliograph").option("log", log_url).load()
    assert events.count() == everything
    of_one = events.where("topic = 'b/port'")
    assert of_one.count() == 20
    assert events.where("shard = 0").union(of_one).count() == of_one.count() + events.where("shard = 0").count()
    assert events.count() == everything
