"""How Python processes of Spark start: from compiled modules, and forked with what they need, while that is safe."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

from spark_pipeline.sessions import spark_home

PROBE = """
import os, sys
from spark_pipeline.sessions import daemon
daemon.preload()
print(len(os.listdir("/proc/self/task")), "pyarrow" in sys.modules, "spark_pipeline.reading.partitions" in sys.modules)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path / "cache"


def test_a_linked_home_has_the_programs_and_jars_of_the_package_and_no_archive(
    tmp_path: pathlib.Path, cache: pathlib.Path
) -> None:
    package = tmp_path / "pyspark"
    for name in ("bin", "jars", "python/lib"):
        (package / name).mkdir(parents=True)
    home = spark_home.linked_home(package)
    assert home is not None
    assert home.is_relative_to(cache)
    assert {entry.name: entry.readlink() for entry in home.iterdir()} == {
        name: package / name for name in ("bin", "jars")
    }
    before = (home / "jars").lstat().st_mtime_ns
    assert spark_home.linked_home(package) == home
    assert (home / "jars").lstat().st_mtime_ns == before, "made once, used again"


def test_a_link_that_leads_elsewhere_is_put_right(tmp_path: pathlib.Path) -> None:
    home = spark_home.linked_home(tmp_path / "pyspark")
    assert home is not None
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path)
    assert spark_home.linked_home(tmp_path / "pyspark") == home
    assert (home / "jars").readlink() == tmp_path / "pyspark" / "jars"


@pytest.mark.parametrize(("master", "is_used"), [("local[2]", True), ("local-cluster[2,1,512]", True), ("yarn", False)])
def test_a_spark_of_this_machine_is_started_from_it(master: str, is_used: bool, cache: pathlib.Path) -> None:
    with spark_home.without_archive(master):
        found = os.environ.get("SPARK_HOME", "")
    assert found.startswith(str(cache)) == is_used
    assert "SPARK_HOME" not in os.environ, "programs that are started later find Spark as ever"


def test_who_says_where_spark_is_keeps_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with spark_home.without_archive("local[2]"):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_a_place_that_cannot_be_written_costs_speed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_home, "cache_directory", lambda: None)
    with spark_home.without_archive("local[2]"):
        assert "SPARK_HOME" not in os.environ


def test_the_process_that_workers_are_forked_from_has_one_thread() -> None:
    told = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=120)
    assert told.stdout.split() == ["1", "False", "True"]
