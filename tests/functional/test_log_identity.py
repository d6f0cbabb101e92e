"""Sealed data that the manifest does not list is never deleted: the directory says whose it is, and is refused."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Iterator

import msgspec
import pytest

import durable_log
from durable_log.maintenance import Maintainer
from durable_log.sealing import Sealer
from durable_log.segmented import SegmentedLog
from durable_log.testing.sources import Source, read_frames
from pubsub_api.errors import InvalidConfig
from tests.servers import RedisServer

TOPIC = "t"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@contextlib.contextmanager
def opened(url: str) -> Iterator[SegmentedLog]:
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        yield log


def files(directory: pathlib.Path) -> set[str]:
    return {str(path) for path in directory.glob("*/*.parquet")}


def maintain(log: SegmentedLog) -> None:
    with Maintainer(log) as maintainer:
        maintainer.run_once()


def test_a_redis_that_comes_back_empty_does_not_get_the_segments(server: RedisServer, tmp_path: pathlib.Path) -> None:
    url = f"{server.address}?shards=1&key_prefix=empty:&segment_directory={tmp_path}"
    with opened(url) as log:
        log.append([Source().frame(TOPIC, 50)])
        Sealer(log).seal(0)
        before, identity = files(tmp_path), log.identity
        with server.client() as client:
            client.flushall()
        with pytest.raises(durable_log.LogReplaced):
            maintain(log)
    with pytest.raises(durable_log.SegmentsRefused, match="heliograph log repair") as caught:
        durable_log.open(url)
    assert caught.value.found == identity
    assert caught.value.identity != identity
    assert identity in str(caught.value)
    assert caught.value.identity in str(caught.value)
    assert files(tmp_path) == before != set()


def test_an_older_store_does_not_get_the_segments_of_a_newer_one(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        log.append([source.frame(TOPIC, 50)])
        Sealer(log).seal(0)
    shutil.copy(tmp_path / "log.db", tmp_path / "backup")
    with opened(url) as log:
        log.append([source.frame(TOPIC, 50)])
        Sealer(log).seal(0)
        before = files(log.directory)
    assert len(before) == 2
    shutil.copy(tmp_path / "backup", tmp_path / "log.db")
    with pytest.raises(durable_log.SegmentsRefused, match="later state .* up to offset 100 .* ends at 50"):
        durable_log.open(url)
    assert files(tmp_path / "log.db-segments") == before


def test_a_store_that_is_older_and_has_all_events_goes_on(tmp_path: pathlib.Path) -> None:
    """What was sealed later is hot in it.  The file that it does not know stays."""
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        log.append([source.frame(TOPIC, 50)])
    shutil.copy(tmp_path / "log.db", tmp_path / "backup")
    with opened(url) as log:
        [first] = Sealer(log).seal(0)
    shutil.copy(tmp_path / "backup", tmp_path / "log.db")
    with opened(url) as log:
        log.append([source.frame(TOPIC, 50)])
        maintain(log)
        Sealer(log).seal(0)
        assert sum(one.count for one in read_frames(log, 0)) == 100
        assert Sealer(log).clean() == []
        assert files(log.directory) == {first.path, *(one.path for one in log.segments())}


@pytest.mark.parametrize("is_new", [False, True])
def test_two_logs_cannot_have_one_directory(tmp_path: pathlib.Path, is_new: bool) -> None:
    first_url, second_url = (f"sqlite://{tmp_path}/{n}.db?shards=1&segment_directory={tmp_path}/s" for n in "ab")
    with opened(first_url) as first, opened(second_url) as second:
        for log in (first, second):
            log.append([Source().frame(TOPIC, 50)])
        Sealer(first).seal(0)
        if is_new:
            (tmp_path / "s" / ".log.json").unlink()
        before = files(tmp_path / "s")
        for call in (lambda: Sealer(second).seal(0), lambda: Sealer(second).clean(), lambda: maintain(second)):
            with pytest.raises(
                durable_log.SegmentsRefused, match=f"{first.identity[:8]}.* this is the log {second.identity}"
            ):
                call()
        with pytest.raises(durable_log.SegmentsRefused):
            durable_log.open(second_url)
        assert files(tmp_path / "s") == before
        assert len(Sealer(first).clean()) == 0
        assert len(read_frames(first, 0)) == len(read_frames(second, 0)) == 1


def test_a_mark_that_cannot_be_read_is_named(tmp_path: pathlib.Path) -> None:
    with opened(f"sqlite://{tmp_path}/log.db?shards=1") as log:
        log.append([Source().frame(TOPIC, 5)])
        Sealer(log).seal(0)
        (log.directory / ".log.json").write_bytes(b"{")
        with pytest.raises(durable_log.LogCorrupt, match="whose segments these are"):
            Sealer(log).clean()


@pytest.mark.parametrize("place", ["s3://bucket/log", "hdfs://host/log", "file:///tmp/log"])
def test_a_url_is_no_directory_of_segments(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig, match="segment_directory"):
        durable_log.open(f"sqlite://{tmp_path}/log.db?segment_directory={place}")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    "damage", ['{"shard"', "[]", '{"shard": "zero"}', '{"shard": 0, "first": 0}', "first+1", "type", "path"]
)
def test_a_damaged_manifest_entry_is_named(tmp_path: pathlib.Path, damage: str) -> None:
    import sqlite3

    with opened(f"sqlite://{tmp_path}/log.db?shards=1") as log:
        log.append([Source().frame(TOPIC, 5)])
        Sealer(log).seal(0)
        [entry] = log.manifest(0)
        fields = msgspec.json.decode(entry)
        changes = {"first+1": {"first": 1}, "type": {"rows": "five"}, "path": {"path": "../../etc/" + fields["path"]}}
        if damage in changes:
            damage = msgspec.json.encode(fields | changes[damage]).decode()
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
            connection.execute("UPDATE segments SET entry = ?", (damage,))
        for call in (log.segments, lambda: log.read(0, 0), lambda: log.trim(0, 5)):
            with pytest.raises(durable_log.LogCorrupt, match="damaged entry"):
                call()
