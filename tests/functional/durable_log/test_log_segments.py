"""Other programs read sealed segments natively, and see the events that the log has."""

from __future__ import annotations

import contextlib
import pathlib
import resource
from collections.abc import Iterator

import msgspec
import pytest

import durable_log
from durable_log.segments.columns import EVENT_COLUMNS
from durable_log.segments.files import ROW_GROUP_EVENTS
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source, event_of, read_frames

FRAMES, EVENTS = 60, 2000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SegmentedLog]:
    """A shard of two segments, the larger one of two row groups."""
    directory: pathlib.Path = tmp_path_factory.mktemp("log")
    with contextlib.closing(durable_log.open(f"sqlite://{directory}/log.db?shards=1&seal_events=20000")) as log:
        assert isinstance(log, SegmentedLog)
        source = Source()
        log.append([source.frame("t/a" if number % 2 else "t/b", EVENTS) for number in range(FRAMES)])
        Sealer(log).seal(0)
        yield log


@pytest.fixture
def files(log: SegmentedLog) -> list[str]:
    return [segment.path for segment in log.segments()]


def test_pyarrow_reads_them(log: SegmentedLog, files: list[str]) -> None:
    import pyarrow.parquet

    tables = [pyarrow.parquet.read_table(path) for path in files]
    assert [table.num_rows for table in tables] == [segment.rows for segment in log.segments()] == [100_000, 20_000]
    assert pyarrow.parquet.read_metadata(files[0]).num_row_groups == -(-100_000 // ROW_GROUP_EVENTS)
    row = tables[1].slice(5, 1).to_pylist()[0]
    event = event_of(row["topic"], row["seq"])
    assert (row["table"], row["key"], row["action"], row["version"]) == (
        event.table, event.key, event.action, event.version,
    )  # fmt: skip
    assert msgspec.msgpack.decode(row["value"]) == event.value
    assert list(tables[0].schema.names)[: len(EVENT_COLUMNS)] == list(EVENT_COLUMNS)


def test_duckdb_reads_them(files: list[str]) -> None:
    import duckdb

    query = (
        'SELECT topic, count(*), min("offset"), max("offset"), max(seq) FROM read_parquet(?) GROUP BY topic ORDER BY 1'
    )
    found = duckdb.execute(query, [files]).fetchall()
    half = FRAMES * EVENTS // 2
    assert found == [("t/a", half, EVENTS, 119_999, half), ("t/b", half, 0, 117_999, half)]


def test_polars_reads_them(files: list[str]) -> None:
    import polars

    found = polars.scan_parquet(files).select(polars.len(), polars.col("version").sum()).collect().row(0)
    half = FRAMES * EVENTS // 2
    assert found == (2 * half, half * (half + 1))


def test_a_read_may_begin_anywhere(log: SegmentedLog) -> None:
    for offset in (0, ROW_GROUP_EVENTS - 1, ROW_GROUP_EVENTS, 99_999, 100_000, 119_999):
        first = log.read(0, offset, events_max=1)[0]
        assert first.offset == offset // EVENTS * EVENTS
    assert [one.count for one in read_frames(log, 0, 95_000)] == [EVENTS] * 13


def test_a_range_of_columns_may_cross_everything(log: SegmentedLog) -> None:
    log.append([Source().frame("t/c", 10)])
    batches = list(durable_log.arrow_batches(log, 0, 60_001, 120_005, columns=["offset"]))
    assert len(batches) > 3
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == list(range(60_001, 120_005))


def test_a_segment_for_which_there_is_no_room_is_told_and_its_events_stay(tmp_path: pathlib.Path) -> None:
    with contextlib.closing(durable_log.open(f"sqlite://{tmp_path}/log.db?shards=1")) as log:
        assert isinstance(log, SegmentedLog)
        log.append([Source().frame("t", 1000)])
        sealer, limits = Sealer(log), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(durable_log.LogError, match="cannot be written"):
                sealer.seal(0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(pathlib.Path(log.segment_store.place).glob("*/.*")) == []
        assert len(sealer.seal(0)) == 1
        assert sum(one.count for one in log.read(0, 0)) == 1000
