"""Lakes, snapshots and checkpoints in an object store: the same jobs, and nothing on a disk that is shared."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession

import durable_log
from heliograph.main import main
from pubsub_api.errors import UsageError
from spark_pipeline.errors import LakeConflict, PipelineError
from spark_pipeline.jobs import stream_heads as heads
from spark_pipeline.jobs.ingest import ingest
from spark_pipeline.jobs.snapshot import read_rows
from spark_pipeline.lake import LakeTable
from spark_pipeline.objects import ObjectDirectory
from spark_pipeline.reading.checkpoints import batch_mark
from spark_pipeline.reading.whole_log import read_log
from tests.helpers.s3_server import BUCKET, S3Server
from tests.spark.conftest import log_frame


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


@pytest.fixture
def bucket(
    server: S3Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """A place of its own for each test, which this process and the workers of Spark can reach."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
        if "spark" in request.fixturenames:
            environment: dict[str, Any] = request.getfixturevalue("spark").sparkContext.environment
            monkeypatch.setitem(environment, name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


def fill(url: str, *, first: int, count: int) -> None:
    with contextlib.closing(durable_log.open(url)) as log:
        log.append([log_frame(topic, first=first, count=count) for topic in ("a/port", "b/port")])


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What a command of the pipeline, which must do well, says as JSON in its last line."""
    code = main(["pipeline", *arguments, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return dict(json.loads(captured.out.splitlines()[-1]))


def test_jobs_work_on_objects_as_on_files(
    spark: SparkSession, one_session: None, bucket: str, log_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = f"{bucket}/events"
    fill(log_url, first=1, count=30)
    assert said(capsys, "ingest", "--log", log_url, "--lake", lake)["events"] == 60
    fill(log_url, first=31, count=10)
    assert said(capsys, "ingest", "--log", log_url, "--lake", lake)["events"] == 20
    taken = [(row["topic"], row["seq"]) for row in LakeTable(lake).read(spark).collect()]
    assert sorted(taken) == [(topic, number) for topic in ("a/port", "b/port") for number in range(1, 41)]
    files = deltalake.DeltaTable(lake).get_add_actions(flatten=True)
    assert (min(files.column("min.seq").to_pylist()), max(files.column("max.seq").to_pylist())) == (1, 40)
    expected = heads.expect(heads.beside(LakeTable(lake).place), ["#"])
    assert {topic: known.last for (_, topic), known in expected.items()} == {"a/port": 40, "b/port": 40}

    out = f"{bucket}/snapshot"
    assert said(capsys, "compact", "--lake", lake, "--out", out)["objects"] == 40
    assert main(["pipeline", "compact", "--lake", lake, "--out", out]) == 2
    assert "exists already" in capsys.readouterr().err
    sides = ("--local", out, "--remote", lake, "--out", f"{bucket}/both")
    assert said(capsys, "merge", "MERGE", *sides)["written"] is True
    assert read_rows(spark, f"{bucket}/both").count() == 80, "the last of each key of each topic"
    with pytest.raises(PipelineError, match="neither a table nor a finished set"):
        read_rows(spark, f"{bucket}/nothing")


def test_of_two_ingests_into_a_store_one_wins_and_an_answer_that_was_lost_is_looked_for(
    spark: SparkSession, bucket: str, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log_url, first=1, count=5)
    table = LakeTable(f"{bucket}/events")
    version = table.current()
    assert sum(one.events for one in ingest(spark, log_url, table, events_max=100)) == 10
    files = set(ObjectDirectory(f"{bucket}/events", "a lake").names())
    with pytest.raises(LakeConflict, match="another job committed"):
        version.append(read_log(spark, log_url), "another", {0: 5}, {})
    assert set(ObjectDirectory(f"{bucket}/events", "a lake").names()) == files, "what was refused is removed"

    fill(log_url, first=6, count=5)
    commit = deltalake.DeltaTable.create_write_transaction

    def commit_and_lose_the_answer(*args: Any, **kwargs: Any) -> None:
        commit(*args, **kwargs)
        raise OSError("the answer was lost")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", commit_and_lose_the_answer)
    assert sum(one.events for one in ingest(spark, log_url, table, events_max=100)) == 10
    monkeypatch.undo()


def test_a_directory_of_objects_keeps_what_is_there(bucket: str) -> None:
    place = ObjectDirectory(f"{bucket}/set/", "a set")
    place.create("manifest.json", b"1")
    place.create("manifest.json", b"1")  # as after a lost answer
    with pytest.raises(UsageError, match="manifest.json exists already"):
        place.create("manifest.json", b"2")
    place.put("objects/a", b"a")
    assert (place.names(), place.children()) == (["manifest.json", "objects/a"], ["manifest.json", "objects"])
    assert (place.read("objects/a"), place.read("objects/b")) == (b"a", None)
    place.remove(["objects/a", "objects/b"])
    assert place.names() == ["manifest.json"]


def test_a_batch_of_a_checkpoint_in_a_store_has_a_mark(bucket: str, tmp_path: pathlib.Path) -> None:
    ObjectDirectory(bucket, "a checkpoint").put("offsets/3", b"planned")
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/3").write_bytes(b"planned")
    for checkpoint in (bucket, bucket.replace("s3:", "s3a:"), f"file://{tmp_path}"):
        assert batch_mark(checkpoint, 3) == batch_mark(str(tmp_path), 3) != ""
    assert batch_mark(bucket, 4) == batch_mark("hdfs://host/checkpoint", 3) == ""


@pytest.mark.usefixtures("bucket")
def test_a_store_that_refuses_or_is_of_another_kind_is_told() -> None:
    for url in ("hdfs://host/lake", "ftp://host/lake"):
        with pytest.raises(UsageError, match="other places are not supported"):
            LakeTable(url)
    with pytest.raises(PipelineError, match="table s3://no-such-bucket/lake: "):
        LakeTable("s3://no-such-bucket/lake").check_exists()
    with pytest.raises(PipelineError, match="cannot list s3://no-such-bucket/lake: "):
        ObjectDirectory("s3://no-such-bucket/lake", "a lake").names()
