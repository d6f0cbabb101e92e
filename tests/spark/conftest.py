"""One Spark session for all tests here: starting it costs more than all of them together."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow
from pyspark.sql import DataFrame, SparkSession

from pubsub_api.config import new_conf
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.frame import Kind
from spark_pipeline.config import GROUP, OPTIONS
from spark_pipeline.schema import EVENT_COLUMNS, EVENT_SCHEMA
from spark_pipeline.sessions.session import open_session
from spark_pipeline.writing import staged_files
from tests.spark.small_java import SMALL_JAVA

TEST_OPTIONS = {
    **{f"spark.{part}.extraJavaOptions": SMALL_JAVA for part in ("driver", "executor")},
    "spark.executor.memory": "512m",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A busy machine makes Spark slow long before it makes it wrong."""
    for item in items:
        if "tests/spark" in item.nodeid and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


def new_session(directory: pathlib.Path, *, master: str = "local[2]") -> SparkSession:
    """A small session that keeps its files in a directory."""
    conf = new_conf()
    conf.register_opts(OPTIONS, group=GROUP)
    conf.set_override("driver_memory", "1g", group=GROUP)
    places = {"spark.local.dir": str(directory), "spark.sql.warehouse.dir": str(directory / "warehouse")}
    conf.set_override("options", TEST_OPTIONS | places | {"spark.sql.shuffle.partitions": "2"}, group=GROUP)
    return open_session(conf, app_name="heliograph-tests", master=master)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that the test runs use the session of the tests, and leave it running."""
    monkeypatch.setattr("spark_pipeline.sessions.session.open_session", lambda *_, **__: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)


def event_row(**fields: Any) -> tuple[Any, ...]:
    """A row with every column of an event."""
    defaults = {
        "shard": 0, "offset": 0, "guid": b"g" * 16, "topic": "t", "seq": 1, "table": "port", "key": "p1",
        "action": "set", "value": b"\xc0", "version": 1, "timestamp": 1_000, "appended_ns": 2_000,
    }  # fmt: skip
    assert fields.keys() <= defaults.keys()
    row = defaults | fields
    return tuple(row[name] for name in EVENT_COLUMNS)


def frame_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, EVENT_SCHEMA)


def plain_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """What a DataFrame holds, comparable: Spark returns bytearrays, which cannot be hashed."""
    return [tuple(bytes(item) if isinstance(item, bytearray) else item for item in row) for row in frame.collect()]


def log_frame(topic: str, *, first: int, count: int, guid: bytes = b"g" * 16, after: int | None = None) -> bytes:
    """A frame of events as a publisher sends it: event ``n`` sets ``p<n>`` and has version ``n``.  Numbers behind
    ``after`` are skipped on purpose."""
    encoded = [
        encode_event(Event(table="port", key=f"p{number}", action="set", value={"n": number}, version=number), number)
        for number in range(first, first + count)
    ]
    return frames.pack(
        Kind.DATA, guid, topic, pack_body(encoded), first=first, after=first - 1 if after is None else after,
        count=count, timestamp=first,
    )  # fmt: skip


def stage(directory: pathlib.Path, *keys: str, action: str = "set") -> str:
    """A file as a task stages it, with a row per key."""
    return stage_rows(directory, [{"key": key, "action": action} for key in keys])


def stage_rows(directory: pathlib.Path, rows: Sequence[dict[str, Any]]) -> str:
    defaults = {"topic": "t", "table": "port", "action": "set", "value": None}
    batch = pyarrow.RecordBatch.from_pylist([defaults | row for row in rows])
    return staged_files.stage(str(directory), [batch], stamp=1, check=lambda *_: None)[0]


@pytest.fixture
def log_url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=4"
