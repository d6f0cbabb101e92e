"""SIGKILL to ``heliograph pipeline ingest`` and ``replay`` at random moments, and then the same command again.

The seed is in the name of the test.  The long runs are chaos tests; a short sample of ``ingest`` always runs.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import time
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

import durable_log
import pubsub_api
from heliograph.main import main
from spark_pipeline.lake import LakeTable
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import wait_until
from tests.spark.conftest import log_frame
from tests.spark.processes import KillableJob, wheel_java
from tests.spark.small_java import SMALL_JAVA

pytestmark = pytest.mark.usefixtures("one_session")

TOPICS = [f"tenant-{number}/port" for number in range(5)]
EVENTS = 600
"""Of each topic."""
LONGEST_S = 1.5
REPLAY_S = 20.0
"""How long a replay takes that nobody kills: long enough to be killed in the middle."""


def expected() -> list[tuple[str, int]]:
    return [(topic, version) for topic in TOPICS for version in range(1, EVENTS + 1)]


@pytest.fixture
def filled(log_url: str) -> str:
    with contextlib.closing(durable_log.open(log_url)) as log:
        log.append([log_frame(topic, first=first, count=20) for first in range(1, EVENTS, 20) for topic in TOPICS])
    return log_url


def kill_and_repeat(
    command: list[str], directory: pathlib.Path, steps: Callable[[], int], chance: random.Random, *, kills: int
) -> None:
    """Start a command and kill it at a random moment after it has made a step, several times; then let it come to its
    end, in the session of the tests."""
    whole = ["heliograph", "pipeline", *command, "--master", "local[2]"]
    environment = wheel_java() | {"JDK_JAVA_OPTIONS": SMALL_JAVA}
    with KillableJob(whole, directory / "job.log", environment) as job:
        for _ in range(kills):
            before = steps()
            job.start()
            job.wait_for(lambda at=before: steps() > at or not job.is_running(), "a step")  # type: ignore[misc]
            moment = time.monotonic() + chance.uniform(0, LONGEST_S)
            wait_until(lambda at=moment: time.monotonic() >= at, 60, "the moment")  # type: ignore[misc]
            job.kill()
    said = (directory / "job.log").read_text(errors="replace")
    assert " WARN " not in said, "a command starts quietly"
    assert "log level" not in said
    assert main(["pipeline", *command]) == 0


@pytest.mark.parametrize(
    ("kills", "seed"), [(1, 0), *(pytest.param(4, seed, marks=pytest.mark.chaos) for seed in range(1, 4))]
)
def test_an_ingest_that_was_killed_has_every_event_once(
    spark: SparkSession, filled: str, tmp_path: pathlib.Path, kills: int, seed: int
) -> None:
    lake = tmp_path / "lake"
    kill_and_repeat(
        ["ingest", "--log", filled, "--lake", str(lake), "--commit-events", "150"],
        tmp_path, lambda: len(list(lake.glob("_delta_log/*.json"))), random.Random(seed), kills=kills,
    )  # fmt: skip
    rows = LakeTable(lake).read(spark).select("topic", "version").collect()
    assert sorted((row["topic"], row["version"]) for row in rows) == expected()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_that_was_killed_misses_nothing_and_turns_no_object_back(
    filled: str, tmp_path: pathlib.Path, seed: int
) -> None:
    """On a bus whose server has what was flushed, so that nothing is lost with the process that sent it."""
    received: list[pubsub_api.Event] = []
    place = tmp_path / "place.json"

    def reached() -> int:
        return int(json.loads(place.read_bytes())["timestamp"]) if place.exists() else 0

    with RedisServer() as server, pubsub_api.open(server.address) as session:
        subscriber = session.subscriber(["#"], received.append)
        subscriber.wait_ready(timeout_s=60)
        command = ["replay", "--log", filled, "--bus", server.address, "--progress-file", str(place)]
        command += ["--speed", str(EVENTS / 1e9 / REPLAY_S)]
        kill_and_repeat(command, tmp_path, reached, random.Random(seed), kills=3)
        wait_until(lambda: {one.version for one in received if one.topic == TOPICS[-1]} >= {EVENTS}, 60, "the last one")
    for topic in TOPICS:
        versions = [one.version for one in received if one.topic == topic]
        assert list(dict.fromkeys(versions)) == list(range(1, EVENTS + 1)), f"{topic}: each one first in its turn"
