"""``heliograph pipeline`` where there is nothing to read: that is said before Spark starts."""

from __future__ import annotations

import pathlib

import pytest

import durable_log
from heliograph import exits, main
from heliograph.pipeline import arguments
from spark_pipeline.errors import SparkMissing

JOBS: dict[str, list[str]] = {"audit": [], "compact": ["--out", "snapshot"], "replay": ["--bus", "memory://replay"]}


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise SparkMissing("Spark was started")

    monkeypatch.setattr(arguments, "spark_session", refuse)


@pytest.mark.parametrize("job", JOBS)
def test_a_table_that_is_not_there(job: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["pipeline", job, "--lake", str(tmp_path), *JOBS[job]]) == exits.ENVIRONMENT
    assert f"there is no table at {tmp_path}: run the ingest job first" in capsys.readouterr().err


def test_a_log_in_which_nothing_is(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    durable_log.open(f"sqlite://{tmp_path}/log.db").close()
    argv = ["pipeline", "ingest", "--log", f"sqlite://{tmp_path}/log.db", "--lake", str(tmp_path / "lake")]
    assert main.main(argv) == exits.ENVIRONMENT
    told = capsys.readouterr().err
    assert told.index("heliograph pipeline: nothing was ever appended to this log") < told.index("Spark was started")


@pytest.mark.parametrize("job", [*JOBS, "ingest"])
def test_a_log_that_is_not_there_is_not_made(
    job: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = JOBS.get(job, ["--lake", str(tmp_path / "lake")])
    argv = ["pipeline", job, "--log", f"sqlite://{tmp_path}/typo.db", *more]
    assert main.main(argv) == exits.USAGE
    assert f"there is no log at sqlite://{tmp_path}/typo.db" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
