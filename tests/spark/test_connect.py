"""Spark Connect: a session that is a client of a server does all that other sessions do.

A process has sessions of one kind only, so this is a program of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

import durable_log
from spark_pipeline.sessions.java import find_java
from tests.spark.conftest import log_frame

for _name in ("grpc_status", "google.rpc", "zstandard"):
    pytest.importorskip(_name, reason="Spark Connect is not installed")

_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from spark_pipeline.jobs.ingest import ingest
from spark_pipeline.jobs.report import audit_report
from spark_pipeline.jobs.snapshot import write_snapshot
from spark_pipeline.lake import LakeTable
from spark_pipeline.reading.lag import lag_of
from spark_pipeline.sessions.session import open_session

log, directory = sys.argv[1:]
theirs = SparkSession.builder.remote("local[2]").getOrCreate()
session = open_session(app_name="ours")
source = session.readStream.format("heliograph").option("log", log).load()
writer = source.writeStream.format("parquet").option("checkpointLocation", directory + "/checkpoint")
query = writer.trigger(availableNow=True).start(directory + "/rows")
query.awaitTermination()
table = LakeTable(directory + "/lake")
taken = sum(one.events for one in ingest(session, log, table, events_max=1000))
events = table.read(session)
print(json.dumps({
    "same": session is theirs,
    "streamed": session.read.parquet(directory + "/rows").count(),
    "lag": lag_of(query.lastProgress),
    "taken": taken,
    "clean": audit_report(events).is_clean,
    "objects": write_snapshot(events, directory + "/snapshot").objects,
}))
session.stop()
"""


@pytest.mark.chaos
def test_a_session_of_spark_connect_reads_streams_and_runs_the_jobs(log_url: str, tmp_path: pathlib.Path) -> None:
    with contextlib.closing(durable_log.open(log_url)) as log:
        log.append([log_frame(topic, first=1, count=30) for topic in ("a/port", "b/port")])
    environment = os.environ | {
        "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, log_url, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "same": True, "streamed": 60, "lag": [0, 0], "taken": 60, "clean": True, "objects": 30,
    }  # fmt: skip
