"""What a Spark session is configured with, without starting one."""

from __future__ import annotations

import pytest

from pubsub_api.config import new_conf
from spark_pipeline.config import GROUP, OPTIONS
from spark_pipeline.sessions.session import decisive_line, local_cores, session_options, spark_options

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


def test_what_spark_submit_was_told_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = new_conf()
    conf.register_opts(OPTIONS, group=GROUP)
    told = {
        "spark.master": "spark://h:1", "spark.executor.memory": "7g", "spark.sql.shuffle.partitions": "77",
        "spark.sql.session.timeZone": "Asia/Tokyo", "spark.app.name": "mine", "spark.driver.extraJavaOptions": "-Da=b",
    }  # fmt: skip
    options = session_options(conf, app_name="ours", master="local[2]", submitted=told)
    assert not options.keys() & told.keys()
    assert options["spark.driver.memory"] == "2g"
    assert MANAGER not in options, "the master is a cluster"
    monkeypatch.setattr("sys.argv", ["/somewhere/heliograph/__main__.py"])
    unnamed = told | {"spark.app.name": "__main__.py"}
    assert session_options(conf, app_name="ours", master="local[2]", submitted=unnamed)["spark.app.name"] == "ours"


def test_a_session_of_our_own_writes_errors_only_and_keeps_the_options_of_the_user() -> None:
    conf = new_conf()
    conf.register_opts(OPTIONS, group=GROUP)
    java = "spark.driver.extraJavaOptions"
    conf.set_override("options", {java: "-Da=b"}, group=GROUP)
    options = session_options(conf, app_name="ours", master="local[2]", submitted={})
    assert options["spark.master"] == "local[2]"
    assert options[java].startswith("-Dlog4j2.configurationFile=file:///")
    assert options[java].endswith(" -Da=b")
    assert "spark.log.level" not in options
    conf.set_override("options", {java: "-Dlog4j2.configurationFile=mine"}, group=GROUP)
    options = session_options(conf, app_name="ours", master="local[2]", submitted={})
    assert (options[java], options["spark.log.level"]) == ("-Dlog4j2.configurationFile=mine", "ERROR")
