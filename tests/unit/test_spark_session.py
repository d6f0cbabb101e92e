"""What a Spark session is configured with, without starting one."""

from __future__ import annotations

import pytest

from pubsub_api.config import new_conf
from spark_pipeline.config import GROUP, OPTIONS
from spark_pipeline.session import decisive_line, local_cores, spark_options

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def test_checkpoints_on_a_local_disk_are_written_by_the_manager_that_starts_fewer_processes() -> None:
    conf = new_conf()
    conf.register_opts(OPTIONS, group=GROUP)
    assert "FileSystemBased" in spark_options(conf, "local[2]")[MANAGER]
    assert MANAGER not in spark_options(conf, "spark://127.0.0.1:7077"), "a cluster has a file system of its own"
    assert "spark.python.daemon.module" not in spark_options(conf, "yarn"), "its workers may be without this package"
    conf.set_override("options", {MANAGER: "mine"}, group=GROUP)
    assert spark_options(conf, "local[*]")[MANAGER] == "mine"


@pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("spark://h:1", 2)])
def test_the_cores_of_a_master(master: str, cores: int) -> None:
    assert local_cores(master) == cores


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("one line", "one line"),
        ("Job aborted\ndurable_log.errors.LogCorrupt: shard 1: gone\n\tat java.Foo", "LogCorrupt: shard 1: gone"),
        ("first\npubsub_api.core.errors.UnsupportedVersion: wire version 9\n", "UnsupportedVersion: wire version 9"),
    ],
)
def test_of_an_error_of_spark_the_line_is_shown_that_says_what_it_was(message: str, shown: str) -> None:
    assert decisive_line(message) == shown
