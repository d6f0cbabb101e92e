"""The jobs on a real cluster, submitted as a user does, with a worker killed in the middle: the same results."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pyspark
import pytest

import durable_log
import heliograph.__main__
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from spark_pipeline.jobs.snapshot import read_objects
from spark_pipeline.sessions.java import find_java
from tests.helpers.s3_server import BUCKET, S3Server
from tests.helpers.servers_db import PostgresServer
from tests.helpers.waiting import wait_until
from tests.spark.cluster import SparkCluster, can_hide_directories
from tests.spark.conftest import log_frame

TOPICS = [f"tenant-{number}/port" for number in range(8)]


def run(cluster: SparkCluster, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "heliograph", "pipeline", *arguments, "--master", cluster.url, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def submit(cluster: SparkCluster, *arguments: str) -> subprocess.Popen[bytes]:
    """The same through ``spark-submit``."""
    program = [str(heliograph.__main__.__file__), "pipeline", *arguments, "--json"]
    return spark_submit("--master", cluster.url, "--executor-memory", "512m", *program)


def spark_submit(*arguments: str) -> subprocess.Popen[bytes]:
    home = os.path.dirname(pyspark.__file__)
    return subprocess.Popen(
        [os.path.join(home, "bin", "spark-submit"), "--conf", "spark.driver.host=127.0.0.1", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {
            "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        },
    )  # fmt: skip


def finish(process: subprocess.Popen[bytes]) -> dict[str, object]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode(errors="replace")[-3000:]
    return dict(json.loads(out.splitlines()[-1]))


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_worker_killed_in_the_middle_changes_no_result(log_url: str, tmp_path: pathlib.Path) -> None:
    with contextlib.closing(durable_log.open(log_url)) as log:
        for start in range(1, 5001, 500):
            log.append([log_frame(topic, first=start, count=500) for topic in TOPICS])
    config = tmp_path / "spark.conf"
    config.write_text("[spark]\noptions = spark.executor.memory:512m\n")
    with SparkCluster(tmp_path, workers=2) as cluster:
        lake = str(tmp_path / "lake")
        common = ("--config-file", str(config))
        ingesting = run(cluster, "ingest", "--log", log_url, "--lake", lake, "--commit-events", "10000", *common)
        wait_until(lambda: list(pathlib.Path(lake).glob("_delta_log/*1.json")) != [], 200, "the first commit")
        cluster.kill_worker(0)
        finish(ingesting)
        snapshot = str(tmp_path / "snapshot")
        manifest = finish(run(cluster, "compact", "--lake", lake, "--out", snapshot, *common))
        report = finish(submit(cluster, "audit", "--lake", lake, *common))
    assert manifest["objects"] == 5000
    assert {one.key for one in read_objects(snapshot)} == {f"p{number}" for number in range(1, 5001)}
    assert report["ranges"] == []
    assert sum(one["events"] for one in report["streams"]) == 40_000  # type: ignore[attr-defined]


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.skipif(not can_hide_directories(), reason="needs unshare, and a system that lets users mount")
def test_workers_need_no_disk_of_the_driver(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log in a database with its segments in an object store, everything else there too: nothing is shared."""
    config, hidden = tmp_path / "spark.conf", tmp_path / "driver"
    config.write_text("[spark]\noptions = spark.executor.memory:512m\n")
    hidden.mkdir()
    monkeypatch.setenv("TMPDIR", str(hidden))
    with PostgresServer() as postgres, S3Server() as s3:
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        url, bucket = f"{postgres.new_schema()}&shards=2&{s3.options(s3.new_prefix())}", f"s3://{BUCKET}"
        with contextlib.closing(durable_log.open(url)) as log:
            assert isinstance(log, SegmentedLog)
            log.append([log_frame(topic, first=1, count=500) for topic in TOPICS])
            for shard in range(2):
                Sealer(log).seal(shard)
            log.append([log_frame(topic, first=501, count=100) for topic in TOPICS])
        with SparkCluster(tmp_path, workers=2, hidden=hidden) as cluster:
            lake, common = f"{bucket}/lake", ("--config-file", str(config))
            assert finish(run(cluster, "ingest", "--log", url, "--lake", lake, *common))["events"] == 4800
            manifest = finish(run(cluster, "compact", "--lake", lake, "--out", f"{bucket}/snapshot", *common))
            report = finish(submit(cluster, "audit", "--log", url, *common))
    assert manifest["objects"] == 600
    assert sum(one["events"] for one in report["streams"]) == 4800  # type: ignore[attr-defined]
    assert report["ranges"] == []


@pytest.mark.chaos
def test_what_spark_submit_is_told_holds(tmp_path: pathlib.Path) -> None:
    told = {
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.ui.enabled": "false",
    }
    program = tmp_path / "program.py"
    program.write_text(
        "import json\n"
        "from spark_pipeline.sessions.session import open_session\n"
        "session = open_session(app_name='ours', master='local[2]')\n"
        "print(json.dumps(dict(session.sparkContext.getConf().getAll())))\n"
        "session.stop()\n"
    )
    settings = [part for key, value in told.items() for part in ("--conf", f"{key}={value}")]
    found = finish(spark_submit("--master", "local[1]", "--name", "mine", *settings, str(program)))
    assert told.items() <= found.items()
    assert (found["spark.app.name"], found["spark.master"]) == ("mine", "local[1]")
    assert "spark.python.daemon.module" in found, "what it was not told is as in any session"
