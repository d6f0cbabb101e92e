"""What retention by topic drops before a stream reads it is told, as what other retention drops is.  No session."""

from __future__ import annotations

import json
import pathlib

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import durable_log
from durable_log.segments.compaction import SegmentCompactor
from durable_log.segments.sealing import Sealer
from durable_log.segments.topic_retention import TopicAges, TopicRetention
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source
from spark_pipeline.jobs.ingest import _next_step
from spark_pipeline.lake import LakeTable
from spark_pipeline.reading.columns import ReadColumns
from spark_pipeline.reading.options import SourceOptions
from spark_pipeline.reading.source import LogStreamReader
from tests.helpers.logs import opened


def reader(url: str, **options: str) -> LogStreamReader:
    return LogStreamReader(SourceOptions({"log": url, **options}), ReadColumns(StructType()))


def drop_metrics(log: SegmentedLog) -> None:
    """Seal everything, and drop the topic ``metrics`` from it."""
    sealer = Sealer(log)
    sealer.seal(0)
    retention = TopicRetention(log, sealer, SegmentCompactor(log, sealer), TopicAges(["metrics=0.000001"], 0.0))
    retention.drop(0, log.now_ns())


def test_a_stream_is_told_what_was_dropped_since_it_began(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        log.append([source.frame("audit", 2), source.frame("metrics", 3)])
        early, other = reader(url), reader(url, topics="audit")
        begun, elsewhere = early.initialOffset(), other.initialOffset()
        drop_metrics(log)
        late = reader(url)
        assert "lost" not in late.latestOffset(late.initialOffset(), ReadAllAvailable()), "gone when it began"
        assert "lost" not in other.latestOffset(elsewhere, ReadAllAvailable()), "none of its topics"
        with pytest.raises(durable_log.OffsetTooOld, match=r"up to 3 events of metrics at offsets 2 to 4 .*failOnData"):
            early.latestOffset(begun, ReadAllAvailable())
        lossy = reader(url, failOnDataLoss="false")
        until = lossy.latestOffset(begun, ReadAllAvailable())
        assert (until["0"], until["lost"]) == (5, 3)
        assert json.loads(json.dumps(until)) == until
        assert lossy.latestOffset(until, ReadAllAvailable()) == until
        log.append([source.frame("audit", 2), source.frame("metrics", 3)])
        planned = early.latestOffset(until, ReadAllAvailable())
        assert (planned["0"], planned["lost"]) == (10, 3), "told once"
        drop_metrics(log)
        with pytest.raises(durable_log.OffsetTooOld, match="up to 3 events of metrics at offsets 7 to 9"):
            early.partitions(until, planned)
        assert lossy.partitions(until, planned)
        version = LakeTable(str(tmp_path / "lake")).current()
        step = _next_step(log, version, {0: 10}, 100)
        assert step is not None
        assert step.lost == 6, "ingest is told, too"


def test_a_checkpoint_that_does_not_say_when_it_began_goes_on(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        log.append([source.frame("audit", 2), source.frame("metrics", 3)])
        stream = reader(url)
        begun = stream.initialOffset()
        del begun["since"]
        drop_metrics(log)
        assert stream.latestOffset(begun, ReadAllAvailable())["since"] > 0
